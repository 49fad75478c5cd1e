"""Sudoku: rules, compiled kernels, generator."""
