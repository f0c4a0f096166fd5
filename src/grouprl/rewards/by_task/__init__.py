"""Reward functions of single kinds of task."""
