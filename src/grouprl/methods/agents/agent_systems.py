"""Losses of large agent-training systems: INTELLECT-2's two-sided clip, MaxRL, running baselines."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.advantage.known_baseline import KnownBaseline
from grouprl.algorithms.advantage.papers.mean_scaled import MeanScaled
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.augment.papers.running_baseline import RunningBaseline
from grouprl.algorithms.filter.filter import MixedGroups
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import Clipped
from grouprl.algorithms.refill.refill import DynamicSampling
from grouprl.algorithms.regularize.kl import Estimator
from grouprl.algorithms.regularize.regularize import EntropyBonus
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, KL_NEED, PPO_CLIP, ClipLow, DualClip, kl_terms

TWO = "at least two completions per prompt"
PRIME_RL = "PrimeIntellect-ai/prime-rl documentation, by our notes on it"


def intellect2(
    base: Method,
    clip_low: ClipLow,
    clip_high: Positive,
    kl_estimator: Estimator,
    delta: DualClip = 4.0,
    kl_coef: NonNegative = 0.001,
    entropy_coef: NonNegative = 1e-4,
    max_rounds: Annotated[int, Field(ge=1)] = 10,
) -> Method:
    """Compose GRPO with the two-sided clip; a δ above 1 + ε is the dual clip of `clipped`."""
    entropy = (EntropyBonus(coef=entropy_coef),) if entropy_coef > 0 else ()
    return base.with_parts(
        filter=(MixedGroups(by="reward"),),
        objective=Clipped(clip_low=clip_low, clip_high=clip_high, dual_clip=delta),
        aggregate=TokenMean(),
        regularize=(*kl_terms(kl_coef, kl_estimator), *entropy),
        refill=DynamicSampling(max_rounds=max_rounds, by="reward"),
    )


entry(
    "intellect2",
    intellect2,
    Card(
        title="INTELLECT-2: GRPO with a two-sided clip",
        papers=[
            Paper(
                "INTELLECT-2: A Reasoning Model Trained Through Globally Decentralized Reinforcement Learning",
                "2505.07291",
                2025,
            )
        ],
        summary="GRPO whose loss is bounded also for wrong completions that became likelier: ratios count δ at most.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(min(ρ_t, δ) A_i, clip(ρ_t, 1-ε, 1+ε) A_i) + β·KL - c_H·H,  "
            "A_i = (R_i - mean_g R) / (std_g R + eps); groups whose rewards differ only"
        ),
        defaults={
            "delta": "the paper: 4",
            "clip_low": "the paper: 0.2",
            "clip_high": "the paper: 0.2",
            "kl_coef": "the paper: 0.001",
            "kl_estimator": "our choice: k3, as GRPO",
            "entropy_coef": "the paper, from memory: 1e-4",
            "max_rounds": "our choice: as dapo",
        },
        differs=[
            "Only the loss and the filter of groups without gradient: the reward for a target length in the prompt, "
            "the filter by a small model's pass@8, and everything decentralised are not part of it.",
        ],
        reduces=[
            Reduction(
                "dapo",
                ["mixed_groups"],
                settings={"delta": None, "kl_coef": 0.0, "entropy_coef": 0.0},
                other={"clip_high": 0.2},
                why="an unbounded δ leaves PPO's clip",
            ),
        ],
        needs=[TWO, KL_NEED],
        confidence="partly",
        uncertain="The entropy coefficient and the KL estimator.",
        source="TRL paper_index.md (δ, ε, β, learning rate) and a trainer built on TRL for the exact min",
        golden=[
            Golden(
                rewards=[2, 0],
                log_ratio=[[0.0], [2.302585092994046]],
                settings={"scale": "none", "kl_coef": 0.0, "entropy_coef": 0.0},
                advantage=[1.0, -1.0],
                loss=1.5,
                grad=[[-0.5], [0.0]],
                why="the wrong completion's ratio is 10: it costs 4, not 10 (a dual clip of 3: 3), and has no gradient",
            ),
            Golden(
                rewards=[2, 0],
                log_ratio=[[0.0], [1.0986122886681098]],
                settings={"scale": "none", "kl_coef": 0.0, "entropy_coef": 0.0},
                loss=1.0,
                grad=[[-0.5], [1.5]],
                why="a ratio of 3 is below δ: as in GRPO",
            ),
            Golden(
                rewards=[0.6, 0.2, 1, 1],
                groups=[0, 0, 1, 1],
                fields={"correct_b": [False, False, True, True]},
                settings={"scale": "none", "kl_coef": 0.0, "entropy_coef": 0.0},
                advantage=[0.2, -0.2, 0.0, 0.0],
                grad=[[-0.1], [0.1], [0.0], [0.0]],
                why="nobody is right in the first group, yet its rewards differ: it stays; the second has no spread",
            ),
        ],
        notes=[
            "Changed after 0.1: groups with graded rewards of which none is right stay; only equal rewards are left "
            "out."
        ],
        recommended={"learning_rate": 3e-7, "group": 16, "grad_clip": 0.1},
    ),
    base="grpo",
    keeps=(*CLIPS, "scale", "eps"),
)


def maxrl(base: Method, eps: NonNegative) -> Method:
    """Compose MaxRL with PPO's clip."""
    return base.with_parts(
        advantage=MeanScaled(eps=eps),
    )


entry(
    "maxrl",
    maxrl,
    Card(
        title="MaxRL: maximum likelihood reinforcement learning",
        papers=[Paper("Maximum Likelihood Reinforcement Learning", "2602.02710", 2026)],
        summary="Rewards in units of their group's mean, so that the likelihood of being right is maximised.",
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  A_i = (R_i - mean_g R)/(mean_g R + eps)"
        ),
        defaults={
            "eps": "our choice: 1e-6, as verl's for GRPO",
            **PPO_CLIP,
        },
        differs=[
            "Groups without a correct completion have no gradient, as in the formula's limit; rewards are 0 or above."
        ],
        reduces=[
            Reduction(
                "grpo", ["one_group", "binary_rewards"], other={"scale": "none"}, scale=None, why="the mean is a factor"
            ),
        ],
        needs=[TWO, "rewards that are not negative"],
        confidence="partly",
        uncertain="eps, the loss around the advantage, and the aggregation.",
        source=f"{PRIME_RL}; an analysis published with the paper's models",
        golden=[
            Golden(
                rewards=[1, 0, 0, 0],
                lengths=[2, 1, 1, 1],
                settings={"eps": 0.0},
                advantage=[3.0, -1.0, -1.0, -1.0],
                loss=0.0,
                grad=[[-0.375] * 2, [0.25], [0.25], [0.25]],
                why="the mean is ¼: .75/.25 and -.25/.25; every completion weighs ¼",
            )
        ],
        notes=["Where one completion in n is right, its advantage is n - 1; GRPO's is about √n."],
    ),
    base="grpo",
    keeps=CLIPS,
)


def rae(base: Method, decay: Annotated[float, Field(ge=0, lt=1)] = 0.95) -> Method:
    """Judge each agent's rewards by their own running mean."""
    return base.with_parts(
        advantage=KnownBaseline(),
        augment=(RunningBaseline(decay=decay),),
    )


entry(
    "rae",
    rae,
    Card(
        title="RAE: role-conditioned advantage estimation",
        papers=[
            Paper(
                "SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn "
                "Reinforcement Learning",
                "2506.24119",
                2025,
            )
        ],
        summary="Each agent's rewards against a running mean of its own: a baseline for self-play, without groups.",
        formula="L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  A_i = R_i - b_agent,  "
        "b ← d·b + (1-d)·R after the step",
        defaults={
            "decay": "prime-rl: d = 0.95",
            **PPO_CLIP,
        },
        differs=["One environment per run: the baseline is kept for each agent, not for each (game, agent)."],
        reduces=[],
        needs=["a task with agents; without, it is a running mean over all completions"],
        confidence="partly",
        uncertain="The loss around the advantage: prime-rl's own is another one today.",
        source=PRIME_RL,
        golden=[
            Golden(
                rewards=[1, -1],
                lengths=[1, 2],
                fields={"past.baseline": [0.25, -0.5]},
                advantage=[0.75, -0.5],
                loss=-0.125,
                grad=[[-0.375], [0.125, 0.125]],
                why="1 - .25 and -1 + .5; every completion weighs ½",
            )
        ],
        notes=["With a decay of 0 the baseline is the reward that came last."],
    ),
    base="grpo",
    keeps=CLIPS,
)
