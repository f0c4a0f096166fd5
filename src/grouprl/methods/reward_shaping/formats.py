"""Methods that reward the format of a completion: rare formats, or parallel blocks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.method import Method
from grouprl.algorithms.reward_transform.papers.formats import FormatDiversity, ParallelReward, Stage
from grouprl.core.numbers import NonNegative
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, GROUP, KL, KL_NEED, PPO_CLIP

TWO = "at least two completions per prompt"
GRPO_LOSS = "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i)"
AS_GRPO = "The loss around the advantage is GRPO's as published, with the mean of completions' means."


def ada_grpo(base: Method, bonus: NonNegative = 0.5) -> Method:
    """Compose Ada-GRPO.

    GRPO after each reward is multiplied by 1 + ½(G/F - 1)(1 + cos(πt/T)) for the F of G completions in its format; the
    paper's KL of 0.001 is off by default.
    """
    return base.with_parts(reward_transform=(FormatDiversity(bonus=bonus),))


entry(
    "ada_grpo",
    ada_grpo,
    Card(
        title="Adaptive GRPO (ARM)",
        papers=[Paper("ARM: Adaptive Reasoning Model", "2505.20258", 2025)],
        summary="GRPO with rewards scaled up for formats that are rare in the group, fading over the run.",
        formula=(
            f"{GRPO_LOSS} + β·KL,  A_i = (R_i - mean_g R)/(std_g R + eps),  "
            "R ← R·(1 + c(G/F - 1)(1 + cos(πt/T))),  F completions of the group in the same format"
        ),
        defaults={
            "bonus": "the paper: c = 0.5, so that the factor falls from G/F to 1",
            **PPO_CLIP,
            "eps": "TEAM-ARM/ARM: 1e-6",
            "kl_coef": "off, so that no reference is needed; the paper has 0.001",
        },
        differs=["The KL to the reference is off by default; the paper has 0.001.", AS_GRPO],
        reduces=[Reduction("grpo", ["binary_rewards"], settings={"bonus": 0.0}, why="every factor is 1")],
        needs=[
            TWO,
            "the format of each completion (keys.form, from 0; -1: none that is known) and the run's clock",
            "a policy that knows the formats: fine-tune it on all of them first",
            KL_NEED,
        ],
        source="TEAM-ARM/ARM core_algos.py",
        golden=[
            Golden(
                rewards=[1, 1, 0, 1],
                fields={"keys.form": [0, 0, 1, 2], "step": 0, "steps": 10},
                advantage=[0.0, 0.0, -1.224744121, 1.224744121],
                grad=[[0.0], [0.0], [0.30618603], [-0.30618603]],
                why="G/F = 2, 2, 4, 4 at the start: rewards 2, 2, 0, 4 with mean 2 and std 1.63299",
            ),
            Golden(
                rewards=[1] * 8,
                fields={"keys.form": [3, 3, 3, 3, 3, 3, 0, 0], "step": 0, "steps": 10},
                advantage=[-0.540061287] * 6 + [1.620183862] * 2,
                why=(
                    "all right, rewards 4/3 six times and 4 twice: a zero-variance group that now prefers the "
                    "rare format"
                ),
            ),
        ],
        recommended={"group": 8, "batch": 1024, "learning_rate": 1e-6, "kl_coef": 1e-3},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP, *KL),
)


def parallel_r1(
    base: Method,
    stage: Stage = "alternating",
    period: Annotated[int, Field(ge=1)] = 10,
    bonus_steps: Annotated[int, Field(ge=0)] = 2,
    with_block: float = 1.2,
    block_bonus: float = 0.5,
    wrong: float = -1.0,
) -> Method:
    """Compose Parallel-R1's reinforcement stage.

    GRPO on 1 / -1; in two of every ten steps correct completions with a parallel block get 1.2. `stage` chooses the
    paper's plain reward or that of its first data set; `period` and the settings after it act only in the stage that
    reads them.
    """
    reward = ParallelReward(
        stage=stage,
        period=period,
        bonus_steps=bonus_steps,
        with_block=with_block,
        block_bonus=block_bonus,
        wrong=wrong,
    )
    return base.with_parts(reward_transform=(reward,))


entry(
    "parallel_r1",
    parallel_r1,
    Card(
        title="Parallel-R1",
        papers=[Paper("Parallel-R1: Towards Parallel Thinking via Reinforcement Learning", "2509.07980", 2025)],
        summary="GRPO whose reward is larger, in some steps only, for correct completions that think in parallel.",
        formula=(
            f"{GRPO_LOSS},  A_i = (R_i - mean_g R)/(std_g R + eps),  R = 1 if right else -1;  "
            "in 2 of every 10 steps 1.2 if right with a well-formed parallel block"
        ),
        defaults={
            "stage": "the paper's alternating schedule; accuracy is its plain one, block that of the GSM8K stage",
            "period": "the paper: 10 steps",
            "bonus_steps": "the paper: 2 of them",
            "with_block": "the paper: 1.2",
            "block_bonus": "the paper's GSM8K stage: 0.5",
            "wrong": "the paper: -1",
            **PPO_CLIP,
        },
        differs=[
            "The bonus steps are the last of each period.",
            "Correct completions keep the task's reward (1 in the paper).",
            "Ordinary causal attention, the paper's 'seen' variant: parallel paths can read each other.",
            AS_GRPO,
        ],
        reduces=[
            Reduction("grpo", ["binary_rewards"], settings={"stage": "accuracy"}, why="1 and -1: the spread divides"),
        ],
        needs=[
            TWO,
            "keys.form above 0 where a completion holds a well-formed parallel block (but for stage accuracy)",
            "a policy that knows the tags: fine-tune it on them first",
        ],
        source="zhengkid/Parallel-R1",
        golden=[
            Golden(
                rewards=[1, 1, 0, 0],
                fields={"keys.form": [1, 0, 1, 0], "step": 8},
                advantage=[0.94635972, 0.781775421, -0.864067571, -0.864067571],
                grad=[[-0.23658993], [-0.195443855], [0.216016893], [0.216016893]],
                why="the ninth step pays: rewards 1.2, 1, -1, -1",
            ),
            Golden(
                rewards=[1, 1, 0, 0],
                fields={"keys.form": [1, 0, 1, 0], "step": 7},
                advantage=[0.866024654, 0.866024654, -0.866024654, -0.866024654],
                why="the eighth does not: 1, 1, -1, -1 with std 1.154701",
            ),
            Golden(
                rewards=[1, 1, 0, 0],
                fields={"keys.form": [1, 0, 1, 0]},
                settings={"stage": "block"},
                advantage=[1.050209181, 0.630125508, -0.630125508, -1.050209181],
                why="rewards 1.5, 1, -0.5, -1",
            ),
        ],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)
