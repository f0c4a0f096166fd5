"""Models of which each of several processes holds a copy."""
