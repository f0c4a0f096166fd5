"""Credit for turns by comparing them: information gained, shared steps, certainty."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.advantage.turn_credit import NormalisedTurns
from grouprl.algorithms.advantage_transform.papers.turn_entropy import EntropyModulated
from grouprl.algorithms.advantage_transform.papers.turn_shared import SharedSteps
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.augment.papers.belief import AnswerBelief
from grouprl.algorithms.method import Method
from grouprl.algorithms.reward_transform.papers.turn_rewards import InformationGain
from grouprl.core.levels import Scale
from grouprl.core.numbers import NonNegative, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, KL, KL_NEED, PPO_CLIP

KL_OFF = "off, so that no reference is needed"
TWO = "at least two completions per prompt"
TURNS = "an environment that is acted in over turns"
LOSS = "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t) + β·KL"
BELIEFS = {
    "turn_bt": [[0, 1, 2], [0, 1, 2]],
    "turn_reward_bs": [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
    "stats.answer": [
        [-1.6094379124341003, -1.2039728043259361, -0.5108256237659907],
        [-1.6094379124341003, -1.6094379124341003, -1.2039728043259361],
    ],
}
"""Two episodes of three turns; before these the correct answer has the probabilities 0.2, 0.3, 0.6 and
0.2, 0.2, 0.3.
"""


def igpo(
    base: Method,
    scale: Scale,
    eps: NonNegative,
    gain_weight: NonNegative = 1.0,
    measure: Literal["probability", "log_probability"] = "probability",
    before: str = "",
    together: bool = False,
    gamma: Share = 1.0,
) -> Method:
    """Compose IGPO: rewards of turns for the information they gain, normalised in the group and accumulated."""
    return base.with_parts(
        reward_transform=(InformationGain(weight=gain_weight, measure=measure),),
        advantage=NormalisedTurns(together=together, gamma=gamma, scale=scale, eps=eps),
        augment=(AnswerBelief(before=before),),
    )


entry(
    "igpo",
    igpo,
    Card(
        title="IGPO: information gain-based policy optimization",
        papers=[
            Paper(
                "Information Gain-based Policy Optimization: A Simple and Effective Approach for Multi-Turn LLM Agents",
                "2510.14967",
                2025,
            )
        ],
        summary=("A turn earns what it adds to the probability of the correct answer; the last one earns the outcome."),
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t) + β·KL,  A_k = Σ_{l≥k} γ^{l-k} z_l,  "
            "z = norm_g(r),  r_k = w(p_{k+1} - p_k), r_K = R,  p_k = exp(mean_j log π_old(a_j | before turn k))"
        ),
        defaults={
            "gain_weight": "the paper: gains count in full",
            "measure": "the paper: the difference of probabilities; the authors' code has log-probs as an option",
            "before": "none: the text before the task's solution; for models that think aloud as the authors do, "
            "'Now there\\'s enough information to answer</think><answer> '",
            "together": "the authors' code now: gains and outcomes are normalised apart (joint before)",
            "gamma": "the authors' code: 1",
            **PPO_CLIP,
            "kl_coef": KL_OFF + "; the paper has 0.001",
        },
        differs=[
            "The outcome is the environment's, not F1 with -2 for a broken format.",
            "Where the environment pays turns before the last, gains are added to that.",
            "The correct answer is the task's one solution, not the first of several aliases.",
            "The authors' schedule that moves weight from gains to the outcome is left out.",
        ],
        reduces=[
            Reduction(
                "grpo",
                ["no_turn_rewards"],
                settings={"gain_weight": 0.0},
                why="without gains only last turns earn something, and every turn gets what the last has",
            ),
        ],
        needs=[TURNS, TWO, "a task with correct completions", KL_NEED],
        source="the authors' code (info_gain.py, core_algos.py, generation.py), by our notes on it",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[3, 3],
                fields=BELIEFS,
                settings={"together": True},
                advantage=[[1.6953273, 2.0865567, 1.9561469], [-1.6953273, -1.0432783, -0.652049]],
                why="rewards .1, .3, 1 and 0, .1, 0: mean .25, sample std √(.735/5) = .38341; then sums from each on",
            ),
            Golden(
                rewards=[1, 0],
                lengths=[3, 3],
                fields=BELIEFS,
                advantage=[[1.8991754, 2.0978537, 0.7071058], [-1.8991754, -0.9057841, -0.7071058]],
                loss=-0.19867827,
                grad=[[-0.31652924, -0.34964228, -0.11785096], [0.31652924, 0.15096401, 0.11785096]],
                why="gains .1, .3, 0, .1: mean .125, std .12583; outcomes ±0.5/.70711; a token weighs 1/(2·3)",
            ),
        ],
        recommended={"kl_coef": 0.001, "group": 16, "learning_rate": 1e-6, "turns": 10},
        notes=["The gains of an episode telescope: they sum to the last belief minus the first."],
    ),
    base="grpo",
    keeps=(*CLIPS, *KL),
)


def salt(
    base: Method,
    window: Annotated[int, Field(ge=0)] = 0,
) -> Method:
    """Compose SALT: GRPO's advantages, averaged over shared steps."""
    return base.with_parts(
        advantage_transform=(SharedSteps(window=window),),
        aggregate=TokenMean(),
    )


entry(
    "salt",
    salt,
    Card(
        title="SALT: step-level advantages from a trajectory graph",
        papers=[
            Paper(
                "SALT: Step-level Advantage Assignment for Long-horizon Agents via Trajectory Graph", "2510.20022", 2025
            )
        ],
        summary="A step that several trajectories share gets the mean of their advantages; decisive steps keep theirs.",
        formula=LOSS + ",  A_k = mean_{i with the same step} A_i,  A_i = (R_i - mean_g R) / (std_g R + eps)",
        defaults={
            "window": "our choice: 0; the paper merges after a history of some length h, which was not seen",
            **PPO_CLIP,
            "kl_coef": KL_OFF,
        },
        differs=[
            "Steps are equal where the environment's keys of the states before and after, and the action's tokens, "
            "are; the paper compares texts of a recent history.",
            "A trajectory that takes a step twice counts once in its mean.",
        ],
        reduces=[
            Reduction(
                "grpo", ["equal_lengths", "distinct_states"], why="no step is shared; token and completion mean agree"
            ),
        ],
        needs=[TURNS, "keys of its states", TWO, KL_NEED],
        confidence="partly",
        uncertain="The predicate by which steps are merged: the length of the history, exact or normalised texts.",
        source="the paper's abstract and notes on it; no code",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 2],
                fields={
                    "turn_bt": [[0, 1], [0, 1]],
                    "state_bs": [[0, 1], [0, 1]],
                    "token_bt": [[5, 6], [5, 7]],
                },
                advantage=[[0.0, 0.70710578], [0.0, -0.70710578]],
                loss=0.0,
                grad=[[0.0, -0.17677645], [0.0, 0.17677645]],
                why="both take step (0, 5, 1): (+A - A)/2 = 0; then they part; four tokens",
            ),
            Golden(
                rewards=[1, 0],
                lengths=[2, 2],
                fields={
                    "turn_bt": [[0, 1], [0, 1]],
                    "state_bs": [[0, 1], [2, 1]],
                    "token_bt": [[5, 6], [5, 6]],
                },
                settings={"window": 1},
                advantage=[0.70710578, -0.70710578],
                why="the last steps are equal, but not the states before them",
            ),
        ],
        notes=["The sum of the advantages of a shared step over its trajectories stays."],
    ),
    base="grpo",
    keeps=(*CLIPS, *KL, "scale", "eps"),
)


def empg(
    base: Method,
    k1: NonNegative = 1.0,
    k2: NonNegative = 1.0,
    zeta: NonNegative = 0.05,
    center: bool = True,
) -> Method:
    """Compose EMPG: GRPO's advantages, modulated by the entropy of turns."""
    return base.with_parts(
        advantage_transform=(EntropyModulated(k1=k1, k2=k2, zeta=zeta, center=center),),
        aggregate=TokenMean(),
    )


entry(
    "empg",
    empg,
    Card(
        title="EMPG: entropy-modulated policy gradients",
        papers=[
            Paper(
                "Harnessing Uncertainty: Entropy-Modulated Policy Gradients for Long-Horizon LLM Agents",
                "2509.09265",
                2025,
            )
        ],
        summary="Confident turns learn more, uncertain ones less; leading to a confident next turn is rewarded.",
        formula=(
            LOSS + ",  A_k = A_i·g_k + ζ f_{k+1} - mean,  g = e^{-k1 H}/mean e^{-k1 H},  f = e^{-k2 H},  "
            "H the turn's mean entropy, scaled to [0, 1] over the batch"
        ),
        defaults={
            "k1": "the paper: 1",
            "k2": "the paper: 1",
            "zeta": "the paper: 0.05 (0.1 in some listings)",
            "center": "the paper: yes",
            **PPO_CLIP,
            "kl_coef": KL_OFF,
        },
        differs=["None known: turns take the place of the steps that the paper finds by a search for segments."],
        reduces=[
            Reduction(
                "grpo",
                ["equal_lengths"],
                settings={"k1": 0.0, "zeta": 0.0, "center": False},
                why="nothing is scaled or paid; token mean and completion mean agree",
            ),
        ],
        needs=[TURNS, TWO, KL_NEED],
        source="two independent implementations that agree, by our notes on it; no official code",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 2],
                fields={"turn_bt": [[0, 1], [0, 1]], "entropy_bt": [[0.1, 0.5], [0.9, 0.5]]},
                advantage=[[0.93786829, 0.47634327], [-0.56117496, -0.8530366]],
                loss=0.0,
                grad=[[-0.23446707, -0.11908582], [0.14029374, 0.21325915]],
                why="H = 0, ½, 1, ½: g = 1.5498, .94, .5701, .94; bonus .05·e^-½ in first turns; the mean is taken off",
            )
        ],
        recommended={"k1": 1.0, "k2": 1.0, "zeta": 0.05},
        notes=["A confident mistake is amplified (g > 1, A < 0), an uncertain one attenuated."],
    ),
    base="grpo",
    keeps=(*CLIPS, *KL, "scale", "eps"),
)
