"""One file per custom op: its name, operands, JAX reference and launch geometry per target."""
