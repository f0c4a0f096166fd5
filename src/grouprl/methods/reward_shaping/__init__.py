"""Rewards that know of length, budgets and formats."""
