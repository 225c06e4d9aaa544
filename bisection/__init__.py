"""Finds the first layer and op of a compiled program that computes something else than the checkpoint says."""
