"""Heads that predict a field of the data set: actions, pixels."""
