"""Recursive reasoning models: schemas (`config`), layers, the recurrences, ACT and the losses."""
