"""Offline policy gradients on the stored completions that are better than the reference's: A-LoL."""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.advantage.advantage import RawReward
from grouprl.algorithms.advantage.known_baseline import KnownBaseline
from grouprl.algorithms.aggregate.aggregate import SequenceSum
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.papers.reference_ratio import ReferenceRatio
from grouprl.algorithms.pretrain.initial_completions import InitialCompletions
from grouprl.algorithms.prune.papers.positive import PositiveAdvantages
from grouprl.core.numbers import Count, PositiveShare
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry

CODE = "abaheti95/LoL-RL, train_generation_task_with_off_policy_PG.py"


def a_lol(
    ratio: Literal["sequence", "token", "none"] = "sequence",
    clip: PositiveShare = 0.9,
    value: Literal["initial", "none"] = "initial",
    completions: Count = 8,
) -> Method:
    """Compose A-LoL: likelihood of the completions above the reference's value, by how far above they are."""
    initial = value == "initial"
    return Method(
        advantage=KnownBaseline() if initial else RawReward(),
        prune=(PositiveAdvantages(),),
        objective=ReferenceRatio(ratio=ratio, clip=clip),
        aggregate=SequenceSum(),
        pretrain=(InitialCompletions(completions=completions, beta=0.0),) if initial else (),
    )


entry(
    "a_lol",
    a_lol,
    Card(
        title="Advantage leftover lunch",
        papers=[Paper("Improving Language Models with Advantage-based Offline Policy Gradients", "2305.14718", 2023)],
        summary="Imitates the completions that are better than the reference's mean, the more the better they are.",
        formula=(
            "L = -mean over y with A > 0 of A·sg[clip(π(y)/π_ref(y), 1-ε, 1+ε)]·Σ_t log π(y_t),  A = R - V(x),  "
            "V(x) = mean reward of the reference's completions to x"
        ),
        defaults={
            "ratio": f"{CODE}: sequence (A-LoL); token is its A-LoL seq., none its A-LoL ref. free",
            "clip": f"{CODE}: 0.9",
            "value": "the paper: the reference's value; none is its R-LoL",
            "completions": "8; the paper fits a value head instead",
        },
        differs=[
            "V(x) is the mean reward of `completions` completions to each prompt before training; the paper fits a "
            "small head on the frozen reference's hidden states to rewards of validation prompts. Of a task with "
            "stored rows these are the stored rows of the prompt, so that one row a prompt has no advantage: then "
            "take value none.",
            "Rows are drawn evenly; the authors' good_priority draws them in proportion to A as well.",
            "Its KL variant is ratio none with regularize: [{part: kl_loss, estimator: k1}].",
        ],
        reduces=[
            Reduction(
                "reinforce",
                ["binary_rewards"],
                settings={"ratio": "none", "value": "none"},
                scale=None,
                why="what earned 1 is imitated; the mean is over that alone",
            )
        ],
        needs=["a finite set of prompts (data.prompts)", "a reference model, unless ratio is none"],
        source=f"{CODE}, README",
        golden=[
            Golden(
                rewards=[1, 0.75, 0],
                lengths=[2, 1, 1],
                groups=[0, 1, 1],
                log_ratio=[[0.3, 0.1], [1.0], [0.2]],
                fields={"ref_bt": [[-1.0, -1.0], [-1.0], [-1.0]], "past.baseline": [0.5, 0.25, 0.25]},
                advantage=[0.5, 0.5, 0.0],
                loss=0.59672988,
                grad=[[-0.37295617, -0.37295617], [-0.475], [0.0]],
                why="ρ = e^0.4 = 1.49182 and e^1, held at 1.9: (0.5·1.49182·1.6 + 0.5·1.9·0)/2",
            ),
            Golden(
                rewards=[1, 0.75],
                lengths=[2, 1],
                groups=[0, 1],
                log_ratio=[[0.3, 0.1], [0.2]],
                fields={"past.baseline": [0.5, 0.25]},
                settings={"ratio": "none"},
                advantage=[0.5, 0.5],
                loss=0.6,
                grad=[[-0.25, -0.25], [-0.25]],
                why="(0.5·1.6 + 0.5·0.8)/2",
            ),
        ],
        notes=["A step in which no completion is above its value has loss 0."],
        recommended={"group": 1, "batch": 16},
    ),
)
