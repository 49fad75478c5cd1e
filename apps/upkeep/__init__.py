"""Upkeep of the project: the settings in config/."""
