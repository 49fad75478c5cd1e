"""TRM's recursion with a state for each digit in each cell."""
