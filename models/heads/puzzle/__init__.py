"""A token head whose weights the puzzle embedding changes."""
