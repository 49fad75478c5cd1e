"""Evaluators, a file each: what is measured of the answers to one kind of puzzle."""
