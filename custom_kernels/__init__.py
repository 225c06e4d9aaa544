"""What the compiler cannot do well. Knows no model."""
