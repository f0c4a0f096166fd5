"""Trust regions of divergences instead of ratios: DPPO."""

from __future__ import annotations

from grouprl.algorithms.aggregate.aggregate import ConstantLength
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.papers.divergence_mask import Divergence, DivergenceMask
from grouprl.algorithms.objective.ratio import Against
from grouprl.core.levels import Scale
from grouprl.core.numbers import Limit, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry

PAPER = Paper("Rethinking the Trust Region in LLM Reinforcement Learning", "2602.04879", 2026)


def dppo(
    base: Method,
    divergence: Divergence = "tv",
    clip_low: Positive | None = None,
    clip_high: Positive | None = None,
    cap: Limit = 20.0,
    against: Against = "old",
    scale: Scale = "none",
) -> Method:
    """Compose DPPO.

    -M·sg[min(ρ, cap)]·A·log π over a constant length, M by divergence of probabilities, A = R - mean.
    """
    limit = 0.15 if divergence == "tv" else 0.05
    low, high = (limit if x is None else x for x in (clip_low, clip_high))
    return base.with_parts(
        objective=DivergenceMask(divergence=divergence, clip_low=low, clip_high=high, cap=cap, against=against),
        aggregate=ConstantLength(),
    )


entry(
    "dppo",
    dppo,
    Card(
        title="Divergence PPO",
        papers=[PAPER],
        summary="Leave out tokens by how far their probability has moved, not by their ratio, which is capped instead.",
        formula="L = -1/(B·Lmax) Σ_i Σ_t M_t sg[min(ρ_t, c)] A_i log π(y_t),  M_t = 0 where π - π_old > δ_high and "
        "A_i > 0, or π_old - π > δ_low and A_i ≤ 0 (tv); or where the two-outcome KL is above δ (kl)",
        defaults={
            "divergence": "tv: the paper's binary total variation; kl is its binary KL",
            "clip_low": "0.15 for tv, 0.05 for kl, in scripts that use verl's dppo_tv and dppo_kl; none takes these",
            "clip_high": "as clip_low",
            "cap": "20, the bound in verl's code where none is set",
            "against": "old, as in verl; behavior takes the sampler",
            "scale": "none, as verl's scripts set it (norm_adv_by_std_in_grpo=False)",
        },
        differs=[
            "clip_low and clip_high bound a difference of probabilities (tv) or a KL in nats (kl), not a ratio",
            "prime-rl's mask alone, without a cap and with the ratio to the sampler, is dppo_mask",
        ],
        reduces=[
            Reduction("dr_grpo", ["on_policy"], why="nothing has moved, and every ratio is 1"),
        ],
        needs=["at least two completions per prompt", "two or more updates per rollout for the mask to act"],
        confidence="partly",
        uncertain="the paper was not read: mask, cap and limits are verl's dppo_tv and dppo_kl and their scripts",
        source="verl 0.9.1 core_algos.py (dppo_tv, dppo_kl), run against this",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                log_ratio=[[0.5, 0.1], [-0.1]],
                fields={"max_length": 2},
                advantage=[0.5, -0.5],
                grad=[[0.0, -0.13814636], [0.11310468]],
                why="π_old = 0.3679: 0.6065 has moved by 0.24 and is left out, 0.4066 and 0.3329 are kept; ρ·A/4",
            ),
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                log_ratio=[[0.5, 0.1], [-0.5]],
                fields={"max_length": 2},
                settings={"divergence": "kl", "cap": 1.05},
                advantage=[0.5, -0.5],
                grad=[[0.0, -0.13125], [0.0]],
                why="two-outcome KL 0.1157, 0.0031, 0.0536: only the second is below 0.05; its ratio 1.105 is capped",
            ),
        ],
    ),
    base="grpo",
    keeps=("eps", "alone"),
)
