"""The settings of a run: their schema, and their composition from files and command line."""
