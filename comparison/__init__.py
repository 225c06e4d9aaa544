"""Ours beside a native engine, or beside what the bytes allow: both sides, and how the numbers are shown."""
