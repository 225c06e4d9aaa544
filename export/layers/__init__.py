"""What model families share, in plain functional JAX."""
