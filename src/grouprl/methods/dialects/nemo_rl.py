"""Dialect of NeMo-RL: the numbers of its GRPO recipe, from the same parts."""

from __future__ import annotations

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import Clipped
from grouprl.algorithms.regularize.regularize import KLLoss
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Reduction
from grouprl.methods.dialects.golden import gradient, one_right
from grouprl.methods.registry import entry
from grouprl.methods.settings import ClipLow

RECIPE = "examples/configs/grpo_math_1B.yaml"


def grpo_nemo_rl(clip_low: ClipLow = 0.2, clip_high: Positive = 0.2, kl_coef: NonNegative = 0.01) -> Method:
    """Compose GRPO with the numbers of NeMo-RL's recipe."""
    kl = (KLLoss(coef=kl_coef, estimator="k3", value_limit=10.0),) if kl_coef > 0 else ()
    return Method(
        advantage=Relative("group", center="leave_one_out", scale="leave_one_out_std", eps=1e-6),
        objective=Clipped(clip_low=clip_low, clip_high=clip_high),
        aggregate=TokenMean(),
        regularize=kl,
    )


entry(
    "grpo@nemo_rl",
    grpo_nemo_rl,
    Card(
        title="GRPO as NeMo-RL computes it",
        summary="Mean and spread of the other completions of the group; token mean; KL to the reference in the loss.",
        formula="L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, 0.8, 1.2) A_i) + 0.01·k3,  "
        "A_i = (R_i - mean_{j≠i} R_j) / (std_{j≠i} R_j + 1e-6)",
        defaults={
            "clip_low": f"{RECIPE}, ratio_clip_min",
            "clip_high": f"{RECIPE}, ratio_clip_max",
            "kl_coef": f"{RECIPE}, reference_policy_kl_penalty",
        },
        differs=[
            "Baseline and spread leave the judged completion out, so advantages of a group do not sum to 0: rewards "
            "[1, 0, 0, 0] give (1, -0.577)",
            "Where the others do not differ the advantage is not divided at all",
            "Mean over tokens, not over completions; β is 0.01, the paper's 0.04",
            "NeMo-RL takes the spread as E[R²] - E[R]² in float32, which may be off by rounding",
        ],
        reduces=[
            Reduction(
                "rloo@verl",
                when=["on_policy", "two_completions"],
                settings={"kl_coef": 0.0},
                why="with one other completion there is no spread, and no clip acts",
            )
        ],
        needs=["at least two completions per prompt", "a reference model when kl_coef is above 0"],
        confidence="partly",
        uncertain="read, not run: NeMo-RL is not in the parity tests",
        source=f"NeMo-RL 7ea279a (2026-08-22): algorithms/advantage_estimator.py, algorithms/utils.py, {RECIPE}",
        golden=[
            one_right(
                settings={"kl_coef": 0.0},
                advantage=[1.0, -0.577349269, -0.577349269, -0.577349269],
                grad=gradient(-0.2, 0.1154698538),
                why="the others of a wrong completion are [1, 0, 0]: mean 1/3, sample std 0.57735",
            ),
            Golden(
                rewards=[1, 1],
                fields={"ref_bt": [[-1.5], [-1.0]]},
                advantage=[0.0, 0.0],
                loss=0.0005326533,
                grad=[[0.0019673467], [0.0]],
                why="d = 0.5: k3 = e^-0.5 - 1 + 0.5 = 0.1065307, its slope 1 - e^-0.5 = 0.3934693; both times 0.01/2",
            ),
        ],
    ),
)
