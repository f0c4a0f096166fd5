"""Methods in which the first token of a completion chooses how to answer: with a long thought or without."""

from __future__ import annotations

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.aggregate.papers.control import ControlToken
from grouprl.algorithms.method import Method
from grouprl.core.levels import Alone
from grouprl.core.numbers import NonNegative
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, KL, KL_NEED, PPO_CLIP


def degrpo(base: Method, alone: Alone, control_coef: NonNegative = 1e-3) -> Method:
    """Compose DeGRPO.

    PPO's clip with A = R - mean_g; the mean over first tokens counts 0.001 times, that over all later ones once, as in
    the paper; its KL of 0.001 is off by default.
    """
    return base.with_parts(
        advantage=Relative("group", center="mean", scale="none", alone=alone),
        aggregate=ControlToken(coef=control_coef),
    )


entry(
    "degrpo",
    degrpo,
    Card(
        title="Decoupled GRPO (Thinkless)",
        papers=[Paper("Thinkless: LLM Learns When to Think", "2505.13379", 2025)],
        summary=(
            "The first token chooses whether to think; its loss has a weight that no completion's length can drown."
        ),
        formula=(
            "L = α/B Σ_i l_{i,1} + 1/Σ(|y_i|-1) Σ_i Σ_{t>1} l_{i,t},  l_t = -min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  "
            "A_i = R_i - mean_g R"
        ),
        defaults={
            "control_coef": "the paper: α = 0.001; larger switches modes faster",
            **PPO_CLIP,
            "kl_coef": "off, so that no reference is needed; the paper has 0.001",
        },
        differs=[
            "The KL to the reference is off by default; the paper has 0.001 (k3).",
            "The reward that makes a choice worth while belongs to the task: 1 for right and short, 0.5 for right with "
            "thinking, -1 for wrong or malformed.",
        ],
        reduces=[
            Reduction(
                "dr_grpo",
                ["equal_lengths"],
                settings={"control_coef": 0.25},
                scale=None,
                why="completions of 5 tokens: α = 1/4 gives the first token the weight of every other",
            ),
        ],
        needs=["at least two completions per prompt", "completions whose first token chooses the mode", KL_NEED],
        source="VainF/Thinkless",
        golden=[
            Golden(
                rewards=[1, 0.5, -1, -1],
                lengths=[2, 3, 1, 2],
                settings={"control_coef": 0.4},
                advantage=[1.125, 0.625, -0.875, -0.875],
                loss=-0.375,
                grad=[[-0.1125, -0.28125], [-0.0625, -0.15625, -0.15625], [0.0875], [0.0875, 0.21875]],
                why="first tokens weigh 0.4/4 and their A sum to 0; the four later ones 1/4: -(1.125 + 1.25 - 0.875)/4",
            )
        ],
        recommended={"group": 8, "learning_rate": 1e-6, "temperature": 0.6, "kl_coef": 1e-3},
    ),
    base="grpo",
    keeps=(*CLIPS, *KL),
)
