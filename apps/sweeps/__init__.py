"""Several runs from one command: which jobs there are, who runs them, what came out."""
