"""Saved runs: the files of a checkpoint, what a run is made of, the folder it lies in."""
