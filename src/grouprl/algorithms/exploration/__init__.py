"""Augmentation: hints, branches, continuations, reviews and other samples beside the groups."""
