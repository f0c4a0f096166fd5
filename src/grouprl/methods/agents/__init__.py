"""Agents: turns, tools, teams, reviews."""
