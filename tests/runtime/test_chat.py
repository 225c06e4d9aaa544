"""Chat templates: the same text as transformers renders, and hostile templates end in one error line."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from strixhlo.errors import StrixhloError
from strixhlo.runtime import chat
from strixhlo.runtime.chat import render_chat

MESSAGES = [
    {"role": "system", "content": "Be <brief> & kind."},
    {"role": "user", "content": " Привет 😀\n{{ 7 * 7 }} "},
    {"role": "assistant", "content": "49", "name": None, "tool_calls": None},
    {"role": "user", "content": "Thanks!"},
]
TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "a < b & 'é'", "parameters": {"type": "object"}}}
]

TRICKY = {
    "bos, loop variables, trimming": """{{ bos_token }}
{%- for message in messages %}
    {% if loop.first and message.role == 'system' %}
        {%- continue %}
    {% endif %}
[{{ loop.index0 }}/{{ loop.length }}] {{ message['role'] | upper }}: {{ message['content'] | trim }}{{ eos_token }}
    {% if loop.index > 2 %}{% break %}{% endif %}
{% endfor %}
{% if add_generation_prompt %}assistant:{% endif %}""",
    "json, tools, undefined variables": """{% if tools is not none %}
{{ tools | tojson }}|{{ tools | tojson(indent=2) }}{% endif %}
{{ messages[0] | tojson }}{{ nothing }}{{ documents is none }}{{ messages[2].name is defined }}""",
    "namespace, macro, slices": """{% set ns = namespace(seen=0, last='') %}
{% macro turn(m) -%}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{%- endmacro %}
{% for m in messages[1:] %}{% set ns.seen = ns.seen + 1 %}{% set ns.last = m.role %}{{ turn(m) }}{% endfor %}
{{ ns.seen }} {{ ns.last }} {{ messages[-1]['content'][::-1] }} {{ 'a,b'.split(',') | join('+') }}""",
    "generation blocks": """{% for m in messages %}{% if m.role == 'assistant' %}
{% generation %}
{{ m.content }}
{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}""",
    "date": "{{ strftime_now('%Y') }} {{ strftime_now('%d %b') | length }}",
    "dict and items": """{% for k, v in dict(a=1, b='x').items() %}{{ k }}={{ v }};{% endfor %}
{{ {'z': true} | tojson }}""",
}


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("name", ["SmolLM2", *TRICKY])
def test_same_text_as_transformers(name: str, add_generation_prompt: bool, smollm2_gguf: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models

    template = _template_of(smollm2_gguf) if name == "SmolLM2" else TRICKY[name]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>"
    )
    for tools in (None, TOOLS):
        theirs = tokenizer.apply_chat_template(
            MESSAGES,
            chat_template=template,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
        )
        ours = render_chat(
            template,
            MESSAGES,
            bos_token="<s>",
            eos_token="</s>",
            add_generation_prompt=add_generation_prompt,
            tools=tools,
        )
        assert ours == theirs


def _template_of(path: Path) -> str:
    gguf = pytest.importorskip("gguf")
    return str(gguf.GGUFReader(path).fields["tokenizer.chat_template"].contents())


def render(template: str | None, messages: Any = MESSAGES, **more: Any) -> str:
    return render_chat(template, messages, **{"bos_token": None, "eos_token": None, **more})


def test_a_message_is_text_not_template() -> None:
    assert "{{ 7 * 7 }}" in render("{{ messages[1].content }}")


def test_absent_special_tokens_render_as_nothing() -> None:
    assert render("[{{ bos_token }}{{ eos_token }}]") == "[]"


@pytest.mark.parametrize("template", [None, ""])
def test_no_template(template: str | None) -> None:
    with pytest.raises(StrixhloError, match="no chat template; pass --raw"):
        render(template)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must\n alternate') }}", "TemplateError: roles must alternate"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ missing.attribute.deeper }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ messages.__class__.__mro__ }}", "SecurityError"),
        ("{{ ''.__class__ }}{{ ().__class__.__base__.__subclasses__() }}", "SecurityError"),
        ("{{ namespace(__init__=1) }}", "SecurityError"),
        ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "SecurityError"),
        ("{% include '/etc/passwd' %}", "TypeError|TemplateNotFound|no loader"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    ],
)
def test_errors_of_a_template_are_one_line(template: str, reason: str) -> None:
    with pytest.raises(StrixhloError, match=f"^chat: the model's chat template .*({reason}).*--raw") as caught:
        render(template)
    assert "\n" not in str(caught.value)


DOUBLED = "{% set x %}{{ x }}{{ x }}{% endset %}"
DOUBLING = "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
HOSTILE = {
    "repetition": "{{ 'x' * 10**10 }}",
    "power": "{{ 9**(9**(9**9)) }}",
    "endless output": "{% for i in range(99999) %}{% for j in range(99999) %}0123456789{% endfor %}{% endfor %}",
    "endless work": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "range": "{{ range(10**9) | list | length }}",
    "doubling": DOUBLING + "{{ ns.x | length }}",
    "captured blocks": "{% set x %}12345678{% endset %}"
    + "{% set x %}{{ x }}{{ x }}{% endset %}" * 40
    + "{{ x | length }}",
    "format width": "{{ '%99999999999d' % 1 }}",
    "format method": "{{ '{:9999999999}'.format(1) }}",
    "center": "{{ 'x' | center(10**10) }}",
    "lists": DOUBLING.replace("'xxxxxxxx'", "[0]").replace("~", "+") + "{{ ns.x | length }}",
    "deep nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_soon_and_small(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "CPU_SECONDS", 2)
    began = time.monotonic()
    with pytest.raises(StrixhloError, match=r"^chat: the model's chat template does not work here: .*--raw") as caught:
        render(HOSTILE[name])
    assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 30


def test_which_limit_was_met_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "CPU_SECONDS", 1)
    with pytest.raises(StrixhloError, match="longer than 1 seconds"):
        render(HOSTILE["endless work"])
    with pytest.raises(StrixhloError, match="more memory"):
        render(HOSTILE["repetition"])
    monkeypatch.setattr(chat, "MAX_CHARACTERS", 1000)
    with pytest.raises(StrixhloError, match="longer than 1,000 characters"):
        render(HOSTILE["endless output"])
    assert len(render("{% for i in range(100) %}0123456789{% endfor %}")) == 1000


def test_a_limit_that_is_there_already_stays() -> None:
    """Under `ulimit -v` a process may not raise what it is allowed."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (800 << 20,) * 2)\n"
        "from strixhlo.runtime.template_worker import limit_this_process\n"
        "limit_this_process(1 << 30, 5); print(resource.getrlimit(resource.RLIMIT_AS)[0] >> 20)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["800"]


def test_a_long_conversation_fits() -> None:
    messages = [{"role": "user", "content": "many words " * 500}] * 1000
    assert len(render("{% for m in messages %}{{ m.content }}{% endfor %}", messages)) == 5_500_000


@pytest.mark.parametrize("messages", [["text"], [{"content": "x"}], [{"role": 1, "content": "x"}]])
def test_messages_without_a_role_are_refused(messages: Any) -> None:
    with pytest.raises(StrixhloError, match='message 0 is not an object with a "role"'):
        render("{{ messages }}", messages)


def test_values_that_are_not_json_are_refused() -> None:
    with pytest.raises(StrixhloError, match="plain JSON"):
        render("{{ messages }}", [{"role": "user", "content": object()}])


def test_a_module_in_the_current_directory_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jinja2.py").write_text("raise SystemExit('the wrong jinja2')")
    monkeypatch.chdir(tmp_path)
    assert render("fine") == "fine"
