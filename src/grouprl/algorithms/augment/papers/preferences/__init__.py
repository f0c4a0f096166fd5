"""Augmentations of losses of preferences: rows that are only scored, and numbers that a run remembers."""
