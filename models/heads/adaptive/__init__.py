"""Adaptive softmax: a token head for large vocabularies."""
