"""A token head that finds a cluster of tokens first, then a token in it."""
