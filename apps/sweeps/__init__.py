"""Sweeps: one command starts several jobs and writes a table of their results."""
