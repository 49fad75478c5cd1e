"""Evaluators, one file each: they measure the answers to one kind of puzzle."""
