"""How a puzzle data set lies on disk: arrays, metadata, checks."""
