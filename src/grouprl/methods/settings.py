"""Settings that many methods share: their types, the origins of their defaults, the KL term."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.regularize.kl import Estimator, ValueEstimator
from grouprl.algorithms.regularize.regularize import KLLoss
from grouprl.algorithms.reward_transform.reward_transform import KLInReward
from grouprl.methods.card import Paper

ClipLow = Annotated[float, Field(ge=0, le=1)]
Spread = Literal["sample_std", "population_std"]
DualClip = Annotated[float, Field(gt=1)] | None

GRPO_PAPER = Paper(
    "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", "2402.03300", 2024
)
PPO_PAPER = Paper("Proximal Policy Optimization Algorithms", "1707.06347", 2017)
FISHER_PAPER = Paper(
    "Stochastic Policy Gradient Methods: Improved Sample Complexity for Fisher-non-degenerate Policies",
    "2302.01734",
    2023,
)
GPM_PAPER = Paper(
    "General Preference Modeling with Preference Representations for Aligning Language Models", "2410.02197", 2024
)

CLIPS = ("clip_low", "clip_high")
GROUP = ("scale", "eps", "alone")
KL = ("kl_coef", "kl_estimator")
CRITIC = ("gamma", "lam", "whiten", "value_coef", "value_clip")
"""Settings of grpo, and of ppo, that belong together, for entries that keep only these of such a base."""

SCALE = "GRPO divides by the standard deviation; sample (n-1) as in TRL, verl and OpenRLHF"
EPS = "verl; the paper has none (TRL 1e-4, OpenRLHF 1e-9)"
ALONE = "a group of one has nothing to be compared with: 0 as in TRL and NeMo-RL (verl gives the raw reward)"
CLIP = "PPO, arXiv:1707.06347, section 6.1"
PPO_CLIP = dict.fromkeys(CLIPS, CLIP)
DUAL = "off: the paper has none (3.0 is verl's default, from arXiv:1912.09729)"
KL_ESTIMATOR = "GRPO, arXiv:2402.03300, eq. 4; the exponent of k3 is held at 20 nats, with its slope"
KL_NEED = "a reference model when kl_coef is above 0"


def in_the_update(base: str) -> str:
    """Return a sentence that `prepare` and `loss` without the part `update` are those of `base`."""
    return (
        f"It acts in the optimiser steps (the part update): called as a library, prepare and loss alone are {base}. "
        "prepare warns of it; grouprl's trainer takes the steps."
    )


def kl_terms(coef: float, estimator: Estimator) -> tuple[KLLoss, ...]:
    """Return the KL loss term of `coef`, or nothing when it is 0, so that no reference model is needed."""
    return (KLLoss(coef=coef, estimator=estimator),) if coef > 0 else ()


def kl_in_reward(coef: float, estimator: ValueEstimator) -> tuple[KLInReward, ...]:
    """Return the KL penalty on each token's reward, or nothing when `coef` is 0."""
    return (KLInReward(coef=coef, estimator=estimator),) if coef > 0 else ()
