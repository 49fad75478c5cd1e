"""The settings of a run: their schema, and how they are composed."""
