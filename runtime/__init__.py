"""Bundle + vmfb -> tokens. Imports neither export nor compile."""
