"""A head that says when to stop."""
