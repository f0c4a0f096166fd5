"""The plan of a run: its settings, checks and costs, stated before it starts."""
