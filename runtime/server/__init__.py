"""OpenAI-compatible HTTP: one file per endpoint; app.py puts them together."""
