"""Techniques, one file each; each is registered where it stands."""
