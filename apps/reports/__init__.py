"""Pictures and pages of runs, and of a model that thinks."""
