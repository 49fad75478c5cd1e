"""Heads predict tokens, Q values and more from the answer of a model's trunk."""
