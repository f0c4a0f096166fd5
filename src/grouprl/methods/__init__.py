"""The catalogue of methods: compositions of parts, each with a card."""

from grouprl.methods import (
    baselines,
    capped,
    critic,
    dialects_nemo_rl,
    dialects_trl,
    dialects_verl,
    group,
    reinforce,
    rejection,
    sequence,
    token_choice,
    token_weights,
)
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import CATALOGUE, Entry, entry, find, method, methods

__all__ = [
    "CATALOGUE",
    "Card",
    "Entry",
    "Golden",
    "Paper",
    "Reduction",
    "baselines",
    "capped",
    "critic",
    "dialects_nemo_rl",
    "dialects_trl",
    "dialects_verl",
    "entry",
    "find",
    "group",
    "method",
    "methods",
    "reinforce",
    "rejection",
    "sequence",
    "token_choice",
    "token_weights",
]
