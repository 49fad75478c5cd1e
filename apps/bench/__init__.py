"""Measures of the project: its speed, scores by the protocol, heads side by side, its weight."""
