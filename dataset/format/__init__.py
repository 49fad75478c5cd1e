"""The files of puzzle data sets: arrays, metadata, checks."""
