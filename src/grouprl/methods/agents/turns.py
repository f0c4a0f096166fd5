"""Credit per turn (MT-GRPO) and per state (GiGPO)."""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.advantage.papers.turn_and_outcome import TurnAndOutcome
from grouprl.algorithms.advantage.turn_credit import TurnRelative
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.method import Method
from grouprl.core.levels import Scale
from grouprl.core.numbers import NonNegative, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, KL, KL_NEED, PPO_CLIP


def mt_grpo(base: Method, turn_weight: NonNegative = 1.0, eps: NonNegative = 1e-4) -> Method:
    """Judge the first turn by its own reward and the whole completion by its outcome."""
    return base.with_parts(
        advantage=TurnAndOutcome(turn_weight=turn_weight, eps=eps),
        aggregate=TokenMean(),
    )


entry(
    "mt_grpo",
    mt_grpo,
    Card(
        title="MT-GRPO: turn-level credit assignment",
        papers=[
            Paper(
                "Reinforcing Multi-Turn Reasoning in LLM Agents via Turn-Level Credit Assignment",
                "2505.11821",
                2025,
            )
        ],
        summary="The turn before the first tool result earns its own reward beside the outcome, each by its group.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t) + β·KL,  "
            "A_t = A_O + c·A_T before the first tool result, A_O after it,  "
            "A_X = (R_X - mean_g R_X) / (std_g R_X + eps)"
        ),
        defaults={
            "turn_weight": "the paper: c = 1",
            "eps": "the authors' code: 1e-4",
            **PPO_CLIP,
            "kl_coef": "the authors' settings: 0",
        },
        differs=[
            "Rewards and tools are the environment's; the outcome is all that is earned besides the first turn, since "
            "some environments pay it in the turn that answers."
        ],
        reduces=[
            Reduction(
                "grpo",
                ["equal_lengths", "no_turn_rewards"],
                other={"eps": 1e-4},
                why="without turn rewards only the outcome is left; token mean and completion mean agree",
            ),
        ],
        needs=["turns with rewards of their own (tool results between them)", KL_NEED],
        source="the authors' repository, by our notes on it: trainer, rubrics, example",
        golden=[
            Golden(
                rewards=[2, 1],
                lengths=[2, 2],
                fields={"turn_bt": [[0, 1], [0, 1]], "turn_reward_bs": [[1.0, 0.0], [0.0, 0.0]]},
                advantage=[[0.70700679, 0.0], [-0.70700679, 0.0]],
                loss=0.0,
                grad=[[-0.1767517, 0.0], [0.1767517, 0.0]],
                why="outcomes are equal: only the first turn is judged, ±0.5 / (0.70711 + 1e-4), over four tokens",
            ),
            Golden(
                rewards=[1, 0.5],
                fields={"turn_bt": [[0], [0]], "turn_reward_bs": [[0.0], [0.5]]},
                advantage=[[0.70690682], [-0.70690682]],
                why="nobody called a tool: the sums 1 and 0.5 are judged, ±0.25 / (0.35355 + 1e-4)",
            ),
            Golden(
                rewards=[1.5, 0.5],
                lengths=[2, 2],
                fields={"turn_bt": [[0, 1], [0, 1]], "turn_reward_bs": [[0.5, 1.0], [0.5, 0.0]]},
                advantage=[[0.70700679, 0.70700679], [-0.70700679, -0.70700679]],
                why="the first turns are equal; the outcome, paid in the last one, is judged for both",
            ),
        ],
    ),
    base="grpo",
    keeps=(*CLIPS, *KL),
)


FROM_S0 = {
    "turn_bt": [[0, 1], [0, 1]],
    "turn_reward_bs": [[0.0, 10.0], [0.0, 0.0]],
    "state_bs": [[0, 1], [0, 2]],
}
"""Two episodes from state 0: one goes through state 1 to a reward of 10, the other through state 2 to nothing."""


def gigpo(
    base: Method,
    eps: NonNegative,
    omega: NonNegative = 1.0,
    gamma: Share = 0.95,
    scale: Scale = "none",
    over: Literal["episodes", "turns"] = "episodes",
) -> Method:
    """Judge episodes by their group, and turns by all turns of the group that began in the same state."""
    return base.with_parts(
        advantage=TurnRelative(omega=omega, gamma=gamma, scale=scale, eps=eps, over=over),
        aggregate=TokenMean(),
    )


entry(
    "gigpo",
    gigpo,
    Card(
        title="GiGPO: group-in-group policy optimization",
        papers=[Paper("Group-in-Group Policy Optimization for LLM Agent Training", "2505.10978", 2025)],
        summary="Episodes against their group, and single turns against all turns that began in the same state.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t) + β·KL,  A_t = A_E + ω A_S(turn of t),  "
            "A_E = (R_i - mean_g R) / F,  A_S = (G_k - mean_{g,state} G) / F',  G_k = Σ_{l≥k} γ^{l-k} r_l"
        ),
        defaults={
            "omega": "the authors' code: ω = 1",
            "gamma": "the authors' code: 0.95",
            "scale": "the authors' code: F = 1 (mean_norm); sample_std is its mean_std_norm",
            "eps": "the authors' code: 1e-6; only with a scale",
            "over": "episodes, as the paper writes it; the authors' code pools the rows of all turns (turns)",
            **PPO_CLIP,
            "dual_clip": "off, as in the paper's objective; the authors' scripts have 10",
            "kl_coef": "off, so that no reference is needed; the authors' scripts have 0.01",
        },
        differs=[
            "An episode is one row whose turns share a context; the authors' code makes a row of every turn, with a "
            "summary of the history as its prompt.",
            "States are equal when the environment's keys are; grouping by similarity of observations, a later "
            "addition, is left out.",
            "What an episode earns besides the rewards of its turns counts as earned in its last turn.",
            "The penalty of 0.1 for invalid actions is the environment's.",
        ],
        reduces=[
            Reduction(
                "grpo",
                ["equal_lengths"],
                settings={"omega": 0.0, "scale": "sample_std"},
                why="without the turns only the episode is judged; token mean and completion mean agree",
            ),
        ],
        needs=["turns with rewards and keys of their states", "at least two completions per prompt", KL_NEED],
        source="the authors' code (core_gigpo.py), by our notes on it",
        golden=[
            Golden(
                rewards=[10, 0],
                lengths=[2, 2],
                fields=FROM_S0,
                advantage=[[9.75, 5.0], [-9.75, -5.0]],
                loss=0.0,
                grad=[[-2.4375, -1.25], [2.4375, 1.25]],
                why="A_E = ±5; returns from state 0 are 0.95·10 and 0: ±4.75; states 1 and 2 occur once; four tokens",
            ),
            Golden(
                rewards=[10, 0],
                lengths=[2, 2],
                fields=FROM_S0,
                settings={"scale": "sample_std", "eps": 0.0},
                advantage=[[1.41421356, 0.70710678], [-1.41421356, -0.70710678]],
                why="two values are one standard deviation·√½ from their mean: ±0.7071 each",
            ),
            Golden(
                rewards=[10, 0],
                lengths=[2, 2],
                fields=FROM_S0,
                settings={"scale": "sample_std", "eps": 0.0, "over": "turns", "omega": 0.0},
                advantage=[0.8660254, -0.8660254],
                why="the rows of turns are 10, 10, 0, 0: 5 over their standard deviation √(100/3)",
            ),
        ],
        recommended={"kl_coef": 0.01, "dual_clip": 10.0, "group": 8},
        notes=["Where no state comes twice it is GRPO without the spread; with one turn per episode, (1+ω) times it."],
    ),
    base="grpo",
    keeps=(*CLIPS, *KL, "dual_clip"),
)
