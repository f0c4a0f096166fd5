"""Teams that improve against or for each other: a proposer and its solver, a coach and its player."""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.advantage.per_agent import RoleRelative
from grouprl.algorithms.advantage_transform.papers.late_agent import LateAgent
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.augment.papers.majority_vote import MajorityVote
from grouprl.algorithms.method import Method
from grouprl.algorithms.refill.papers.refills import EpisodeBand
from grouprl.algorithms.regularize.kl import Estimator
from grouprl.algorithms.regularize.papers.agent_entropy import AgentEntropy
from grouprl.algorithms.regularize.regularize import KLLoss
from grouprl.algorithms.update.papers.coach_after_player import CoachAfterPlayer
from grouprl.core.levels import Alone, Scale
from grouprl.core.numbers import Count, NonNegative, Positive, Share, Whole
from grouprl.methods.card import Card, Golden, Paper
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIP, CLIPS, GROUP, KL, KL_NEED, PPO_CLIP, in_the_update


def ssp(
    base: Method,
    scale: Scale,
    eps: NonNegative,
    alone: Alone,
    proposer: Literal["batch", "group"] = "batch",
    solver_start: Whole = 5,
    clip_high: Positive = 0.285,
) -> Method:
    """Compose search self-play: the solver is judged within each problem, the proposer among its proposals."""
    return base.with_parts(
        advantage=RoleRelative(
            keys=("episode", proposer), scale=scale, eps=eps, alone=alone, whitened=(1,) if proposer == "batch" else ()
        ),
        advantage_transform=(LateAgent(agent=0, start=solver_start),) if solver_start else (),
        aggregate=TokenMean(),
    )


entry(
    "ssp",
    ssp,
    Card(
        title="Search self-play",
        papers=[
            Paper(
                "Search Self-play: Pushing the Frontier of Agent Capability without Supervision",
                "2510.18821",
                2025,
            )
        ],
        summary="A proposer is rewarded for problems that the solver fails at, the solver for solving them.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε_low, 1+ε_high) A_i);  solver: (R - mean R)/(std R + eps) "
            "over attempts at the same problem;  proposer: (R - mean R)/sqrt(var R + 1e-8) over the tokens of all "
            "proposals, R = 1 - p"
        ),
        defaults={
            "proposer": "the authors' code: REINFORCE++, over all tokens of the batch; group is its other choice, GRPO",
            "solver_start": "the authors' code: 5 steps",
            "clip_low": CLIP,
            "clip_high": "the authors' code: 0.285",
        },
        differs=[
            "The rewards 1 - p, 4p(1-p) and -1 for an invalid problem are the environment's (task propose).",
            "Invalid problems have no attempts; the authors fill up with earlier valid ones from a pool.",
        ],
        needs=["at least two completions per prompt", "a solver and a proposer, in this order"],
        source="Alibaba-Quark/SSP ssp_ray_trainer.py, rl_config.yaml, by our notes on it",
        golden=[
            Golden(
                rewards=[1, 0, 1, 0.5],
                groups=[0, 0, 1, 1],
                fields={"agent_b": [0, 0, 1, 1], "keys.episode": [0, 0, 0, 1], "step": 5},
                advantage=[0.70710578, -0.70710578, 0.70710675, -0.70710675],
                grad=[[-0.17677645], [0.17677645], [-0.17677669], [0.17677669]],
                why="two attempts at one problem, and two proposals: ±1/√2 each, with eps beside 0.70711, and inside "
                "the root of 0.125 + 1e-8",
            ),
            Golden(
                rewards=[1, 0.5],
                lengths=[3, 1],
                groups=[0, 1],
                fields={"agent_b": [1, 1], "keys.episode": [0, 1], "step": 5},
                advantage=[0.49999999, -1.49999997],
                grad=[[-0.125] * 3, [0.375]],
                why="REINFORCE++ counts tokens: mean (3·1 + 0.5)/4 = 0.875, variance (3·0.125² + 0.375²)/3 = 0.0625",
            ),
            Golden(
                rewards=[1, 0, 1, 0.5],
                groups=[0, 0, 1, 1],
                fields={"agent_b": [0, 0, 1, 1], "keys.episode": [0, 0, 0, 1], "step": 4},
                advantage=[0.0, 0.0, 0.70710675, -0.70710675],
                why="the solver waits until step 5",
            ),
            Golden(
                rewards=[1, 1, 0, 1],
                fields={"agent_b": [0, 0, 0, 0], "keys.episode": [0, 0, 0, 1], "step": 0},
                settings={"scale": "none", "proposer": "group", "solver_start": 0},
                advantage=[0.333333333, 0.333333333, -0.666666667, 0.0],
                why="prime-rl's hierarchical GRPO: three attempts at one problem; one at another has no company",
            ),
        ],
        notes=[
            "With scale none, proposer group and solver_start 0 it is prime-rl's hierarchical GRPO.",
            "Changed after 0.1: the proposer was standardised over rows; scale and eps are the solver's (and the "
            "proposer's with proposer=group).",
        ],
    ),
    base="grpo",
    keeps=(*GROUP, "clip_low"),
)


def cpmobius(
    base: Method,
    scale: Scale,
    eps: NonNegative,
    alone: Alone,
    kl_coef: NonNegative,
    kl_estimator: Estimator,
    low: Share = 0.2,
    high: Share = 0.8,
    exam: Count = 64,
    completions: Whole = 0,
    reward_scale: Positive = 100.0,
    falls: Whole = 15,
    falls_from: Whole = 100,
    coach_entropy: NonNegative = 0.01,
) -> Method:
    """Compose CPMobius: majority labels, problems of middling difficulty, the coach's update after the player's."""
    kl = (KLLoss(coef=kl_coef, estimator=kl_estimator),) if kl_coef else ()
    entropy = (AgentEntropy(coef=coach_entropy, agent=1),) if coach_entropy else ()
    return base.with_parts(
        advantage=RoleRelative(keys=("episode", "group"), scale=scale, eps=eps, alone=alone),
        aggregate=TokenMean(),
        regularize=(*kl, *entropy),
        augment=(MajorityVote(),),
        refill=EpisodeBand(low=low, high=high),
        update=CoachAfterPlayer(
            exam=exam, completions=completions, scale=reward_scale, falls=falls, falls_from=falls_from
        ),
    )


entry(
    "cpmobius",
    cpmobius,
    Card(
        title="CPMobius: a coach rewarded for what its player learns",
        papers=[
            Paper(
                "CPMobius: Iterative Coach-Player Reasoning for Data-Free Reinforcement Learning",
                "2602.02979",
                2026,
            )
        ],
        summary="A coach sets problems, a player is rewarded for agreeing with itself, the coach for the "
        "player's gain.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε_low, 1+ε_high) A_i);  player: "
            "(R - mean R)/(std R + eps) over its attempts at one problem, R = 1[completion = majority];  coach, "
            "after the "
            "player's update: A = 100·(acc now - acc before) on held-out prompts"
        ),
        defaults={
            "low": "the authors' code: 0.2",
            "high": "the authors' code: 0.8",
            "exam": "the authors take a small benchmark: 64 prompts here",
            "completions": "0: greedy completions",
            "reward_scale": "the authors' code: 100",
            "falls": "the authors' code: 15",
            "falls_from": "the authors' code: step 100",
            "coach_entropy": "the authors' code: 0.01",
            **PPO_CLIP,
            "kl_coef": "off, so that no reference is needed; the authors' code: 0.001 for the player",
        },
        differs=[
            "Coach and player sample at one temperature; the authors take 0.9 and 0.6.",
            "The coach's other rewards (a moving average of accuracies, products with the player's mean reward, the "
            "variance of the player's rewards) are not offered.",
            "The coach learns from the problems that stay in the band alone.",
            "Sampling takes at most ten rounds; the authors' continues until the batch is full.",
            "Going back to the best weights leaves the optimiser's moments as they are.",
        ],
        needs=[
            "a player and a coach, in this order, with several attempts at each problem (task propose)",
            "batch.group_size 1: every problem is proposed once",
            "model.agents: separate, so that the coach's update leaves the player's accuracy as it is",
            KL_NEED,
        ],
        source="thunlp/CPMobius ray_trainer.py, run_qwen2.5_math_1.5b.sh, by our notes on it",
        golden=[
            Golden(
                rewards=[1, 1, 0, 0],
                groups=[0, 0, 0, 1],
                fields={"agent_b": [0, 0, 0, 1], "keys.episode": [0, 0, 0, 0]},
                advantage=[0.577349268, 0.577349268, -1.154698536, 0.0],
                settings={"coach_entropy": 0.0},
                grad=[[-0.144337317], [-0.144337317], [0.288674634], [0.0]],
                why="two of three attempts agree: (1 - 2/3)/(0.57735 + 1e-6); the coach is judged after the player's "
                "update",
            )
        ],
        notes=[in_the_update("the player's alone, the coach without advantage")],
        recommended={"group": 1, "learning_rate": 1e-6},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP, *KL),
)
