"""A recurrence whose updates read neighbouring cells only: a neural cellular automaton."""
