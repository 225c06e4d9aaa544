"""The tokenizer files of a bundle, copied from a Hugging Face directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ...errors import StrixhloError
from .text_files import read_json, read_text, write_json, write_text
from .tokenizer import compact_merges


def write_copied_tokenizer(source: Path, config: dict[str, Any], directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json, generation_config.json and, if there is one, chat_template.jinja.

    The template is taken out of tokenizer_config.json where it is kept there; `eos_token_id` becomes a list.
    """
    if not (source / "tokenizer.json").is_file():
        raise StrixhloError(
            f"{source}: tokenizer.json is missing; save the tokenizer with transformers' "
            f"AutoTokenizer.from_pretrained(...).save_pretrained(...) first"
        )
    write_json(directory / "tokenizer.json", _tokenizer(source / "tokenizer.json"), indent=None)
    tokenizer_config = _optional(source / "tokenizer_config.json")
    template = _chat_template(source, tokenizer_config.pop("chat_template", None))
    write_json(directory / "tokenizer_config.json", tokenizer_config)
    write_json(directory / "generation_config.json", _generation_config(source, config))
    if template is not None:
        write_text(directory / "chat_template.jinja", template)


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _tokenizer(path: Path) -> dict[str, Any]:
    """tokenizer.json, checked by loading it, with merges in the form that needs the least memory at run time."""
    content = read_json(path)
    model = content.get("model")
    if isinstance(model, dict) and isinstance(model.get("merges"), list):
        pairs = [tuple(m) for m in model["merges"] if isinstance(m, list) and len(m) == 2]
        if len(pairs) == len(model["merges"]):
            model["merges"] = compact_merges(pairs)
    try:
        Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # the library raises bare Exception for whatever it does not like
        raise StrixhloError(f"{path}: not a usable tokenizer ({error}); download it again") from error
    return content


def _chat_template(source: Path, configured: Any) -> str | None:
    """chat_template.jinja, or the template in tokenizer_config.json (of several, the one called "default")."""
    file = source / "chat_template.jinja"
    if file.is_file():
        return read_text(file)
    if isinstance(configured, list):
        named = {entry.get("name"): entry.get("template") for entry in configured if isinstance(entry, dict)}
        configured = named.get("default", next(iter(named.values()), None))
    if configured is None:
        configured = _optional(source / "chat_template.json").get("chat_template")
    if configured is not None and not isinstance(configured, str):
        raise StrixhloError(f"{source / 'tokenizer_config.json'}: chat_template is not text; download it again")
    return configured


def _generation_config(source: Path, config: dict[str, Any]) -> dict[str, Any]:
    generation = _optional(source / "generation_config.json")
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if generation.get(key) is None and config.get(key) is not None:
            generation[key] = config[key]
    eos = generation.get("eos_token_id")
    generation["eos_token_id"] = eos if isinstance(eos, list) else [] if eos is None else [eos]
    return generation
