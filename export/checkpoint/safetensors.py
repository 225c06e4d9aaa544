"""A directory of safetensors and config.json, in one file or in shards, as a Checkpoint."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ...errors import StrixhloError
from .contents import Checkpoint
from .gpt_oss_experts import split_gpt_oss_experts
from .head_projections import split_head_projections
from .hugging_face_config import normalized_config, normalized_name, renamed
from .hugging_face_defaults import with_defaults
from .pooling import directory_pooling
from .quantization import assemble, maker_of
from .safetensors_file import StoredTensor, read_safetensors
from .stacked_experts import expert_name, stack_experts
from .text_files import read_json
from .tokenizer_files import write_copied_tokenizer

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MODELOPT = "hf_quant_config.json"


def open_safetensors(directory: Path) -> Checkpoint:
    """Open a directory that holds config.json and safetensors. StrixhloError names what is wrong or missing."""
    raw_config = read_json(directory / "config.json")
    nested = isinstance(raw_config.get("text_config"), dict)
    config = with_defaults(normalized_config(raw_config, directory / "config.json"))
    config_file = directory / "config.json"
    if "quantization_config" not in config and "quantization" not in config and (directory / MODELOPT).is_file():
        config_file = directory / MODELOPT
        config["quantization_config"] = read_json(config_file)
    maker = maker_of(config, config_file, nested)
    for key in ("quantization", "quantization_config"):  # the tensors' formats say it from here on
        config.pop(key, None)
    files = _weight_files(directory)
    stored: dict[str, StoredTensor] = {}
    for path in files:
        for tensor in read_safetensors(path):
            name = normalized_name(tensor.name, nested)
            if name is None:
                continue
            name = expert_name(renamed(name, config.get("model_type")))
            if name in stored:
                before = stored[name].place.path.name
                raise StrixhloError(f"{path}: tensor {name!r} is also in {before}; download the model again")
            stored[name] = tensor
    pooling = directory_pooling(directory)
    if pooling and "embed_tokens.weight" in stored:  # sentence-transformers saves the model without its head
        stored = {f"model.{name}": tensor for name, tensor in stored.items()}
    tensors = assemble(stored.items(), maker)
    if config.get("model_type") == "gpt_oss":
        tensors = split_gpt_oss_experts(tensors)
    tensors = split_head_projections(stack_experts(tensors), config)
    if config.setdefault("tie_word_embeddings", "lm_head.weight" not in tensors):
        tensors.pop("lm_head.weight", None)  # some files store the embedding a second time
    return Checkpoint(
        source=str(directory.absolute()),
        container="safetensors",
        files=files,
        config=config,
        tensors=tensors,
        write_tokenizer=partial(write_copied_tokenizer, directory, config),
        pooling=pooling,
    )


def _weight_files(directory: Path) -> tuple[Path, ...]:
    """model.safetensors, or the shards of the index, or the only safetensors file that there is."""
    if (directory / SINGLE).is_file():
        return (directory / SINGLE,)
    if (directory / INDEX).is_file():
        return _shards(directory / INDEX)
    found = sorted(directory.glob("*.safetensors"))
    if len(found) == 1:
        return (found[0],)
    if found:
        raise StrixhloError(f"{directory}: {len(found)} safetensors files but no {INDEX}; download the model again")
    raise StrixhloError(f"{directory}: no *.safetensors file; pickled weights (*.bin, *.pt) are never loaded")


def _shards(index: Path) -> tuple[Path, ...]:
    """The files that an index names, each once; the names must be plain and every tensor where the index says."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise StrixhloError(f"{index}: no weight_map; download the model again")
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not name.endswith(".safetensors") or Path(name).name != name or "\\" in name:
            raise StrixhloError(f"{index}: tensor {tensor!r} is said to be in {name!r}, which is not a plain file name")
    files = tuple(index.parent / name for name in sorted(set(weight_map.values())))
    for path in files:
        if not path.is_file():
            raise StrixhloError(f"{path}: this shard is missing; download the model again")
        listed = {tensor for tensor, name in weight_map.items() if name == path.name}
        absent = listed - {t.name for t in read_safetensors(path)}
        if absent:
            raise StrixhloError(f"{path}: tensor {min(absent)!r} of {index.name} is missing; download the model again")
    return files
