"""A recurrence for ARC grids: a state for each colour in each cell."""
