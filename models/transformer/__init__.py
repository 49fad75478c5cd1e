"""The baseline without an inner recursion."""
