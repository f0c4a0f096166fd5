"""The catalogue of methods: compositions of parts, each with a card; one folder for each family."""

from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import CATALOGUE, Entry, entry, find, method, methods

__all__ = ["CATALOGUE", "Card", "Entry", "Golden", "Paper", "Reduction", "entry", "find", "method", "methods"]
