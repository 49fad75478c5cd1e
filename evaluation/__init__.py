"""Evaluation of trained models: runner and metrics."""
