"""Callbacks of the training loop, one file each; each is registered where it stands."""
