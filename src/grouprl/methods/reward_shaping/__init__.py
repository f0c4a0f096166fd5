"""Rewards that depend on length, budgets and formats."""
