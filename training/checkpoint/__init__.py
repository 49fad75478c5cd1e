"""Saved runs: the files of a checkpoint, the tensors in them, and the run's folder."""
