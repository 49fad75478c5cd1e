"""The Hierarchical Reasoning Model."""
