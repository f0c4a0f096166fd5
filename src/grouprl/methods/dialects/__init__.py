"""The numbers of TRL, verl and NeMo-RL, from the same parts."""
