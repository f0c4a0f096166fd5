"""Further losses of verl by their names there.

The rule of `grouprl.methods.dialects.verl` decides the numbers. `tests/parity/test_verl.py` runs verl 0.9.1's own
functions against these entries.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.papers.divergence_mask import DivergenceMask
from grouprl.algorithms.objective.papers.soft import GeometricMean, SoftGate
from grouprl.algorithms.token_weight.importance import GeometricImportance, MaskedImportance, TruncatedImportance
from grouprl.algorithms.token_weight.token_weight import TokenWeight
from grouprl.core.errors import InputError
from grouprl.core.numbers import NonNegative, Positive, PositiveShare, Share
from grouprl.methods.card import Card, Golden, Reduction
from grouprl.methods.dialects import verl
from grouprl.methods.dialects.golden import gradient, one_right
from grouprl.methods.dialects.switches import dialect
from grouprl.methods.dialects.verl import (
    ADVANTAGE,
    DUAL_CLIPPED,
    FOR_EVERY_LOSS,
    LONE,
    ROUNDING,
    SOURCE,
    SWITCHES,
)
from grouprl.methods.registry import entry, method
from grouprl.methods.settings import ClipLow, DualClip

VANILLA = f"L = 1/Σ|y_i| Σ_i Σ_t l_t,  {DUAL_CLIPPED}"
DUAL = "Dual clip at 3, token mean, no KL, as of every loss of verl's unless told otherwise"
APART = "loss_agg_mode decides for entropy and KL alone: the policy loss has a mean of its own"


def sapo_verl(tau_pos: Positive = 1.0, tau_neg: Positive = 1.05, norm_adv_by_std_in_grpo: bool = True) -> Method:
    """Compose SAPO with verl's numbers."""
    gate = SoftGate(tau_positive=tau_pos, tau_negative=tau_neg)
    return Method(advantage=verl.advantage(norm_adv_by_std_in_grpo), objective=gate, aggregate=SequenceMean())


dialect(
    "sapo@verl",
    sapo_verl,
    Card(
        title="SAPO as verl computes it",
        summary="loss_mode=sapo: the soft gate, always with a mean over each completion's tokens.",
        formula="L = -1/B Σ_i 1/|y_i| Σ_t (4/τ) σ(τ(ρ_t - 1)) A_i",
        defaults={"tau_pos": "ActorConfig.tau_pos", "tau_neg": "ActorConfig.tau_neg"},
        differs=[APART, LONE, ROUNDING],
        reduces=[Reduction("sapo", other={"alone": "raw"}, why="only a group of one is judged otherwise by default")],
        source=SOURCE,
        golden=[one_right(advantage=ADVANTAGE, grad=gradient(-0.187499625, 0.12499975), why="at ρ = 1 the slope is 1")],
    ),
    verl.switches_apart,
    SWITCHES,
)


@functools.wraps(verl.switches_apart)
def gmpo_switches(method: Method, **settings: Any) -> Method:
    """Set the same as for other losses; token weights become the geometric mean over their completion."""
    found = verl.switches_apart(method, **settings)
    return found.with_parts(token_weight=tuple(map(_of_completion, found.token_weight)))


def _of_completion(weight: TokenWeight) -> TokenWeight:
    if isinstance(weight, MaskedImportance) and weight.level == "token":
        raise InputError(
            "gmpo@verl: rollout_is token with a lower bound in rollout_is_threshold",
            "verl takes the logarithm of a weight of 0 there",
            "Give an upper bound alone, or rollout_is sequence",
        )
    if isinstance(weight, TruncatedImportance) and weight.level == "token":
        return GeometricImportance(high=weight.high)
    return weight


def gmpo_verl(
    clip_ratio_low: Positive = 0.2,
    clip_ratio_high: Positive = 0.2,
    norm_adv_by_std_in_grpo: bool = True,
) -> Method:
    """Compose GMPO with verl's numbers."""
    mean = GeometricMean(clip_low=clip_ratio_low, clip_high=clip_ratio_high)
    return Method(advantage=verl.advantage(norm_adv_by_std_in_grpo), objective=mean, aggregate=SequenceMean())


dialect(
    "gmpo@verl",
    gmpo_verl,
    Card(
        title="GMPO as verl computes it",
        summary="loss_mode=geo_mean: the geometric mean of ratios, by default clipped at e^±0.2.",
        formula="L = -1/B Σ_i exp(1/|y_i| Σ_t c_t) A_i",
        defaults={},
        differs=[
            "The clip stays at 0.2 unless set: the paper's is 0.4",
            "With rollout_is token a completion's weight is the geometric mean of its tokens' weights, as in verl; a "
            "lower bound in rollout_is_threshold is refused there: verl takes the logarithm of a weight of 0",
            APART,
            LONE,
            ROUNDING,
        ],
        reduces=[
            Reduction(
                "gmpo",
                settings={"clip_ratio_low": 0.4, "clip_ratio_high": 0.4},
                other={"alone": "raw"},
                why="the paper's clip",
            )
        ],
        source=SOURCE,
        golden=[one_right(advantage=ADVANTAGE, grad=gradient(-0.187499625, 0.12499975), why="at ρ = 1 the mean is 1")],
    ),
    gmpo_switches,
    SWITCHES,
)


def dppo_verl(
    base: Method,
    loss_mode: Literal["dppo_tv", "dppo_kl"] = "dppo_tv",
    clip_ratio_low: Positive = 0.2,
    clip_ratio_high: Positive = 0.2,
    clip_ratio_c: Positive | None = 3.0,
) -> Method:
    """Compose DPPO with verl's numbers."""
    mask = DivergenceMask(
        divergence="tv" if loss_mode == "dppo_tv" else "kl",
        clip_low=clip_ratio_low,
        clip_high=clip_ratio_high,
        cap=clip_ratio_c,
    )
    return base.with_parts(objective=mask)


entry(
    "dppo@verl",
    dppo_verl,
    Card(
        title="DPPO as verl computes it",
        summary="loss_mode=dppo_tv or dppo_kl: verl's clip settings become limits of a divergence.",
        formula="L = -1/Σ|y_i| Σ_i Σ_t M_t sg[min(ρ_t, 3)] A_i log π(y_t)",
        defaults={
            "loss_mode": "the name of the loss: dppo_tv or dppo_kl",
            "clip_ratio_c": "ActorConfig.clip_ratio_c, here the ratio's cap (20 where a config lacks it; null: none)",
        },
        differs=[
            "clip_ratio_low and clip_ratio_high stay at 0.2 and clip_ratio_c at 3 unless set: the paper's scripts set "
            "0.15 (tv) or 0.05 (kl) and a large cap, no standard deviation, and a constant length",
            LONE,
            ROUNDING,
        ],
        reduces=[Reduction("grpo@verl", when=["on_policy"], why="nothing has moved, and every ratio is 1")],
        source=SOURCE,
        golden=[
            one_right(
                log_ratio=[[0.8, 0.0], [1.0], [0.0], [0.0]],
                advantage=ADVANTAGE,
                grad=[[0.0, -0.2999994], [0.27182764], [0.0999998], [0.0999998]],
                why="π_old = 0.3679: 0.8187 is 0.45 above it; a wrong token may rise, its ratio e is below the cap",
            )
        ],
    ),
    base="grpo@verl",
    keeps=("norm_adv_by_std_in_grpo", *FOR_EVERY_LOSS),
)


def ppo_verl(
    clip_ratio_low: ClipLow = 0.2,
    clip_ratio_high: Positive = 0.2,
    clip_ratio_c: DualClip = 3.0,
    gamma: Share = 1.0,
    lam: Share = 1.0,
    cliprange_value: Positive = 0.5,
) -> Method:
    """Compose PPO with verl's numbers."""
    clip = {"clip_low": clip_ratio_low, "clip_high": clip_ratio_high, "dual_clip": clip_ratio_c}
    return method("ppo", **clip, gamma=gamma, lam=lam, value_clip=cliprange_value)


dialect(
    "ppo@verl",
    ppo_verl,
    Card(
        title="PPO as verl computes it",
        summary="adv_estimator=gae: GAE with λ = 1, whitened, dual clip at 3, values clipped at 0.5.",
        formula=f"{VANILLA},  A_t = GAE(γ = 1, λ = 1) whitened;  value loss ½ max((V - G)², (V_clip - G)²)",
        defaults={
            "gamma": "AlgoConfig.gamma",
            "lam": "AlgoConfig.lam: 1.0, Monte-Carlo returns",
            "cliprange_value": "CriticConfig.cliprange_value",
        },
        differs=["λ is 1 (the paper: 0.95), the value clip 0.5", DUAL, "The critic's mean is that of the policy loss"],
        reduces=[
            Reduction(
                "ppo",
                other={"lam": 1.0, "dual_clip": 3.0, "value_clip": 0.5},
                why="the same with verl's settings",
            )
        ],
        needs=["a critic"],
        source=SOURCE,
        golden=[
            Golden(
                rewards=[1, 0],
                groups=[0, 1],
                fields={"value_bt": [[0.5], [0.5]]},
                advantage=[0.70710677, -0.70710677],
                grad=[[-0.35355338], [0.35355338]],
                why="advantages ±0.5, sample variance 0.5",
            )
        ],
    ),
    verl.switches,
    SWITCHES,
)


def clip_cov_verl(
    clip_cov_ratio: PositiveShare = 2e-4,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
    clip_ratio_low: ClipLow = 0.2,
    clip_ratio_high: Positive = 0.2,
) -> Method:
    """Compose Clip-Cov with verl's numbers."""
    band = {"share": clip_cov_ratio, "lower": clip_cov_lb, "upper": clip_cov_ub}
    clip = {"clip_low": clip_ratio_low, "clip_high": clip_ratio_high}
    return method("clip_cov", **band, **clip, alone="raw", dynamic_sampling=False)


dialect(
    "clip_cov@verl",
    clip_cov_verl,
    Card(
        title="Clip-Cov as verl computes it",
        summary="loss_mode=clip_cov: a few random tokens of high covariance lose their gradient, beside a clip at 0.2.",
        formula="L = -1/Σ|y_i| Σ_i Σ_t [t not sampled] min(ρ_t A_i, clip(ρ_t, 0.8, 1.2) A_i)",
        defaults={
            "clip_cov_ratio": "PolicyLossConfig.clip_cov_ratio",
            "clip_cov_lb": "PolicyLossConfig.clip_cov_lb",
            "clip_cov_ub": "PolicyLossConfig.clip_cov_ub",
        },
        differs=[
            "The clip stays at 0.2 unless set; the authors' scripts set 1, practically none",
            "Which tokens are sampled comes from a hash of their log-probs; verl samples them with torch.randperm",
            "No groups are left out or sampled anew",
            LONE,
            ROUNDING,
        ],
        reduces=[
            Reduction(
                "clip_cov",
                other={"clip_low": 0.2, "clip_high": 0.2, "dynamic_sampling": False, "alone": "raw"},
                why="the same without the recipe's filter",
            )
        ],
        source=SOURCE,
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 2],
                log_ratio=[[0.0, 0.0], [0.0, 0.0]],
                advantage=[0.70710578, -0.70710578],
                grad=[[-0.176776445] * 2, [0.176776445] * 2],
                why="all log-probs are alike: no covariance, nothing is sampled",
            )
        ],
    ),
    verl.switches,
    SWITCHES,
)


def kl_cov_verl(kl_cov_ratio: PositiveShare = 2e-4, ppo_kl_coef: NonNegative = 0.1) -> Method:
    """Compose KL-Cov with verl's numbers."""
    return method("kl_cov", share=kl_cov_ratio, coef=ppo_kl_coef, alone="raw", dynamic_sampling=False)


dialect(
    "kl_cov@verl",
    kl_cov_verl,
    Card(
        title="KL-Cov as verl computes it",
        summary="loss_mode=kl_cov: tokens of highest covariance pay 0.1 for leaving the policy; nothing is clipped.",
        formula="L = -1/Σ|y_i| Σ_i Σ_t (ρ_t A_i - 0.1 [t in top share] |log ρ_t|)",
        defaults={
            "kl_cov_ratio": "PolicyLossConfig.kl_cov_ratio",
            "ppo_kl_coef": "PolicyLossConfig.ppo_kl_coef: 0.1, the authors' scripts 1",
        },
        differs=["ppo_kl_coef is 0.1, the authors' 1", "No groups are left out or sampled anew", LONE, ROUNDING],
        reduces=[
            Reduction(
                "kl_cov",
                other={"share": 2e-4, "coef": 0.1, "dynamic_sampling": False, "alone": "raw"},
                why="the same without the recipe's filter",
            )
        ],
        source=SOURCE,
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 2],
                log_ratio=[[0.5, 0.0], [0.0, 0.0]],
                advantage=[0.70710578, -0.70710578],
                grad=[[-0.26645535, -0.17677645], [0.17677645] * 2],
                why="the first token has the largest covariance: (-0.7071058·e^0.5 + 0.1)/4",
            )
        ],
    ),
    verl.switches,
    SWITCHES,
)
