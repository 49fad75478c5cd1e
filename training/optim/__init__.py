"""Optimizers, their parameter groups, the averaged weights and the learning rate."""
