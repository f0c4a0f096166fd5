"""The ratio of whole completions, without a length bias (LUSPO) or softened instead of clipped (VESPO)."""

from __future__ import annotations

from grouprl.algorithms.aggregate.aggregate import SequenceSum, TokenMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import Clipped
from grouprl.algorithms.objective.papers.gamma_weight import GammaWeight, Power
from grouprl.core.numbers import Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import GROUP, ClipLow

LUSPO_PAPER = Paper(
    "Length-Unbiased Sequence Policy Optimization: Revealing and Controlling Response Length Variation in RLVR",
    "2602.05261",
    2026,
)
VESPO_PAPER = Paper(
    "VESPO: Variational Sequence-Level Soft Policy Optimization for Stable Off-Policy LLM Training", "2602.10693", 2026
)


def luspo(base: Method, clip_low: ClipLow = 2e-3, clip_high: Positive = 2.5e-3) -> Method:
    """Compose LUSPO.

    Mean over completions of -|y|·min(sA, clip(s)A), s = exp(mean_t log ρ_t), A as in GRPO.
    """
    return base.with_parts(
        objective=Clipped(clip_low=clip_low, clip_high=clip_high, ratio="sequence"),
        aggregate=SequenceSum(),
    )


entry(
    "luspo",
    luspo,
    Card(
        title="Length-Unbiased Sequence Policy Optimization",
        papers=[LUSPO_PAPER],
        summary="GSPO with each completion's loss times its length: long completions are no longer held back.",
        formula="L = -1/B Σ_i |y_i| min(s_i A_i, clip(s_i, 1-ε_low, 1+ε_high) A_i),  "
        "s_i = (π(y_i)/π_old(y_i))^(1/|y_i|)",
        defaults={
            "clip_low": "the paper, section 5.1, as TRL's paper index cites it: 2e-3",
            "clip_high": "the paper, section 5.1, as TRL's paper index cites it: 2.5e-3",
        },
        differs=["None known."],
        reduces=[
            Reduction(
                "gspo", ["equal_lengths"], {}, {"clip_low": 2e-3, "clip_high": 2.5e-3}, None, "the length is one"
            ),
            Reduction("grpo", ["on_policy", "equal_lengths"], scale=None, why="every ratio is 1"),
        ],
        needs=["at least two completions per prompt", "two or more updates per rollout for the clip to act"],
        confidence="partly",
        uncertain="the paper was not read: its loss is TRL's loss_type luspo, its limits are from TRL's paper index",
        source="TRL 1.16.0 grpo_trainer.py (loss_type luspo with importance_sampling_level sequence), run against this",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                log_ratio=[[0.002, 0.001], [-0.003]],
                advantage=[0.70710578, -0.70710578],
                loss=-0.35532145,
                grad=[[-0.35408362] * 2, [0.0]],
                why="s = e^0.0015 is inside, e^-0.003 below 0.998; ½(2·(-0.7071058·1.0015011) + 0.7071058·0.998)",
                tolerance=1e-7,
            )
        ],
    ),
    base="grpo",
    keeps=GROUP,
)


def vespo(
    base: Method,
    k_positive: Power = 2.0,
    lambda_positive: Power = 3.0,
    k_negative: Power = 3.0,
    lambda_negative: Power = 2.0,
) -> Method:
    """Compose VESPO.

    Token mean of -sg[w^k e^(λ(1-w))]·A·log π, w the ratio of the whole completion, A as in GRPO.
    """
    return base.with_parts(
        objective=GammaWeight(
            k_positive=k_positive,
            lambda_positive=lambda_positive,
            k_negative=k_negative,
            lambda_negative=lambda_negative,
        ),
        aggregate=TokenMean(),
    )


entry(
    "vespo",
    vespo,
    Card(
        title="Variational Sequence-Level Soft Policy Optimization",
        papers=[VESPO_PAPER],
        summary="Weigh each completion by a gamma-shaped function of its whole ratio, which fades on both sides of 1.",
        formula="L = -1/Σ|y_i| Σ_i Σ_t sg[w_i^k e^(λ(1-w_i))] A_i log π(y_t),  w_i = π(y_i)/π_old(y_i)",
        defaults={
            "k_positive": "GRPOConfig.vespo_k_pos",
            "lambda_positive": "GRPOConfig.vespo_lambda_pos",
            "k_negative": "GRPOConfig.vespo_k_neg",
            "lambda_negative": "GRPOConfig.vespo_lambda_neg",
        },
        differs=["The logarithm of w is held between log 1e-8 and 20, as in TRL."],
        reduces=[
            Reduction("dapo", ["on_policy", "mixed_groups"], why="every w is 1, and so is its weight"),
            Reduction("grpo", ["on_policy", "equal_lengths"], why="every w is 1, and so is its weight"),
        ],
        needs=["at least two completions per prompt", "two or more updates per rollout for the weight to act"],
        confidence="partly",
        uncertain="the paper was not read: loss, weights and defaults are TRL's loss_type vespo",
        source="TRL 1.16.0 grpo_trainer.py (loss_type vespo), run against this",
        golden=[
            Golden(
                rewards=[1, 0],
                log_ratio=[[0.5], [-0.2]],
                advantage=[0.70710578, -0.70710578],
                loss=-0.26595626,
                grad=[[-0.13725895], [0.27882144]],
                why="weights e^(2·0.5 + 3(1 - e^0.5)) = 0.3882275 and e^(-3·0.2 + 2(1 - e^-0.2)) = 0.7886272",
            ),
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                log_ratio=[[0.3, 0.2], [0.0]],
                advantage=[0.70710578, -0.70710578],
                grad=[[-0.09150597] * 2, [0.23570193]],
                why="the ratio is that of both tokens together: e^0.5, weight 0.3882275; three tokens",
            ),
        ],
    ),
    base="grpo",
    keeps=GROUP,
)
