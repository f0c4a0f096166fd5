"""Ratios of whole completions, and gates instead of clips: GSPO, GMPO, SAPO."""

from __future__ import annotations

from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import Clipped
from grouprl.algorithms.objective.papers.soft import GeometricMean, SoftGate
from grouprl.core.numbers import Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import GROUP, KL, KL_NEED, ClipLow

GSPO_PAPER = Paper("Group Sequence Policy Optimization", "2507.18071", 2025)
GSPO_DEFAULTS = {
    "clip_low": "the paper, section 5.1: 3e-4",
    "clip_high": "the paper, section 5.1: 4e-4",
    "kl_coef": "off, as in the paper's experiments",
}
GSPO_GOLDEN = Golden(
    rewards=[1, 0],
    lengths=[2, 1],
    log_ratio=[[0.0004, 0.0002], [-0.0005]],
    advantage=[0.70710578, -0.70710578],
    loss=-0.00021214765,
    grad=[[-0.17682949] * 2, [0.0]],
    why="means of log-ratios 3e-4 (inside) and -5e-4 (below 1-3e-4: the whole completion is clipped at 0.9997)",
    tolerance=1e-8,
)
GSPO_SOURCE = "the paper; verl core_algos.py (gspo), TRL importance_sampling_level"


def gspo(base: Method, clip_low: ClipLow = 3e-4, clip_high: Positive = 4e-4) -> Method:
    """Compose GSPO.

    Mean over completions of -min(sA, clip(s)A), s = exp(mean_t log ρ_t), A as in GRPO; as in the paper.
    """
    return base.with_parts(objective=Clipped(clip_low=clip_low, clip_high=clip_high, ratio="sequence"))


entry(
    "gspo",
    gspo,
    Card(
        title="Group Sequence Policy Optimization",
        papers=[GSPO_PAPER],
        summary=(
            "GRPO with one ratio per completion, the geometric mean of its tokens' ratios: whole completions "
            "are clipped."
        ),
        formula="L = -1/B Σ_i min(s_i A_i, clip(s_i, 1-ε_low, 1+ε_high) A_i),  s_i = (π(y_i)/π_old(y_i))^(1/|y_i|)",
        defaults=GSPO_DEFAULTS,
        differs=["None known."],
        reduces=[
            Reduction("gspo_token", why="value, gradient and clipping agree where A is the same for all tokens"),
            Reduction("grpo", ["on_policy"], why="every ratio is 1, and its gradient 1/|y| per token"),
            Reduction(
                "gmpo",
                settings={"clip_low": 1.0, "clip_high": 1e9},
                other={"clip_low": 100.0, "clip_high": 100.0},
                why="without any clip both are the geometric mean of the ratios",
            ),
        ],
        needs=["at least two completions per prompt", "two or more updates per rollout for the clip to act", KL_NEED],
        source=GSPO_SOURCE,
        golden=[GSPO_GOLDEN],
        notes=["The ratio hugs 1: with ε = 0.2 it would never be clipped."],
        recommended={"updates per rollout": 4},
    ),
    base="grpo",
    keeps=(*GROUP, *KL),
)


def gspo_token(base: Method, clip_low: ClipLow = 3e-4, clip_high: Positive = 4e-4) -> Method:
    """Compose GSPO-token.

    As GSPO with s_t = sg[s]·π/sg[π], so that the gradient is per token and A may vary with t; as in the paper.
    """
    return base.with_parts(objective=Clipped(clip_low=clip_low, clip_high=clip_high, ratio="sequence_token"))


entry(
    "gspo_token",
    gspo_token,
    Card(
        title="GSPO-token",
        papers=[GSPO_PAPER],
        summary="GSPO's ratio in value, each token's own gradient: for advantages that differ within a completion.",
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(s_t A_t, clip(s_t, 1-ε_low, 1+ε_high) A_t),  "
            "s_t = sg[s_i] · π(y_t)/sg[π(y_t)]"
        ),
        defaults=GSPO_DEFAULTS,
        differs=["None known. verl limits the exponent at 10 from above, here it is ±20."],
        reduces=[
            Reduction("gspo", why="where A is the same for all tokens"),
            Reduction("grpo", ["on_policy"], why="every ratio is 1"),
        ],
        needs=["at least two completions per prompt", "two or more updates per rollout for the clip to act", KL_NEED],
        source=GSPO_SOURCE,
        golden=[GSPO_GOLDEN],
        recommended={"updates per rollout": 4},
    ),
    base="grpo",
    keeps=(*GROUP, *KL),
)


def gmpo(base: Method, clip_low: Positive = 0.4, clip_high: Positive = 0.4) -> Method:
    """Compose GMPO.

    Mean over completions of -exp(mean_t c_t)·A, c the token's log-ratio clipped on the side of A; as in the paper.
    """
    return base.with_parts(
        objective=GeometricMean(clip_low=clip_low, clip_high=clip_high),
    )


entry(
    "gmpo",
    gmpo,
    Card(
        title="Geometric-Mean Policy Optimization",
        papers=[Paper("Geometric-Mean Policy Optimization", "2507.20673", 2025)],
        summary="The geometric mean of token ratios, each clipped in log space first: outliers cannot carry it.",
        formula=(
            "L = -1/B Σ_i exp(1/|y_i| Σ_t c_t) A_i,  "
            "c_t = min(log ρ_t, ε_high) if A_i > 0, max(log ρ_t, -ε_low) if A_i < 0"
        ),
        defaults={
            "clip_low": "the paper: ratios in (e^-0.4, e^0.4)",
            "clip_high": "the paper: ratios in (e^-0.4, e^0.4)",
            "kl_coef": "off, as in verl's and TRL's versions",
        },
        differs=["None known. Limits are log-ratios: 0.4, not e^0.4."],
        reduces=[
            Reduction("grpo", ["on_policy"], why="every ratio is 1"),
            Reduction(
                "gspo",
                settings={"clip_low": 100.0, "clip_high": 100.0},
                other={"clip_low": 1.0, "clip_high": 1e9},
                why="without any clip both are the geometric mean of the ratios",
            ),
        ],
        needs=["at least two completions per prompt", "two or more updates per rollout for the clip to act", KL_NEED],
        source="verl core_algos.py (geo_mean), TRL experimental gmpo",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                log_ratio=[[0.6, -0.2], [-0.5]],
                advantage=[0.70710578, -0.70710578],
                loss=-0.15374278,
                grad=[[0.0, -0.19536819], [0.0]],
                why="0.6 → 0.4, so exp((0.4 - 0.2)/2) = e^0.1; -0.5 → -0.4; clipped tokens have no gradient",
            )
        ],
    ),
    base="grpo",
    keeps=(*GROUP, *KL),
)


def sapo(
    base: Method,
    tau_positive: Positive = 1.0,
    tau_negative: Positive = 1.05,
) -> Method:
    """Compose SAPO.

    Mean over completions of the token mean of -(4/τ)·σ(τ(ρ-1))·A, A as in GRPO; as in the paper.
    """
    return base.with_parts(
        objective=SoftGate(tau_positive=tau_positive, tau_negative=tau_negative),
    )


entry(
    "sapo",
    sapo,
    Card(
        title="Soft Adaptive Policy Optimization",
        papers=[Paper("Soft Adaptive Policy Optimization", "2511.20347", 2025)],
        summary="A smooth gate on each token's ratio instead of a clip, a little narrower for negative advantages.",
        formula="L = -1/B Σ_i 1/|y_i| Σ_t (4/τ) σ(τ(ρ_t - 1)) A_i,  τ = τ_positive if A_i > 0 else τ_negative",
        defaults={
            "tau_positive": "the paper: 1.0",
            "tau_negative": "the paper: 1.05",
            "kl_coef": "off, as in TRL's and verl's versions",
        },
        differs=["None known. The loss value is not comparable with PPO's: the gate is 2/τ at ρ = 1."],
        reduces=[Reduction("grpo", ["on_policy"], why="the gate's slope is 1 where the ratio is 1")],
        needs=["at least two completions per prompt", "two or more updates per rollout for the gate to act", KL_NEED],
        source="TRL grpo_trainer.py (loss_type sapo), verl core_algos.py, ms-swift SAPO.md",
        golden=[
            Golden(
                rewards=[1, 0],
                log_ratio=[[0.5], [-0.2]],
                advantage=[0.70710578, -0.70710578],
                loss=-0.31920561,
                grad=[[-0.52564073], [0.28685880]],
                why="gradient A·4q(1-q)·ρ/2 with q = σ(e^0.5 - 1) and q = σ(1.05(e^-0.2 - 1))",
            )
        ],
    ),
    base="grpo",
    keeps=(*GROUP, *KL),
)
