"""REINFORCE for completions of an older policy, on some tokens and completions only (REC, AsymRE, RED, OPMD)."""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.advantage.soft_baseline import SoftBaseline
from grouprl.algorithms.advantage_transform.papers.shift import Shift
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.filter.papers.balance_negatives import BalanceNegatives
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.off_policy import Region, RegionGradient
from grouprl.algorithms.regularize.regularize import KLLoss
from grouprl.algorithms.token_weight.papers.advantage_tilt import AdvantageTilt
from grouprl.core.levels import Alone
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import ALONE, CLIPS, ClipLow

REC_PAPER = Paper(
    "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm: Demystifying Some Myths About GRPO and Its Friends",
    "2509.24203",
    2025,
)
TRINITY = "modelscope/Trinity-RFT: policy_loss_fn/rec, advantage_fn, examples/rec_gsm8k/gsm8k.yaml"
BAND = "Trinity-RFT: 0.2"
GROUP = "at least two completions per prompt"
ALONE_DIFFERS = "A group of one gets advantage 0; the authors' code gives it its raw reward (alone=raw)."


def advantage(alone: Alone) -> Relative:
    """Return R - mean_g R, the starting point of the whole family."""
    return Relative("group", center="mean", scale="none", alone=alone)


def rec(
    base: Method,
    clip_low: ClipLow,
    clip_high: Positive,
    alone: Alone,
    region: Region = "one_side",
    far_low: ClipLow = 0.6,
    far_high: Positive = 2.0,
    correction: Literal["none", "importance"] = "none",
    k2_coef: NonNegative = 0.0,
) -> Method:
    """Compose REC.

    Token mean of -A·log π over the tokens in the region. `k2_coef` adds k2_coef·(log π - log π_old)².
    """
    objective = RegionGradient(
        region=region, clip_low=clip_low, clip_high=clip_high, far_low=far_low, far_high=far_high, correction=correction
    )
    return base.with_parts(
        advantage=advantage(alone),
        objective=objective,
        aggregate=TokenMean(),
        regularize=_k2(k2_coef),
    )


entry(
    "rec",
    rec,
    Card(
        title="Clipped group-relative REINFORCE",
        papers=[REC_PAPER],
        summary="REINFORCE with group baseline and no importance weight; tokens outside a region do not act.",
        formula="L = -1/Σ|y_i| Σ_i Σ_t A_i·I(ρ_t, A_i)·log π(y_t) + k2·(log ρ_t)²,  A_i = R_i - mean_g R",
        defaults={
            "region": "the paper's REC-OneSide, its recommendation",
            "clip_low": BAND,
            "clip_high": BAND,
            "far_low": "Trinity-RFT: 0.6 (ring only)",
            "far_high": "Trinity-RFT: 2.0 (ring only)",
            "correction": "the paper: clipping stabilises, importance weights do not",
            "k2_coef": "off, as in the REC-OneSide example",
        },
        differs=[
            ALONE_DIFFERS,
            "The forward-KL term, -c·log π, is not here: it is AsymRE with δ = -c (asymre).",
        ],
        reduces=[
            Reduction(
                "grpo",
                ["equal_lengths"],
                settings={"correction": "importance"},
                other={"scale": "none"},
                why="one side of the band and the ratio as weight: the gradient of PPO's clip",
            ),
            Reduction("dr_grpo", ["on_policy", "equal_lengths"], scale=None, why="every ratio is 1"),
            Reduction("asymre", settings={"region": "none"}, other={"delta": 0.0}, why="nothing is left out"),
        ],
        needs=[GROUP],
        source=TRINITY,
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 2],
                log_ratio=[[0.3], [-0.5, 0.1]],
                advantage=[0.5, -0.5],
                loss=-0.15,
                grad=[[0.0], [0.0, 1 / 6]],
                why="e^0.3 > 1.2 and e^-0.5 < 0.8 are left out; the third: 0.5·(-0.9)/3, slope 0.5/3 without ratio",
            ),
            Golden(
                rewards=[1, 0],
                lengths=[2, 2],
                log_ratio=[[-1.0, -0.5], [1.2, 0.5]],
                settings={"region": "ring"},
                grad=[[-0.125, 0.0], [0.125, 0.0]],
                why="e^-1 = 0.37 ≤ 0.4 with A > 0 and e^1.2 = 3.3 ≥ 3 with A < 0 act; e^±0.5 do not",
            ),
            Golden(
                rewards=[1, 0],
                log_ratio=[[0.1], [-0.1]],
                settings={"region": "two_side", "k2_coef": 0.5},
                grad=[[-0.2], [0.2]],
                why="(-0.5 + 2·0.5·0.1)/2 and its mirror",
            ),
        ],
        recommended={"group": 8, "learning_rate": 1e-6, "sync_interval": 20},
    ),
    base="grpo",
    keeps=CLIPS,
)


def _k2(coef: float) -> tuple[KLLoss, ...]:
    """Return coef·d² to the old policy; the estimator k2 is d²/2."""
    return (KLLoss(coef=2 * coef, estimator="k2", anchor="old"),) if coef > 0 else ()


def red_drop(region: Region = "none", alone: Alone = "zero") -> Method:
    """Compose RED-Drop.

    Token mean of -A·log π after surplus completions below their group's mean have left the group statistics.
    """
    return Method(
        filter=(BalanceNegatives(),),
        advantage=advantage(alone),
        objective=RegionGradient(region=region),
        aggregate=TokenMean(),
    )


entry(
    "red_drop",
    red_drop,
    Card(
        title="REINFORCE with dropped negatives (RED-Drop)",
        papers=[REC_PAPER],
        summary=(
            "Group-relative REINFORCE in which bad completions beyond the number of good ones are dropped at random."
        ),
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t A_i·log π(y_t),  A_i = R_i - mean over the kept of R;  dropped: A = 0;  "
            "kept: all with R ≥ mean_g R, and as many others at most"
        ),
        defaults={"region": "none: the data is shaped instead of the objective", "alone": ALONE},
        differs=[
            ALONE_DIFFERS,
            "The sample comes from the digits of the completions' log-probs, so that it can be repeated.",
        ],
        reduces=[
            Reduction(
                "rec", ["two_completions"], other={"region": "none"}, why="of two completions one is above the mean"
            ),
        ],
        needs=[GROUP],
        source=TRINITY,
        golden=[
            Golden(
                rewards=[1, 0, 0, 0.75],
                advantage=[0.5625, -0.4375, -0.4375, 0.3125],
                grad=[[-0.140625], [0.109375], [0.109375], [-0.078125]],
                why="two at or above the mean 0.4375, two below: nothing is dropped",
            ),
            Golden(
                rewards=[1, 0, 0],
                fields={"old_bt": [[-1.0], [-1.0002], [-1.0005]]},
                log_ratio=[[0.0], [-0.0002], [-0.0005]],
                advantage=[0.5, -0.5, 0.0],
                loss=-0.0001 / 3,
                grad=[[-1 / 6], [1 / 6], [0.0]],
                why="997 times the log-probs have digits .1994 and .4985: the third is dropped, but stays in the 3",
            ),
        ],
    ),
)


def red_weight(temperature: Positive = 1.0, region: Region = "none", alone: Alone = "zero") -> Method:
    """Compose RED-Weight: token mean of -exp(A/τ)·A·log π."""
    return Method(
        advantage=advantage(alone),
        token_weight=(AdvantageTilt(temperature=temperature),),
        objective=RegionGradient(region=region),
        aggregate=TokenMean(),
    )


entry(
    "red_weight",
    red_weight,
    Card(
        title="REINFORCE with weighted completions (RED-Weight)",
        papers=[REC_PAPER],
        summary=(
            "Group-relative REINFORCE whose terms are weighted by exp(A/τ): good completions count more than bad ones."
        ),
        formula="L = -1/Σ|y_i| Σ_i Σ_t exp(A_i/τ)·A_i·log π(y_t),  A_i = R_i - mean_g R",
        defaults={
            "temperature": "Trinity-RFT: 1.0",
            "region": "none: the data is shaped instead of the objective",
            "alone": ALONE,
        },
        differs=[ALONE_DIFFERS, "The exponent A/τ is held within ±20."],
        reduces=[
            Reduction("rec", settings={"temperature": 1e8}, other={"region": "none"}, why="every weight is 1"),
        ],
        needs=[GROUP],
        source=TRINITY,
        golden=[
            Golden(
                rewards=[1, 0],
                advantage=[0.5, -0.5],
                grad=[[-0.41218032], [0.15163266]],
                why="0.5·e^0.5/2 = 0.5·1.6487213/2 and 0.5·e^-0.5/2 = 0.5·0.6065307/2",
            )
        ],
    ),
)


def asymre(delta: float = -0.1, alone: Alone = "zero") -> Method:
    """Compose AsymRE: token mean of -(R - mean_g R - δ)·log π; with δ < 0 a group without spread is imitated, too."""
    return Method(
        advantage=advantage(alone),
        advantage_transform=(Shift(amount=-delta),) if delta else (),
        objective=RegionGradient(region="none"),
        aggregate=TokenMean(),
    )


entry(
    "asymre",
    asymre,
    Card(
        title="Asymmetric REINFORCE",
        papers=[
            Paper(
                "Asymmetric REINFORCE for off-Policy Reinforcement Learning: Balancing positive and negative rewards",
                "2506.20520",
                2025,
            ),
            REC_PAPER,
        ],
        summary="REINFORCE with a baseline below the group's mean: off-policy, good completions should push more.",
        formula="L = -1/Σ|y_i| Σ_i Σ_t A_i·log π(y_t),  A_i = R_i - (mean_g R + δ)",
        defaults={"delta": "Trinity-RFT: -0.1", "alone": ALONE},
        differs=["A group of one gets -δ; the authors' code gives it its raw reward - δ (alone=raw)."],
        reduces=[Reduction("rec", settings={"delta": 0.0}, other={"region": "none"}, why="the baseline is the mean")],
        needs=[GROUP],
        source="modelscope/Trinity-RFT: advantage_fn/asymre_advantage.py",
        golden=[
            Golden(
                rewards=[1, 0, 1],
                lengths=[1, 1, 2],
                groups=[0, 0, 1],
                log_ratio=[[0.3], [-0.5], [0.0, 0.0]],
                advantage=[0.6, -0.4, 0.1],
                grad=[[-0.15], [0.1], [-0.025, -0.025]],
                why="0.5 + 0.1, -0.5 + 0.1, 0 + 0.1; four tokens; no ratio",
            )
        ],
    ),
)


def opmd(baseline: Literal["mean", "log_mean_exp"] = "mean", tau: Positive = 1.0) -> Method:
    """Compose plain OPMD: token mean of -A·log π, the baseline a mean or a soft mean of temperature τ."""
    return Method(
        advantage=advantage("zero") if baseline == "mean" else SoftBaseline(beta=tau),
        objective=RegionGradient(region="none"),
        aggregate=TokenMean(),
    )


entry(
    "opmd",
    opmd,
    Card(
        title="Online Policy Mirror Descent, plain",
        papers=[REC_PAPER],
        summary="Mirror descent's first step as a loss: group-centred REINFORCE, without ratio, on data of any age.",
        formula="L = -1/Σ|y_i| Σ_i Σ_t A_i·log π(y_t),  A_i = R_i - mean_g R, or R_i - τ·log mean_g exp(R/τ)",
        defaults={"baseline": "Trinity-RFT: mean", "tau": "Trinity-RFT: 1.0 (log_mean_exp only)"},
        differs=[
            "The authors' code divides the loss by 1 + τ; that constant is left to the learning rate.",
            "A group of one gets advantage 0.",
        ],
        reduces=[
            Reduction("rec", other={"region": "none"}, why="the same, without band"),
            Reduction(
                "rec",
                settings={"tau": 1e6, "baseline": "log_mean_exp"},
                other={"region": "none"},
                why="τ→∞ makes the soft mean the mean",
            ),
        ],
        needs=[GROUP],
        source="modelscope/Trinity-RFT: policy_loss_fn/opmd_policy_loss.py, advantage_fn/opmd_advantage.py",
        golden=[
            Golden(
                rewards=[1, 0],
                log_ratio=[[0.3], [0.0]],
                advantage=[0.5, -0.5],
                loss=-0.075,
                grad=[[-0.25], [0.25]],
                why="(-0.5·(-0.7) + 0.5·(-1))/2; no ratio in the slope",
            ),
            Golden(
                rewards=[1, 0],
                settings={"baseline": "log_mean_exp"},
                advantage=[0.37988549, -0.62011451],
                grad=[[-0.18994275], [0.31005725]],
                why="log((e + 1)/2) = 0.62011451",
            ),
        ],
        notes=["The variant with the squared log-ratio to the old policy is opmd_kimi."],
        recommended={"group": 8},
    ),
)
