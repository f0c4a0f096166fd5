"""Comparisons: pairs, classifiers, preferences between episodes."""
