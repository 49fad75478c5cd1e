"""A token head with a matrix of its own."""
