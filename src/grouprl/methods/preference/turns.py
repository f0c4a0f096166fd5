"""Preferences between episodes of many turns: DMPO's discounted turns, SDPO's segments."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.link.link import Logistic
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.pair import Pair
from grouprl.algorithms.score.papers.turns import DifferingTurns, DiscountedTurns
from grouprl.core.numbers import Positive, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry

ONLINE = (
    "Pairs are all episodes of a group with different rewards, sampled by the policy as it is; the authors "
    "collect pairs "
    "beforehand and train offline."
)
NEEDS = ["a reference model", "at least two completions per prompt", "an environment that is acted in over turns"]


def dmpo(beta: Positive = 0.1, gamma: Share = 0.7) -> Method:
    """Compose DMPO on pairs of the group."""
    return Method(
        advantage=Relative("group", scale="none"),
        objective=Pair(score=DiscountedTurns(gamma=gamma), link=Logistic(beta=beta)),
        aggregate=SequenceMean(),
    )


entry(
    "dmpo",
    dmpo,
    Card(
        title="DMPO: direct multi-turn preference optimisation",
        papers=[Paper("Direct Multi-Turn Preference Optimization for Language Agents", "2406.14868", 2024)],
        summary="A preference loss on pairs of episodes in which early turns weigh more.",
        formula=(
            "L = mean over pairs of -log σ(β[Σ_k φ(k,T_w) d_k(w) - Σ_k φ(k,T_l) d_k(l)]),  "
            "φ(k,T) = γ^k (1 - γ^{T-k})/(1 - γ^T),  d_k = Σ_{t in turn k} log π/π_ref"
        ),
        defaults={
            "beta": "the authors' script: 0.1",
            "gamma": "the authors' default: 0.7",
        },
        differs=[ONLINE],
        reduces=[
            Reduction(
                "sdpo_segment",
                ["one_turn", "distinct_states"],
                why="one turn weighs 1 for every discount, and is the whole segment: both are DPO",
            ),
        ],
        needs=NEEDS,
        source="the authors' repository: dmpo_trainer_efficient.py, run_dmpo.sh",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 2],
                log_ratio=[[0.3, 0.3], [0.0, -0.3]],
                fields={"turn_bt": [[0, 1], [0, 1]], "ref_bt": [[-1.0, -1.0], [-1.0, -1.0]]},
                settings={"gamma": 0.5},
                advantage=[0.5, -0.5],
                loss=0.66845965,
                grad=[[-0.04875026, -0.01625009], [0.04875026, 0.01625009]],
                why="φ = 1 and .5·.5/.75 = ⅓: margin .3 + .1 + .1 = .5, -log σ(.05); slopes .1·σ(-.05)·φ",
            )
        ],
        recommended={"learning_rate": 1e-6, "epochs": 3},
        notes=["At γ = 1 turn k weighs (T - k)/T: with more than one turn that is not DPO."],
    ),
)


def sdpo_segment(beta: Positive = 0.1, turns: Annotated[int, Field(ge=1)] | None = None) -> Method:
    """Compose SDPO on pairs of the group."""
    return Method(
        advantage=Relative("group", scale="none"),
        objective=Pair(score=DifferingTurns(turns=turns), link=Logistic(beta=beta)),
        aggregate=SequenceMean(),
    )


entry(
    "sdpo_segment",
    sdpo_segment,
    Card(
        title="SDPO: segment-level direct preference optimisation",
        papers=[Paper("SDPO: Segment-Level Direct Preference Optimization for Social Agents", "2501.01821", 2025)],
        summary="A preference loss on the turns in which two episodes differ, equally many of each.",
        formula=(
            "L = mean over pairs of -log σ(β Σ_{e≤k<f} [d_k(w) - d_k(l)]),  e the turn in which they part,  "
            "d_k = Σ_{t in turn k} log π/π_ref"
        ),
        defaults={
            "beta": "customary for DPO: 0.1",
            "turns": "none: to the end of the shorter episode; the paper lets a language model choose the last turn",
        },
        differs=[
            ONLINE,
            "The segment begins where the two part, not where a language model finds the first error, and has a fixed "
            "length. Pairs that part late come from episodes that branch (augment: entropy_branching).",
            "Turns before the segment are in the pair's context and cancel, as their gradient does in the paper.",
        ],
        reduces=[],
        needs=[*NEEDS, "keys of its states"],
        source="the authors' repository: SDPO/README.md, sotopia/dpo/auto_tail.py",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 3],
                log_ratio=[[0.3, 0.2], [0.3, -0.1, 0.7]],
                fields={
                    "turn_bt": [[0, 1], [0, 1, 2]],
                    "token_bt": [[5, 6], [5, 7, 8]],
                    "state_bs": [[0, 1, -1], [0, 1, 2]],
                    "ref_bt": [[-1.0, -1.0], [-1.0, -1.0, -1.0]],
                },
                advantage=[0.5, -0.5],
                loss=0.67825968,
                grad=[[0.0, -0.04925006], [0.0, 0.04925006, 0.0]],
                why="they part in the second turn, and one ends with it: margin .2 + .1, -log σ(.03); slope .1·σ(-.03)",
            )
        ],
        notes=["turns = 1 compares single turns; no limit compares sessions from where they part."],
    ),
)
