"""A local page on which a model can be watched."""
