"""What a run will do, stated before it does it."""
