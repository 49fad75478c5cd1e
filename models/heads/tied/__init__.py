"""A token head that shares the token embedding's matrix."""
