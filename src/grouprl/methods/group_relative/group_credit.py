"""Other comparisons of a group's rewards: by component, with the second best, with a baseline for each position."""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.advantage.decoupled_components import DecoupledComponents
from grouprl.algorithms.advantage.papers.best_of_group import BestOverSecond
from grouprl.algorithms.advantage.papers.token_baseline import TokenBaseline
from grouprl.algorithms.advantage_transform.advantage_transform import Whiten
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.method import Method
from grouprl.core.levels import Alone
from grouprl.core.numbers import NonNegative
from grouprl.methods.card import Card, Golden, Paper
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, PPO_CLIP

GDPO_PAPER = Paper(
    "GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization",
    "2601.05242",
    2026,
)
PASSK_PAPER = Paper(
    "Optimizing Language Models for Inference Time Objectives using Reinforcement Learning", "2503.19595", 2025
)
OTB_PAPER = Paper("The Optimal Token Baseline: Variance Reduction for Long-Horizon LLM-RL", "2602.07078", 2026)


def gdpo(
    base: Method,
    eps: NonNegative,
    alone: Alone,
    weights: dict[str, float] | None = None,
    batch_scale: bool = True,
) -> Method:
    """Compose GDPO.

    GRPO's clipped loss with the sum of component-wise group advantages, normalised over the batch's completions.
    """
    whiten = Whiten(key="batch", count="sequence", variance="sample", eps=eps, eps_in="std")
    return base.with_parts(
        advantage=DecoupledComponents(weights=weights or {}, eps=eps, alone=alone),
        advantage_transform=(whiten,) if batch_scale else (),
    )


entry(
    "gdpo",
    gdpo,
    Card(
        title="Group reward-Decoupled Normalization Policy Optimization",
        papers=[GDPO_PAPER],
        summary="Judge each component of the reward in its group by itself, add them up, and normalise over the batch.",
        formula="L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t) A_i),  A = (S - mean_B S)/(std_B S + eps),  "
        "S_i = Σ_k w_k (r_ik - mean_g r_k)/(std_g r_k + eps)",
        defaults={
            "weights": "every component of the reward, weight 1; a reward without components is its own only one",
            "batch_scale": "on: the paper normalises the sum over the batch",
            **PPO_CLIP,
        },
        differs=["A component without spread in a group adds exactly 0 there."],
        reduces=[],
        needs=["a reward of named components", "at least two completions per prompt"],
        confidence="partly",
        uncertain="the paper was not read: the formula is TRL's normalize_then_sum and verl's gdpo, which agree on it",
        source="TRL 1.16.0 grpo_trainer.py, verl 0.9.1 core_algos.py, both run against this",
        golden=[
            Golden(
                rewards=[2, 1, 0, 0],
                fields={"rewards.accuracy": [1.0, 0.0, 0.0, 0.0], "rewards.format": [1.0, 1.0, 0.0, 0.0]},
                settings={"batch_scale": False},
                advantage=[2.36602090, 0.36602490, -1.36602290, -1.36602290],
                grad=[[-0.59150523], [-0.09150623], [0.34150573], [0.34150573]],
                why="accuracy 0.75/0.500001 and -0.25/0.500001, format ±0.5/0.5773513",
            ),
            Golden(
                rewards=[2, 1, 0, 0],
                fields={"rewards.accuracy": [1.0, 0.0, 0.0, 0.0], "rewards.format": [1.0, 1.0, 0.0, 0.0]},
                settings={"weights": {"accuracy": 0.0, "format": 3.0}},
                advantage=[0.86602512, 0.86602512, -0.86602512, -0.86602512],
                why="2.5980717 on both sides of 0, divided by their spread 2.9999948 + 1e-6: the weight cancels",
            ),
        ],
    ),
    base="grpo",
    keeps=CLIPS,
)


def passk(
    base: Method,
    eps: NonNegative,
    scale: Literal["none", "sample_std", "population_std"] = "none",
) -> Method:
    """Compose the pass@k method.

    Mean over completions of PPO's clipped loss; A is the best reward minus the second best for the group's best
    completion, and 0 for the others.
    """
    return base.with_parts(
        advantage=BestOverSecond(scale=scale, eps=eps),
    )


entry(
    "passk",
    passk,
    Card(
        title="Pass@k by the best of the group",
        papers=[PASSK_PAPER],
        summary="Credit only the best completion of a group, by how far it beats the second best: pass@k is the goal.",
        formula="L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t) A_i),  A_i = [R_i = max_g R] (max_g R - second_g R)",
        defaults={
            "scale": "none, as published; verl divides by the standard deviation of the group",
            **PPO_CLIP,
        },
        differs=[
            "k is the group size: the best reward of the group is the goal.",
            "A completion alone in its group gets 0; verl refuses such a group.",
        ],
        reduces=[],
        needs=["at least two completions per prompt"],
        confidence="partly",
        uncertain="the paper was not read: the advantage is verl's grpo_passk, which names it",
        source="verl 0.9.1 core_algos.py (grpo_passk), run against this",
        golden=[
            Golden(
                rewards=[1.0, 0.25, 0.0, 3.0, 3.0],
                lengths=[2, 1, 1, 1, 1],
                groups=[0, 0, 0, 1, 1],
                advantage=[0.75, 0.0, 0.0, 0.0, 0.0],
                grad=[[-0.075, -0.075], [0.0], [0.0], [0.0], [0.0]],
                why="1 beats 0.25 by 0.75; in the second group two are best, so neither is missed",
            ),
        ],
        notes=["With rewards 0 and 1 only a group with exactly one right completion has a gradient."],
    ),
    base="grpo",
    keeps=CLIPS,
)


def otb(base: Method, zero_tail: bool = True, eps: NonNegative = 1e-8) -> Method:
    """Compose the optimal token baseline.

    Token mean of PPO's clipped loss; A_t the return from t on minus the group's weighted mean return at position t.
    """
    return base.with_parts(
        advantage=TokenBaseline(eps=eps, zero_tail=zero_tail),
        aggregate=TokenMean(),
    )


entry(
    "otb",
    otb,
    Card(
        title="Optimal Token Baseline",
        papers=[OTB_PAPER],
        summary="A baseline for each position of a group, weighted by squared gradient norms up to there.",
        formula="L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_it, clip(ρ_t) A_it),  "
        "A_it = G_it - Σ_j G_jt W_jt / (Σ_j W_jt + eps),  W_t = Σ_{s≤t} (1 - 2π_s + Σ_a π_s(a)²)",
        defaults={
            "zero_tail": "on, as in verl: past the second longest completion there is no one to compare with",
            "eps": "verl: 1e-8",
            **PPO_CLIP,
        },
        differs=["Positions count a completion's own tokens: tool output between them is passed over."],
        reduces=[],
        needs=["at least two completions per prompt", "the policy's distributions (a pass over the completions)"],
        confidence="partly",
        uncertain="the paper was not read: the formula is verl's optimal_token_baseline",
        source="verl 0.9.1 core_algos.py (optimal_token_baseline), run against this",
        golden=[
            Golden(
                rewards=[1.0, 0.0],
                lengths=[2, 1],
                fields={"stats.collision": [[0.5, 0.3], [0.7]]},
                advantage=[[0.55785423, 1.0], [-0.44214577]],
                grad=[[-0.18595141, -0.33333333], [0.14738192]],
                why="π = 0.3678794: W = 0.7642411 and 0.9642411, B = 0.7642411/1.7284822; the second token is alone",
            ),
        ],
    ),
    base="grpo",
    keeps=CLIPS,
)
