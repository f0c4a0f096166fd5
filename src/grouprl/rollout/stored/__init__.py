"""Rows whose completions are stored: as tokens, and what a plan says of them."""
