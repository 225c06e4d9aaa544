"""What other code says, on one line."""

from __future__ import annotations

from strixhlo.errors import one_line


def test_lines_are_cut_between_words() -> None:
    assert one_line("a\n  b") == "a b" and one_line("x" * 300) == "x" * 300
    assert one_line("INVALID_ARGUMENT; function takes two arguments", 36) == "INVALID_ARGUMENT; function takes ..."
    assert one_line("a " + "y" * 400, 50) == "a " + "y" * 44 + " ..."  # a word that long is cut
