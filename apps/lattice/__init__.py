"""Deduction on candidate sets."""
