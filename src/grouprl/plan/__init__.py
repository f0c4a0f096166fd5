"""What a run will do, said before it does it."""
