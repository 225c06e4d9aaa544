"""The native engines to compare with."""
