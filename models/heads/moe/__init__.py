"""A token head of experts and a router."""
