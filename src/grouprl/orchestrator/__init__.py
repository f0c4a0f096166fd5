"""Choosing prompts, sampling and scoring for each step: the run's policy, its reward, and the source of its rows."""
