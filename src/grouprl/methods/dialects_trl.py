"""Dialects of TRL: what Hugging Face's trainers compute under a famous name, from the same parts.

One rule decides the numbers: ask the library for the method by the name it has there and leave every other option at
its default. Where the library has no name for a method, its own published recipe is followed, and the card says so.
`tests/parity/test_trl.py` runs TRL 1.16.0's own trainers against these entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grouprl.levels import Scale
from grouprl.method import Method
from grouprl.methods import baselines, capped, group, sequence
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import CATALOGUE, entry
from grouprl.methods.settings import ClipLow, NonNegative, Positive
from grouprl.parts.advantage import Relative
from grouprl.parts.aggregate import ConstantLength, SequenceMean, TokenMean
from grouprl.parts.objective import Clipped
from grouprl.parts.shaping import KLInReward
from grouprl.parts.stop_gradient import Capped

ORIGINALS = (baselines, capped, group, sequence)
"""Families that hold the methods these are dialects of; importing them registers those methods."""

SOURCE = "TRL 1.16.0, GRPOTrainer._compute_loss and _generate_and_score_completions, run against this entry"
SOURCE_RLOO = "TRL 1.16.0, RLOOTrainer._compute_loss and _generate_and_score_completions, run against this entry"
ROUNDING = "A group without spread gets exactly 0 here; TRL divides the rounding error of its float32 mean by 1e-4"
WINDOW = (
    "TRL divides by the tokens of the whole generation batch times the optimiser step's share of it; the two agree "
    "when one optimiser step uses the whole generation batch (the default)"
)
MASKED = (
    "mask_truncated_completions=True is select: [mask_truncated] here: truncated completions have no loss but stay in "
    "the group's statistics and in the denominators. drop_truncated divides by what is left: its loss is larger by all "
    "completions (tokens, with a token mean) over those that are left"
)
STD = "A_i = (R_i - mean_g R) / (std_g R + 1e-4)"
CLIPPED = "min(ρ_t A_i, clip(ρ_t, 0.8, 1.2) A_i)"
ADVANTAGE = [1.49970006, -0.49990002, -0.49990002, -0.49990002]
"""0.75 / 0.5001 and -0.25 / 0.5001."""


def papers_of(name: str) -> Sequence[Paper]:
    """Return the papers of the method that a dialect is of."""
    return CATALOGUE[name].card.papers


def one_right(**known: Any) -> Golden:
    """Return a golden example with one right answer of two tokens and three wrong answers of one."""
    return Golden(rewards=[1, 0, 0, 0], lengths=[2, 1, 1, 1], **known)


def gradient(right: float, wrong: float) -> list[list[float]]:
    """Return the gradient rows of `one_right`, the same for all tokens of a kind of answer."""
    return [[right, right], [wrong], [wrong], [wrong]]


def _clip(source: str) -> dict[str, str]:
    return {"clip_low": source, "clip_high": source}


def _advantage(scale: Scale = "sample_std") -> Relative:
    return Relative("group", center="mean", scale=scale, eps=1e-4)


@entry(
    "grpo@trl",
    Card(
        title="GRPO as TRL computes it",
        papers=papers_of("grpo"),
        summary='loss_type="grpo": sample standard deviation + 1e-4, answers weigh the same, no KL.',
        formula=f"L = -1/B Σ_i 1/|y_i| Σ_t {CLIPPED},  {STD}",
        defaults={**_clip("GRPOConfig.epsilon"), "scale": "GRPOConfig.scale_rewards = 'group'"},
        differs=[
            "1e-4 is added to the standard deviation: rewards [1, 0, 0, 0] give (1.4997, -0.4999)",
            "No KL term (GRPOConfig.beta = 0); the paper has β = 0.04 with k3. With β > 0 TRL 1.16 multiplies k3 by "
            "the ratio (use_bias_correction_kl=True), which is kl_estimator=weighted_k3 of grpo",
            "TRL's default loss_type is 'dapo', not 'grpo': see dapo@trl",
            ROUNDING,
            MASKED,
        ],
        reduces=[Reduction("grpo", other={"eps": 1e-4}, why="only the small constant differs")],
        source=SOURCE,
        golden=[one_right(advantage=ADVANTAGE, grad=gradient(-0.18746251, 0.124975005))],
    ),
)
def grpo_trl(clip_low: ClipLow = 0.2, clip_high: Positive = 0.2, scale: Scale = "sample_std") -> Method:
    """Compose GRPO with TRL's numbers."""
    return Method(
        advantage=_advantage(scale), objective=Clipped(low=clip_low, high=clip_high), aggregate=SequenceMean()
    )


@entry(
    "dr_grpo@trl",
    Card(
        title="Dr. GRPO as TRL computes it",
        papers=papers_of("dr_grpo"),
        summary='loss_type="dr_grpo" changes the denominator alone: advantages keep the standard deviation.',
        formula=f"L = -1/(B·Lmax) Σ_i Σ_t {CLIPPED},  {STD}",
        defaults={**_clip("GRPOConfig.epsilon"), "scale": "GRPOConfig.scale_rewards = 'group'"},
        differs=[
            "loss_type='dr_grpo' alone keeps dividing by the standard deviation, which the paper takes out. "
            "scale_rewards='none' (here scale=none) makes it the paper's method",
            "Lmax is max_completion_length",
            MASKED,
        ],
        reduces=[
            Reduction("dr_grpo", settings={"scale": "none"}, why="scale_rewards='none' is the paper's advantage"),
        ],
        source=SOURCE,
        golden=[
            one_right(
                fields={"max_length": 4},
                advantage=ADVANTAGE,
                grad=gradient(-0.09373125, 0.03124375),
            )
        ],
    ),
)
def dr_grpo_trl(clip_low: ClipLow = 0.2, clip_high: Positive = 0.2, scale: Scale = "sample_std") -> Method:
    """Compose Dr. GRPO with TRL's numbers."""
    return Method(
        advantage=_advantage(scale), objective=Clipped(low=clip_low, high=clip_high), aggregate=ConstantLength()
    )


@entry(
    "dapo@trl",
    Card(
        title="DAPO as TRL computes it (TRL's default loss)",
        papers=papers_of("dapo"),
        summary='loss_type="dapo", what GRPOTrainer does unless told otherwise: GRPO with a token mean.',
        formula=f"L = -1/Σ|y_i| Σ_i Σ_t {CLIPPED},  {STD}",
        defaults=_clip("GRPOConfig.epsilon; epsilon_high falls back to it (TRL's recipe for the paper sets 0.28)"),
        differs=[
            "Only the token mean of the paper's four parts is on: the clip is symmetric, over-long answers are neither "
            "punished nor masked",
            "Dynamic sampling does not exist in TRL",
            WINDOW,
            MASKED,
        ],
        reduces=[Reduction("grpo@trl", when=["equal_lengths"], why="with equal lengths both means are the same")],
        source=SOURCE,
        golden=[one_right(advantage=ADVANTAGE, grad=gradient(-0.299940012, 0.099980004))],
    ),
)
def dapo_trl(clip_low: ClipLow = 0.2, clip_high: Positive = 0.2) -> Method:
    """Compose TRL's default loss."""
    return Method(advantage=_advantage(), objective=Clipped(low=clip_low, high=clip_high), aggregate=TokenMean())


@entry(
    "gspo@trl",
    Card(
        title="GSPO as TRL computes it",
        papers=papers_of("gspo"),
        summary="TRL's recipe for the paper: a sequence-level ratio with the paper's clip, sequence mean.",
        formula="L = -1/B Σ_i min(s_i A_i, clip(s_i, 1-3e-4, 1+4e-4) A_i),  s_i = exp(1/|y_i| Σ_t log ρ_t)",
        defaults=_clip("TRL's paper index, GSPO (the name is a recipe there, not an option)"),
        differs=[
            "1e-4 is added to the standard deviation",
            "TRL has no option named GSPO: its recipe sets importance_sampling_level='sequence', loss_type='grpo', "
            "epsilon=3e-4, epsilon_high=4e-4. With importance_sampling_level alone the clip is 0.2 and the mean is "
            "over tokens",
            MASKED,
        ],
        reduces=[Reduction("grpo@trl", when=["on_policy"], why="without drift the ratio is 1 at every level")],
        source=SOURCE,
        golden=[
            one_right(
                log_ratio=[[0.1, 0.1], [0.0002], [0.0], [0.0]],
                advantage=ADVANTAGE,
                grad=[[0.0, 0.0], [0.1250000025], [0.124975005], [0.124975005]],
                why="s_1 = exp(0.1) is beyond the clip; s_2 = exp(0.0002) is not",
            )
        ],
    ),
)
def gspo_trl(clip_low: ClipLow = 3e-4, clip_high: Positive = 4e-4) -> Method:
    """Compose GSPO with TRL's numbers."""
    return Method(
        advantage=_advantage(),
        objective=Clipped(low=clip_low, high=clip_high, ratio="sequence"),
        aggregate=SequenceMean(),
    )


@entry(
    "cispo@trl",
    Card(
        title="CISPO as TRL computes it",
        papers=papers_of("cispo"),
        summary='loss_type="cispo" alone caps every ratio at 0.2, also the on-policy ratio of 1.',
        formula=f"L = -1/Σ|y_i| Σ_i Σ_t sg[min(ρ_t, 0.2)] A_i log π(y_t),  {STD}",
        defaults={
            "cap": "GRPOConfig.epsilon_high is the cap itself here and falls back to epsilon = 0.2; its help text "
            "recommends 5.0"
        },
        differs=[
            "epsilon_high is the cap of the ratio, not its distance from 1. Left unset it is 0.2, so every on-policy "
            "gradient is multiplied by 0.2",
            "No lower bound of the ratio, as in the paper's experiments",
            WINDOW,
            MASKED,
        ],
        reduces=[
            Reduction("dapo@trl", settings={"cap": 5.0}, when=["on_policy"], why="without drift no cap acts"),
            Reduction("dapo@trl", when=["on_policy"], scale=0.2, why="the unset cap scales the gradient by 0.2"),
        ],
        source=SOURCE,
        golden=[one_right(advantage=ADVANTAGE, grad=gradient(-0.0599880024, 0.0199960008))],
    ),
)
def cispo_trl(cap: Positive = 0.2) -> Method:
    """Compose CISPO with TRL's numbers."""
    return Method(advantage=_advantage(), objective=Capped(high=cap, high_negative=cap), aggregate=TokenMean())


@entry(
    "rloo@trl",
    Card(
        title="RLOO as TRL computes it",
        papers=papers_of("rloo"),
        summary="Leave-one-out baseline; the ratio of whole sequences, clipped as in PPO; KL in the reward.",
        formula="L = -1/B Σ_i min(ρ_i A_i, clip(ρ_i, 0.8, 1.2) A_i),  ρ_i = π/π_old(y_i),  A_i = R_i - mean_{j≠i} R_j",
        defaults={
            **_clip("RLOOConfig.epsilon"),
            "kl_coef": "RLOOConfig.beta (the paper: 0.03)",
        },
        differs=[
            "The paper takes one on-policy REINFORCE step; TRL clips the ratio of whole sequences, which is not "
            "normalised by length",
            "The KL coefficient is 0.05; the paper's is 0.03",
        ],
        reduces=[
            Reduction(
                "rloo@verl",
                settings={"kl_coef": 0.0},
                when=["on_policy", "equal_lengths"],
                scale=None,
                why="without drift both are REINFORCE with the leave-one-out baseline",
            )
        ],
        needs=["a reference model, unless kl_coef is 0"],
        source=SOURCE_RLOO,
        golden=[
            one_right(
                fields={"ref_bt": [[-2.0, -2.0], [-1.0], [-1.0], [-1.0]]},
                advantage=[0.9, -0.3, -0.3, -0.3],
                grad=gradient(-0.225, 0.075),
                why="the KL of the right answer is 2 nats, so its reward is 1 - 0.05 · 2",
            )
        ],
    ),
)
def rloo_trl(clip_low: ClipLow = 0.2, clip_high: Positive = 0.2, kl_coef: NonNegative = 0.05) -> Method:
    """Compose RLOO with TRL's numbers."""
    return Method(
        shape=(KLInReward(coef=kl_coef, estimator="k1", level="sequence"),),
        advantage=Relative("group", center="leave_one_out", scale="none"),
        objective=Clipped(low=clip_low, high=clip_high, ratio="sequence_sum"),
        aggregate=SequenceMean(),
    )
