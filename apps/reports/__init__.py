"""Reports of runs as pages and lists, and a model's answers as pictures and text."""
