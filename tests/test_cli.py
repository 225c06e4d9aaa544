"""The command line as a user meets it: results on standard output, one line and exit code 2 for what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from strixhlo.bundle import Bundle


def strixhlo(*arguments: str, code: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "strixhlo.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, input=stdin, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def path(smollm2: Callable[[str], Bundle]) -> str:
    return str(smollm2("int8").path)


@pytest.mark.parametrize("command", [(), ("export",), ("compile",), ("run",), ("compare",), ("inspect",)])
def test_help(command: tuple[str, ...]) -> None:
    assert "Usage: " in strixhlo(*command, "--help").stdout


def test_run_streams_text(path: str) -> None:
    done = strixhlo("run", path, "--raw", "-p", "Once upon a time", "-n", "12")
    assert done.stdout.startswith(", the") and done.stdout.endswith("\n") and len(done.stdout.split()) > 5
    assert "4 prompt tokens" in done.stderr


def test_run_json_and_token_ids_agree(path: str, tmp_path: Path) -> None:
    arguments = ("run", path, "--raw", "-p", "-", "-n", "6")
    record = json.loads(strixhlo(*arguments, "--json", "--logprobs", "2", stdin="Once upon a time").stdout)
    ids = strixhlo(*arguments, "--token-ids", stdin="Once upon a time").stdout.split()
    (tmp_path / "prompt.txt").write_text("Once upon a time")
    of_a_file = strixhlo("run", path, "--raw", "-f", str(tmp_path / "prompt.txt"), "-n", "6", "--token-ids")
    assert [str(i) for i in record["token_ids"]] == ids == of_a_file.stdout.split()
    assert record["finish"] == "length" and len(record["logprobs"]) == 6
    for token in record["logprobs"]:
        assert token["top"][0]["id"] == token["id"] and token["top"][0]["logprob"] == token["logprob"] < 0


def test_seed_repeats(path: str) -> None:
    arguments = ("run", path, "-p", "Hi", "-n", "8", "--temp", "1.5", "--top-k", "50", "--token-ids")
    runs = [strixhlo(*arguments, "--seed", seed).stdout for seed in ("1", "1", "2")]
    assert runs[0] == runs[1] != runs[2]


def test_speculation_changes_nothing(path: str) -> None:
    prompt = "one two three four five one two three four five one two three"
    arguments = ("run", path, "--raw", "-p", prompt, "-n", "24", "--temp", "0.5", "--seed", "3", "--json")
    kinds = (("--speculate", "none"), ("--speculate", "lookup"), ("--draft", path))
    records = [json.loads(strixhlo(*arguments, *kind).stdout) for kind in kinds]
    assert [r["token_ids"] for r in records] == [records[0]["token_ids"]] * 3
    assert records[0]["drafted"] == 0 < records[1]["accepted"] <= records[1]["drafted"]


def test_structured_output_and_penalties(path: str, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": [{"n": 1}, {"n": 22}]}')
    arguments = ("run", path, "-p", "A number", "-n", "60")
    assert json.loads(strixhlo(*arguments, "--json-schema", str(schema)).stdout) in ({"n": 1}, {"n": 22})
    assert re.fullmatch(r"[0-9]{3}-[a-f]\n", strixhlo(*arguments, "--regex", "[0-9]{3}-[a-f]").stdout)
    raw = ("run", path, "--raw", "-p", "the cat, the cat, the cat, the", "-n", "1", "--token-ids")
    cat = strixhlo(*raw).stdout.strip()
    for option in (("--dry-multiplier", "50"), ("--repetition-penalty", "50"), ("--logit-bias", f"{cat}=-100")):
        assert strixhlo(*raw, *option).stdout.strip() != cat


def test_chat_template_stop_and_system(path: str) -> None:
    plain = json.loads(strixhlo("run", path, "-p", "Hi", "-n", "4", "--json").stdout)
    system = json.loads(strixhlo("run", path, "-p", "Hi", "-n", "4", "--json", "--system", "Be terse.").stdout)
    assert plain["prompt_ids"][0] == 1 and plain["prompt_ids"] != system["prompt_ids"]
    raw = ("run", path, "--raw", "-p", "Once upon a time", "-n", "30", "--json")
    whole = json.loads(strixhlo(*raw).stdout)["text"]
    stop = whole[12:20]  # over token boundaries, whatever the words are
    stopped = json.loads(strixhlo(*raw, "--stop", stop).stdout)
    assert stopped["finish"] == "stop" and stopped["text"] == whole[: whole.index(stop)]


def test_inspect(path: str) -> None:
    record = json.loads(strixhlo("inspect", path, "--json").stdout)
    assert record["family"] == "llama" and record["builds"]["cpu"]["activations"] == "int8"
    assert record["kv_cache"]["bytes"] == 2 * 30 * 1024 * 192 * 2
    assert "q4_1 210" in strixhlo("inspect", path).stdout


def test_compile_again_says_up_to_date(path: str) -> None:
    assert "up to date" in strixhlo("compile", path).stdout
    assert json.loads(strixhlo("compile", path, "--json").stdout)["target"] == "cpu"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "/nowhere/at/all"), "no such file"),
        (("compile", "/nowhere"), "no such bundle"),
        (("inspect", "/tmp"), "manifest.json is missing"),
        (("run", "PATH", "-p", "x", "--target", "cpu:x86-64-v2"), "not compiled for cpu:x86-64-v2; run"),
        (("compile", "PATH", "--target", "tpu"), "target 'tpu' is not known"),
        (("run", "PATH", "-p", "x", "--top-p", "7"), "strixhlo: --top-p is 7.0; it must be a number above 0"),
        (("run", "PATH", "-p", "x", "--temp", "-1"), "strixhlo: --temp is -1.0; it must be"),
        (("chat", "PATH", "--temp", "nan"), "strixhlo: --temp is nan; it must be"),
        (("run", "PATH", "-p", "x", "--stop", ""), "strixhlo: --stop is empty; give the text"),
        (
            ("run", "PATH", "-p", "x", "--ctx", "1"),
            "the context of 1; shorten the prompt, or take a larger --ctx (up to ",
        ),
        (("serve", "PATH", "--port", "0", "--request-seconds", "nan"), "--request-seconds is not a number"),
        (("run", "PATH", "-p", "x", "-n", "0"), "--max-tokens is 0"),
        (("run", "PATH", "-p", "x", "--logit-bias", "a=b"), "--logit-bias 'a=b' is not of the form ID=BIAS"),
        (("run", "PATH", "-p", "x", "--json-schema", "/nowhere.json"), "/nowhere.json: No such file"),
        (("run", "PATH", "-p", "x", "--json-schema", "/dev/zero"), "/dev/zero: not a file of at most 256 MiB"),
        (("run", "PATH"), "give the prompt: -p TEXT, -p - for standard input, or -f FILE"),
        (("run", "PATH", "-p", "x", "-f", "/dev/null"), "give the prompt: -p TEXT"),
        (("run", "PATH", "-f", "/nowhere.txt"), "/nowhere.txt: No such file"),
        (("run", "PATH", "-p", "x", "--speculate", "lookup", "--draft", "PATH"), "--draft goes with --speculate auto"),
        (("run", "PATH", "-p", "x " * 2000, "--raw"), "do not fit into the context of 1024"),
        (("run", "PATH", "-p", "", "--raw"), "the prompt has no tokens"),
        (("run", "PATH", "-p", "x", "--raw", "--system", "y"), "--system needs the chat template"),
    ],
)
def test_what_is_wrong_is_one_line(path: str, arguments: tuple[str, ...], message: str) -> None:
    done = strixhlo(*(path if a == "PATH" else a for a in arguments), code=2)
    assert message in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("strixhlo: ")]) == 1
    assert done.stdout == ""


def test_export_refuses_what_it_cannot_do(tmp_path: Path, smollm2_gguf: Path) -> None:
    out = str(tmp_path / "out")
    assert (
        "context 9000 is not possible"
        in strixhlo("export", str(smollm2_gguf), "-o", out, "--context", "9000", code=2).stderr
    )
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(smollm2_gguf.read_bytes()[:1_000_000])
    assert "cut.gguf" in strixhlo("export", str(cut), "-o", out, code=2).stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut.gguf"]


def test_compare_with_llama_cpp(path: str, tmp_path: Path) -> None:
    arguments = ("compare", path, "--native", "llama.cpp", "--repeats", "1", "-p", "64,16", "-n", "8", "--greedy", "16")
    page = tmp_path / "report.html"
    record = json.loads(strixhlo(*arguments, "--html", str(page), "--json").stdout)
    assert "llama.cpp" in page.read_text("utf-8") and len(record["kl_by_position"]) == 99
    ours, theirs = record["memory"]  # both touch the weights, 80 MB, and hold a KV cache and activations
    assert 80e6 < ours["grown"] < ours["resident"] and 80e6 < theirs["grown"] < theirs["resident"]
    assert record["passed"] and record["prompt_ids"] == "same" and record["greedy_agreed"] >= 4
    assert record["numerics"]["vocabulary"] == 49152 and record["numerics"]["positions"] == 99
    assert record["numerics"]["mean_kl"] < 0.01 and record["numerics"]["top1_agreement"] > 0.85
    assert [s["test"] for s in record["speeds"]] == ["pp64", "pp16", "tg8"]
    assert min(min(s["ours"] + s["theirs"]) for s in record["speeds"]) > 0
