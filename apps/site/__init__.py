"""The site of `make docs`, and the page "Try it" on it."""
