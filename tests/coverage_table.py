"""README's table of what works, made of marks that the parity tests carry.

A test that holds a model of some format on some target against somebody else's evaluation says so:

    @covers("Llama", "GGUF Q4_K", "cpu", "llama.cpp")
    def test_logits(...)

or, one format a case: `pytest.param(kind, marks=covers("Llama", f"MLX {kind}", "cpu", "mlx_lm"))`. Several marks on one
test are fine; each names one format. `make table` runs all tests that have a mark and writes README's table from those
that passed, if none failed; so does every run of the suite with `--write-table`. test_coverage_table.py holds README
against the marks of the tests that are collected, so that a new mark without a new table fails.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- made by `make table` -->\n", "<!-- end of what `make table` makes -->"
TARGETS = {
    "jax": "traced, run by JAX",
    "cpu": "cpu",
    "rocm": "rocm (simulated)",
    "cuda": "cuda (H200)",
    "vulkan": "vulkan",
}
# In the order of the table. The name says what people know; the config's model_type is in brackets.
MODELS = (
    "Llama 1-3.x, SmolLM2, Falcon 3 (`llama`)",
    "Mistral (`mistral`)",
    "Ministral (`ministral`)",
    "Ministral 3 (`ministral3`)",
    "Qwen 2, 2.5 (`qwen2`)",
    "Qwen 3 (`qwen3`)",
    "Gemma 2 (`gemma2`)",
    "Gemma 3 text (`gemma3_text`)",
    "Gemma 4 text, dense (`gemma4_text`)",
    "Phi-3, 3.5, 4 (`phi3`)",
    "SmolLM 3 (`smollm3`)",
    "OLMo 2 (`olmo2`)",
    "OLMo 3 (`olmo3`)",
    "Granite 3 (`granite`)",
    "Granite 4, dense (`granitemoehybrid`)",
    "StarCoder 2 (`starcoder2`)",
    "Command R (`cohere`)",
    "Command R7B, A (`cohere2`)",
    "GLM-4 (`glm`)",
    "GLM-4-0414 (`glm4`)",
    "EXAONE 3, 3.5 (`exaone`)",
    "EXAONE 4 (`exaone4`)",
    "Seed-OSS (`seed_oss`)",
    "InternLM 3 (`internlm3`)",
    "Apertus (`apertus`)",
    "Mixtral (`mixtral`)",
    "MoE of Qwen 1.5, 2 (`qwen2_moe`)",
    "MoE of Qwen 3 (`qwen3_moe`)",
    "OLMoE (`olmoe`)",
    "MoE of Granite 3 (`granitemoe`)",
    "gpt-oss (`gpt_oss`)",
    "MoE of Phi-3.5 (`phimoe`)",
    "GLM-4.5, 4.6, 4.7 (`glm4_moe`)",
    "ERNIE 4.5, with experts (`ernie4_5_moe`)",
    "DeepSeek-V2 (`deepseek_v2`)",
    "DeepSeek-V3, R1 (`deepseek_v3`)",
    "MoE of Llama 4, text (`llama4_text`)",
    "MoE of Gemma 4, text (`gemma4_text`)",
)


class Covered(NamedTuple):
    """One line of the record: a model of one format on one target, and whose evaluation it was held against."""

    model: str
    format: str
    target: str
    against: str


def covers(model: str, format: str, target: str, against: str) -> pytest.MarkDecorator:
    """The mark of a parity test. model: a line of MODELS, or its start; format: "safetensors f32", "GGUF Q4_K",
    "MLX affine 4", "FP8 128x128", container or maker first; target: a key of TARGETS; against: whose numbers."""
    names = [name for name in MODELS if name.startswith(model)]
    assert len(names) == 1, f"{model!r} begins {len(names)} lines of MODELS"
    assert target in TARGETS, target
    return pytest.mark.covers(Covered(names[0], format, target, against))


def declared(items: Iterable[pytest.Item]) -> set[Covered]:
    """What the marks of these tests declare."""
    return {mark.args[0] for item in items for mark in item.iter_markers("covers")}


def table(covered: Iterable[Covered]) -> str:
    """Markdown: a row a model, a column a target; in a cell the formats, grouped by their first word."""
    covered = set(covered)
    targets = [t for t in TARGETS if any(c.target == t for c in covered)]
    lines = [f"| model | {' | '.join(TARGETS[t] for t in targets)} | held against |", "|" + "---|" * (len(targets) + 2)]
    for model in MODELS:
        rows = [c for c in covered if c.model == model]
        if rows:
            cells = [formats(c.format for c in rows if c.target == t) for t in targets]
            lines.append(f"| {model} | {' | '.join(cells)} | {', '.join(sorted({c.against for c in rows}))} |")
    return "\n".join(lines) + "\n"


def formats(names: Iterable[str]) -> str:
    """ "GGUF Q4_K", "GGUF F16", "MLX nvfp4" -> "GGUF F16 Q4_K; MLX nvfp4"."""
    groups: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        container, _, rest = name.partition(" ")
        groups[container].add(rest)
    return "; ".join(f"{container} {', '.join(sorted(rest))}".strip() for container, rest in sorted(groups.items()))


def rows_of(text: str) -> str:
    """The table inside README's text."""
    assert text.count(BEGIN) == text.count(END) == 1, "README.md has lost the marks around the table of what works"
    return text.partition(BEGIN)[2].partition(END)[0]


ALL = pytest.StashKey[list[pytest.Item]]()
DECLARED = pytest.StashKey[set[Covered]]()  # in pytest-xdist's workers, which collect in place of the session
PASSED = pytest.StashKey[set[Covered]]()
NOT_WRITTEN = pytest.StashKey[str]()  # why, where the table was asked for
WRITE = "--write-table"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(WRITE, action="store_true", help="write README's table of what works, if all tests pass")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "covers: what a parity test proves, see tests/coverage_table.py")
    config.stash[ALL], config.stash[DECLARED], config.stash[PASSED] = [], set(), set()


@pytest.hookimpl(tryfirst=True)  # before -m and -k take tests out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[ALL] = list(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterable[None]:
    report = yield
    if call.when == "call" and report.passed:
        item.config.stash[PASSED] |= declared([item])
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended, and says what it found."""
    for key, name in ((DECLARED, "declared"), (PASSED, "passed")):
        node.config.stash[key] |= {Covered(*fields) for fields in getattr(node, "workeroutput", {}).get(name, ())}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the table, or note why not: an error raised here would leave no word of the tests that failed."""
    config = session.config
    here = declared(config.stash[ALL])
    if hasattr(config, "workeroutput"):
        config.workeroutput |= {"declared": [*map(list, here)], "passed": [*map(list, config.stash[PASSED])]}
        return
    if not config.getoption(WRITE):
        return
    missing = (here | config.stash[DECLARED]) - config.stash[PASSED]
    if session.testsfailed or missing or not config.stash[PASSED]:
        without = "".join(f"\n  {', '.join(covered)}" for covered in sorted(missing))
        config.stash[NOT_WRITTEN] = f"README's table is not written: not every test passed; missing:{without}"
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return
    before, _, rest = README.read_text("utf-8").partition(BEGIN)
    README.write_text(before + BEGIN + table(config.stash[PASSED]) + END + rest.partition(END)[2], "utf-8")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """After the tests that failed."""
    if reason := config.stash.get(NOT_WRITTEN, ""):
        terminalreporter.write_line(reason, red=True)
