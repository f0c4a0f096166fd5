"""Rewards of a critic that judges an action before it is taken and suggests a better one."""

from __future__ import annotations


def critique(well_formed: bool, verdict: bool, suggestion: bool, weights: tuple[float, float, float]) -> float:
    """Return the weighted sum of three flags: form, a verdict that agrees with the label, a right suggestion.

    GUI-Critic-R1 (Wanyan et al. 2025, arXiv 2506.04614). The weights of the paper are not known to us. A malformed
    critique has neither verdict nor suggestion.
    """
    form, agrees, suggests = weights
    return well_formed * (form + agrees * verdict + suggests * suggestion)
