"""A head that says how sure each cell is."""
