"""The viewer: a local web page that shows a model solving puzzles."""
