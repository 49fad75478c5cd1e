"""A head that says which cells the answer changes."""
