"""Parts by kind: the folder of a kind has its name, and `papers` in it holds the parts that a single paper needs.

The base class of each kind is imported from here, or from `grouprl`, when it is first used.
"""

from __future__ import annotations

from grouprl.core.late_import import lazy_names

BASES = {
    "reward_transform": "RewardTransform",
    "filter": "Filter",
    "advantage": "Advantage",
    "advantage_transform": "AdvantageTransform",
    "prune": "Prune",
    "token_weight": "TokenWeight",
    "token_gate": "TokenGate",
    "objective": "Objective",
    "aggregate": "Aggregate",
    "regularize": "Regularizer",
    "critic": "Critic",
    "curriculum": "Curriculum",
    "allocation": "Allocation",
    "sampling": "SamplingRule",
    "augment": "Augmentation",
    "refill": "Refill",
    "buffer": "Buffer",
    "pretrain": "Pretraining",
    "update": "Update",
    "score": "Score",
    "link": "Link",
    "margin": "Margin",
    "pair_weight": "PairWeight",
    "pairing": "Pairing",
}
"""The name of the base class of each kind of part."""

DATA = ("curriculum", "allocation", "sampling", "augment", "buffer", "pretrain")
"""Kinds whose parts decide what is sampled: their base classes are all in one module."""

_HOMES = {name: f"{__name__}.{'data_part' if kind in DATA else f'{kind}.{kind}'}" for kind, name in BASES.items()}

__all__ = list(_HOMES)

__getattr__ = lazy_names(__name__, _HOMES)
