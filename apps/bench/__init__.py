"""Measures of the project: its speed, scores by the protocol, its weight."""
