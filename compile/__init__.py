"""Bundle + target -> vmfb. Knows IREE; knows no model family."""
