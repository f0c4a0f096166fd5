"""The dialect of TRL's DPOTrainer, with all its losses.

Settings have TRL's names and defaults. `tests/parity/test_trl_preference.py` runs TRL 1.16.0's own losses against these
entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.link.discovered import LogisticExponential
from grouprl.algorithms.link.exact import ReversePreference
from grouprl.algorithms.link.link import Hinge, Link, Logistic, Squared
from grouprl.algorithms.link.noise import Smoothed, Unbiased
from grouprl.algorithms.link.pointwise import ApoDown, ApoZero, BcoPair, NcaPair, SppoHard
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.pair import Pair, PairSum, Pairwise
from grouprl.algorithms.pair_weight.pair_weight import Even, LikelyPairs
from grouprl.algorithms.score.divergence import Divergence, FDivergence
from grouprl.algorithms.score.score import Length, LogRatio, Score
from grouprl.algorithms.score.shared_length import SharedLength
from grouprl.algorithms.score.sorted import SortedGaps, SortedScores
from grouprl.core.errors import InputError
from grouprl.core.numbers import NonNegative, Positive, Share
from grouprl.methods.card import Card, Reduction
from grouprl.methods.preference.composing import PAIRS, TIES, one_pair, three_pairs, with_objective
from grouprl.methods.preference.reference_free import chosen_nll
from grouprl.methods.registry import entry

DPOLoss = Literal[
    "sigmoid",
    "hinge",
    "ipo",
    "exo_pair",
    "nca_pair",
    "robust",
    "bco_pair",
    "sppo_hard",
    "aot",
    "aot_unpaired",
    "apo_zero",
    "apo_down",
    "discopop",
    "sft",
    "sigmoid_norm",
]
FDivergenceType = Literal["reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"]
Smoothing = Annotated[float, Field(ge=0, le=0.5)]
DIVERGENCES: dict[str, Divergence] = {
    "reverse_kl": "reverse_kl",
    "forward_kl": "forward_kl",
    "js_divergence": "js",
    "alpha_divergence": "alpha",
}
AVERAGED = ("ipo", "sigmoid_norm")
RAW = ("nca_pair", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down")
"""Losses that TRL refuses with another f-divergence."""
SORTED = ("aot", "aot_unpaired")


@dataclass(frozen=True)
class DPOSettings:
    """Settings that every loss of DPOTrainer may read."""

    beta: float
    label_smoothing: float
    divergence: Divergence
    alpha: float
    ld_alpha: float | None
    tau: float


def score_of(loss: str, given: DPOSettings) -> Score:
    """Return the score that a loss of DPOTrainer compares."""
    length: Length = "mean" if loss in AVERAGED else "sum"
    plain: Length = "sum" if given.divergence != "reverse_kl" else length
    ratio: Score = LogRatio(length=plain)
    if given.ld_alpha is not None:
        ratio = SharedLength(alpha=given.ld_alpha, length=plain)
    if loss in SORTED:
        return SortedGaps(of=ratio) if loss == "aot" else SortedScores(of=ratio)
    if given.divergence == "reverse_kl":
        return ratio
    own = {"alpha": given.alpha} if given.divergence == "alpha" else {}
    return FDivergence(of=ratio, divergence=given.divergence, length=length, **own)


def link_of(loss: str, given: DPOSettings) -> Link:
    """Return the link of a loss of DPOTrainer."""
    beta, flips = given.beta, given.label_smoothing
    if loss == "exo_pair":
        return ReversePreference(beta=beta, flips=flips)
    if loss == "robust":
        return Unbiased(of=Logistic(beta=beta), flips=flips)
    if loss == "discopop":
        return LogisticExponential(beta=beta, tau=given.tau)
    if loss in SORTED:
        return smoothed(beta, flips)
    links = {"hinge": Hinge, "ipo": Squared, "nca_pair": NcaPair, "bco_pair": BcoPair, "sppo_hard": SppoHard}
    anchored = {"apo_zero": ApoZero, "apo_down": ApoDown}
    return ({**links, **anchored}.get(loss, Logistic))(beta=beta)


def smoothed(beta: float, flips: float) -> Link:
    """Return the logistic link, with smoothed labels where a share of them is to count as wrong."""
    return Smoothed(of=Logistic(beta=beta), flips=flips) if flips > 0 else Logistic(beta=beta)


def added(terms: Sequence[tuple[float, Pair]]) -> Pairwise:
    """Return the weighted sum of losses of pairs."""
    (weight, first), *rest = terms
    if not rest:
        return first if weight == 1 else PairSum(first=first, second=first, first_weight=weight, second_weight=0.0)
    if len(rest) == 1:
        return PairSum(first=first, second=rest[0][1], first_weight=weight, second_weight=rest[0][0])
    return PairSum(first=first, second=added(rest), first_weight=weight)


def check(losses: Sequence[str], weights: Sequence[float], given: DPOSettings, *, weighting: bool) -> None:
    """Refuse what DPOTrainer refuses, and what it divides by 0.

    Raises:
        InputError: naming the settings that do not go together.
    """
    if not losses or len(weights) != len(losses):
        what = f"{len(losses)} loss types and {len(weights)} loss_weights"
        raise InputError(what, "each loss of the list has one weight", "Give as many, or leave loss_weights out")
    raw = [loss for loss in losses if loss in RAW]
    if given.divergence != "reverse_kl" and raw:
        what = f"f_divergence_type = '{given.divergence}' beside the loss '{raw[0]}'"
        raise InputError(what, f"{', '.join(RAW)} read the log-ratios as they are", "Use f_divergence_type: reverse_kl")
    unweighted = [loss for loss in losses if loss in (*SORTED, "sft")]
    if weighting and unweighted:
        what = f"use_weighting = true beside the loss '{unweighted[0]}'"
        raise InputError(what, "it weighs the losses of single pairs", "Leave one of the two out")
    wrong = ("exo_pair" in losses and not 0 < given.label_smoothing < 0.5) or (
        "robust" in losses and given.label_smoothing >= 0.5
    )
    if wrong:
        what = f"label_smoothing = {given.label_smoothing:g} with {' and '.join(losses)}"
        rule = "exo_pair needs a share above 0 and below 0.5, robust one below 0.5"
        raise InputError(what, rule, "Use 1e-3 for exo_pair, as its paper does")


CONFIG = "DPOConfig"


def dpo_trl(
    beta: Positive = 0.1,
    loss_type: DPOLoss | list[DPOLoss] = "sigmoid",
    loss_weights: list[NonNegative] | None = None,
    label_smoothing: Smoothing = 0.0,
    f_divergence_type: FDivergenceType = "reverse_kl",
    f_alpha_divergence_coef: float = 0.5,
    ld_alpha: Share | None = None,
    use_weighting: bool = False,
    discopop_tau: Positive = 0.05,
) -> Method:
    """Compose the losses of TRL's DPOTrainer with its settings."""
    losses = [loss_type] if isinstance(loss_type, str) else loss_type
    weights = [1.0] * len(losses) if loss_weights is None else loss_weights
    divergence = DIVERGENCES[f_divergence_type]
    given = DPOSettings(beta, label_smoothing, divergence, f_alpha_divergence_coef, ld_alpha, discopop_tau)
    check(losses, weights, given, weighting=use_weighting)
    count = LikelyPairs(limit=None) if use_weighting else Even()
    named = list(zip(weights, losses, strict=True))
    terms = [
        (weight, Pair(score=score_of(loss, given), link=link_of(loss, given), pair_weight=count))
        for weight, loss in named
        if loss != "sft" and weight > 0
    ]
    imitation = sum(weight for weight, loss in named if loss == "sft")
    return with_objective(added(terms or [(1.0, Pair(pair_weight=Even(value=0.0)))]), chosen_nll(imitation))


entry(
    "dpo@trl",
    dpo_trl,
    Card(
        title="DPO as TRL computes it",
        summary="All losses of TRL's DPOTrainer, alone or as a weighted list.",
        formula=(
            "L = Σ_k w_k·mean over pairs of ℓ_k(s_w, s_l),  by default -log σ(0.1·[s_w - s_l]),  s = Σ_t log π/π_ref"
        ),
        defaults={
            "beta": f"{CONFIG}.beta",
            "loss_type": f"{CONFIG}.loss_type: one name, or a list of names whose losses are added",
            "loss_weights": f"{CONFIG}.loss_weights: None, every loss weighs 1",
            "label_smoothing": f"{CONFIG}.label_smoothing: read by robust, exo_pair and aot alone",
            "f_divergence_type": f"{CONFIG}.f_divergence_type",
            "f_alpha_divergence_coef": f"{CONFIG}.f_alpha_divergence_coef",
            "ld_alpha": f"{CONFIG}.ld_alpha: None, every token counts in full",
            "use_weighting": f"{CONFIG}.use_weighting",
            "discopop_tau": f"{CONFIG}.discopop_tau",
        },
        differs=[
            "label_smoothing has no effect with sigmoid, as in TRL 1.x, where 0.x made it cDPO: see cdpo",
            "ipo and sigmoid_norm divide each score by the completion's length; the paper of ipo sums: see ipo",
            "bco_pair has no running shift of the rewards, which TRL 0.x had",
            "sft is a mean over the tokens of all chosen completions of the optimiser step; TRL takes it, and the "
            "ranks of aot, over each micro-batch, which agrees when a step is one micro-batch",
            "use_weighting with hinge works here; in TRL 1.16.0 its backward pass fails",
            "use_weighting reads Σ_a π(a)² of the policy at the start of the update (stats.collision)",
            "Exponents of other divergences are held at 80 or below with their slope; TRL bounds those of "
            "alpha_divergence there without slope",
            "Shares of label_smoothing that divide by 0 or turn a loss round are refused; TRL warns",
            PAIRS,
            TIES,
        ],
        reduces=[
            Reduction("dpo", why="the default loss"),
            Reduction("rdpo", settings={"loss_type": "robust", "label_smoothing": 0.1}, why="the same by TRL's names"),
            Reduction("ipo", settings={"loss_type": "ipo"}, other={"length": "mean"}, why="TRL averages over tokens"),
            Reduction(
                "mpo",
                settings={"loss_type": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.0]},
                why="TRL's recipe for the paper",
            ),
        ],
        source="TRL 1.16.0, DPOTrainer._compute_loss, run against this entry",
        golden=[
            one_pair(0.66359711, [-0.04850045, -0.04850045], 0.04850045, "-log σ(0.06)"),
            three_pairs(23.447778, "20.551111, 27.387778, 22.404444", settings={"loss_type": "ipo"}),
            three_pairs(1.373582, "1.265354, 1.542536, 1.312856", settings={"loss_type": "bco_pair"}),
            three_pairs(0.684957, "0.670086, 0.704882, 0.679903", settings={"loss_type": "sigmoid_norm"}),
        ],
    ),
)
