"""A model's configuration that knows which keys were read, so that one that nobody honours is refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import StrixhloError
from .config_values import shown

# Keys that do not change what a loaded model computes: who wrote the file, training, tokens, and how to run it.
_INERT = re.compile(
    r"_.*|strixhlo_.*|architectures|auto_map|model_type|name|license|language|.*version|(torch_)?dtype|tokenizer_class"
    r"|.*_token_ids?|.*_token_index|.*dropout.*|.*_pdrop|initializer_.*|.*_init_.*|use_cache|cache_implementation"
    r"|pretraining_tp|gradient_checkpointing|attn_implementation|use_flash_attn.*|output_.*|return_dict"
    r"|router_aux_loss_coef|router_jitter_noise|id2label|label2id|problem_type|chunk_size_feed_forward"
    r"|is_encoder_decoder|num_logits_to_keep|model_max_length|max_length|max_sequence_length|unsloth.*"
    r"|max_position_embeddings|quantization|quantization_config|finetuning_task|transformers\.js_config|is_llama_config"
    r"|(begin_)?suppress_tokens"
)


class Config(Mapping[str, Any]):
    """config.json's keys. `|` makes one with other values that shares what is known about reads."""

    def __init__(self, values: Mapping[str, Any], read: set[str] | None = None) -> None:
        self.values_by_key = dict(values)
        self.read = set[str]() if read is None else read

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self.values_by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_key)

    def __len__(self) -> int:
        return len(self.values_by_key)

    def __or__(self, changes: Mapping[str, Any]) -> Config:
        return Config(self.values_by_key | dict(changes), self.read)

    def __ror__(self, defaults: Mapping[str, Any]) -> Config:
        return Config(dict(defaults) | self.values_by_key, self.read)

    def unused(self, *keys: str) -> None:
        """These keys change nothing in this model, whatever they say."""
        self.read.update(keys)

    def refuse_unread(self) -> None:
        """StrixhloError on a key that nothing has read and that may change what the model computes."""
        for key in sorted(self.values_by_key.keys() - self.read):
            value = self.values_by_key[key]
            if value not in (None, False, "", [], {}) and not _INERT.fullmatch(key):
                kind = self.values_by_key.get("model_type")
                raise StrixhloError(
                    f"config.json: {key} = {shown(value)} is not known for {kind} and may change what the model"
                    f" computes; if it does not, remove it from config.json"
                )
