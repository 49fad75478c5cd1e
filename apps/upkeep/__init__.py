"""Upkeep of the project: the settings in config/ and the pictures of the docs."""
