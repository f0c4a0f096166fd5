"""Advantages: how good a completion, a turn or a token was, compared with what."""
