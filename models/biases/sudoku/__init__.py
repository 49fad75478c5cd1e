"""A bias of attention by the row, column and box that two cells of a Sudoku share."""
