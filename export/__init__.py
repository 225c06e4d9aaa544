"""Checkpoint -> StableHLO bundle. Knows JAX; knows no target."""
