"""A token head of two thin matrices."""
