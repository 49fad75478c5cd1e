"""Adapting a trained model to ARC tasks that it has not seen."""
