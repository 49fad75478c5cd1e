"""Mazes: rules, compiled kernels, generator."""
