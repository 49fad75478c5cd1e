"""Builders of puzzle data sets and their parts: rules, generators, symmetries, format on disk."""
