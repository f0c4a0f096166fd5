"""Critics: what values are fitted to."""
