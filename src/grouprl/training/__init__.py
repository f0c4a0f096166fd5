"""Training: the loop of a run, its steps, and its start and end."""
