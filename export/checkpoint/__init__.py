"""One reader per container: GGUF, safetensors, hub download; and the tokenizers they carry."""
