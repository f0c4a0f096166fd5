"""Further estimators and losses of verl by their names there.

The rule of `dialects_verl` decides the numbers. `tests/parity/test_verl.py` runs verl 0.9.1's own functions against
these entries.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

from grouprl.algorithms.advantage.papers.baselines import GreedyBaseline, LengthWeighted
from grouprl.algorithms.advantage.papers.best_of_group import BestOverSecond
from grouprl.algorithms.advantage.papers.decoupled_components import DecoupledComponents
from grouprl.algorithms.advantage.papers.token_baseline import TokenBaseline
from grouprl.algorithms.advantage_transform.advantage_transform import Whiten
from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import Clipped
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
    CLIPS,
    DUAL_CLIPPED,
    FOR_EVERY_LOSS,
    IN_REWARD,
    LONE,
    ROUNDING,
    SOURCE,
    SWITCHES,
    WITHOUT_CORRECTION,
)
from grouprl.methods.registry import entry, method
from grouprl.methods.settings import ClipLow, DualClip

VANILLA = f"L = 1/Σ|y_i| Σ_i Σ_t l_t,  {DUAL_CLIPPED}"
DUAL = "Dual clip at 3, token mean, no KL, as of every loss of verl's unless told otherwise"
APART = "loss_agg_mode decides for entropy and KL alone: the policy loss has a mean of its own"


def vanilla(low: float, high: float, dual: float | None) -> Clipped:
    """Return the clip of loss_mode=vanilla."""
    return Clipped(clip_low=low, clip_high=high, dual_clip=dual)


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
    """Set the same as for other losses; weights of tokens become one of their completion, their geometric mean."""
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


def opo_verl(base: Method) -> Method:
    """Compose OPO with verl's numbers."""
    return base.with_parts(advantage=LengthWeighted(alone="raw"))


entry(
    "opo@verl",
    opo_verl,
    Card(
        title="OPO as verl computes it",
        summary="adv_estimator=opo: the length-weighted baseline in front of verl's PPO clip.",
        formula=f"{VANILLA},  A_i = R_i - Σ_j |y_j| R_j / Σ_j |y_j|",
        defaults={},
        differs=["The paper takes exact on-policy steps without a clip", DUAL, "A group of one keeps its raw reward"],
        reduces=[
            Reduction(
                "opo",
                when=["on_policy", "equal_lengths"],
                other={"alone": "raw"},
                scale=None,
                why="without drift no clip acts",
            )
        ],
        source=SOURCE,
        golden=[one_right(advantage=[0.6, -0.4, -0.4, -0.4], grad=gradient(-0.12, 0.08), why="baseline 2·1/5")],
    ),
    base="grpo@verl",
    keeps=(*CLIPS, *FOR_EVERY_LOSS),
)


def remax_verl(base: Method) -> Method:
    """Compose ReMax with verl's numbers."""
    return base.with_parts(advantage=GreedyBaseline(limit=None), greedy_baseline=True)


entry(
    "remax@verl",
    remax_verl,
    Card(
        title="ReMax as verl computes it",
        summary="adv_estimator=remax: reward minus that of the greedy completion, in front of verl's PPO clip.",
        formula=f"{VANILLA},  A_i = R_i - R_greedy",
        defaults={},
        differs=["The paper takes on-policy REINFORCE steps", DUAL],
        reduces=[
            Reduction(
                "remax",
                when=["on_policy", "equal_lengths"],
                other={"limit": None},
                scale=None,
                why="without drift no clip acts",
            )
        ],
        needs=["one greedy completion per prompt"],
        source=SOURCE,
        golden=[
            one_right(
                fields={"greedy_reward_b": [0.25, 0.25, 0.25, 0.25]},
                advantage=[0.75, -0.25, -0.25, -0.25],
                grad=gradient(-0.15, 0.05),
            )
        ],
    ),
    base="grpo@verl",
    keeps=(*CLIPS, *(name for name in FOR_EVERY_LOSS if name not in IN_REWARD)),
)


def reinforce_pp_verl(
    clip_ratio_low: ClipLow = 0.2, clip_ratio_high: Positive = 0.2, clip_ratio_c: DualClip = 3.0, gamma: Share = 1.0
) -> Method:
    """Compose REINFORCE++ with verl's numbers."""
    clip = {"clip_low": clip_ratio_low, "clip_high": clip_ratio_high, "dual_clip": clip_ratio_c}
    return method("reinforce_pp", **clip, gamma=gamma, variance="sample")


dialect(
    "reinforce_pp@verl",
    reinforce_pp_verl,
    Card(
        title="REINFORCE++ as verl computes it",
        summary="adv_estimator=reinforce_plus_plus: returns to go, whitened by the sample variance, dual clip.",
        formula=f"{VANILLA},  A = (G - mean_B G) / sqrt(var_B G + 1e-8)",
        defaults={"gamma": "AlgoConfig.gamma"},
        differs=["The variance divides by n - 1; the authors' code by n", DUAL],
        reduces=[
            Reduction(
                "reinforce_pp",
                other={"variance": "sample", "dual_clip": 3.0},
                why="the same with verl's variance and dual clip",
            )
        ],
        source=SOURCE,
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 3],
                groups=[0, 1],
                advantage=[1.49999997, -0.49999999],
                grad=[[-0.37499999], [0.125] * 3],
                why="four tokens with returns 1, 0, 0, 0: mean 0.25, sample variance 0.25",
            )
        ],
    ),
    verl.switches,
    SWITCHES,
)


def reinforce_pp_baseline_verl(
    clip_ratio_low: ClipLow = 0.2, clip_ratio_high: Positive = 0.2, clip_ratio_c: DualClip = 3.0
) -> Method:
    """Compose REINFORCE++-baseline with verl's numbers."""
    clip = {"clip_low": clip_ratio_low, "clip_high": clip_ratio_high, "dual_clip": clip_ratio_c}
    return method("reinforce_pp_baseline", **clip, variance="sample", alone="raw")


dialect(
    "reinforce_pp_baseline@verl",
    reinforce_pp_baseline_verl,
    Card(
        title="REINFORCE++-baseline as verl computes it",
        summary="adv_estimator=reinforce_plus_plus_baseline: group mean off, then whitened over all tokens.",
        formula=f"{VANILLA},  A = (C - mean_B C) / sqrt(var_B C + 1e-8),  C_i = R_i - mean_g R",
        defaults={},
        differs=["The variance divides by n - 1; the authors' code by n", DUAL, "A group of one keeps its raw reward"],
        reduces=[
            Reduction(
                "reinforce_pp_baseline",
                other={"variance": "sample", "dual_clip": 3.0, "alone": "raw"},
                why="the same with verl's variance and dual clip",
            )
        ],
        source=SOURCE,
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 1],
                advantage=[0.70710677, -0.70710677],
                grad=[[-0.35355338], [0.35355338]],
                why="±0.5 have the sample variance 0.5",
            )
        ],
    ),
    verl.switches,
    SWITCHES,
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
                lengths=[1, 1],
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


def gdpo_verl(
    base: Method,
    norm_adv_by_std_in_grpo: bool,
    gdpo_reward_keys: list[str] | None = None,
    gdpo_reward_weights: list[float] | None = None,
) -> Method:
    """Compose GDPO with verl's numbers."""
    keys, weights = gdpo_reward_keys or [], gdpo_reward_weights
    if weights is not None and len(weights) != len(keys):
        raise InputError(
            f"{len(weights)} gdpo_reward_weights for {len(keys)} gdpo_reward_keys", "each key needs one weight"
        )
    scale: Literal["sample_std", "none"] = "sample_std" if norm_adv_by_std_in_grpo else "none"
    named = dict(zip(keys, weights or [1.0] * len(keys), strict=True))
    return base.with_parts(
        advantage=DecoupledComponents(weights=named, scale=scale, eps=1e-6, alone="raw"),
        advantage_transform=(Whiten(key="batch", count="token", variance="sample", eps=1e-8),),
    )


entry(
    "gdpo@verl",
    gdpo_verl,
    Card(
        title="GDPO as verl computes it",
        summary="adv_estimator=gdpo: components normalised one by one, the sum whitened over all tokens.",
        formula=f"{VANILLA},  A = (S - mean S)/sqrt(var S + 1e-8) over tokens,  "
        "S_i = Σ_k w_k (r_ik - mean)/(std + 1e-6)",
        defaults={
            "gdpo_reward_keys": "AlgoConfig.gdpo_reward_keys: None takes every component",
            "norm_adv_by_std_in_grpo": "AlgoConfig.norm_adv_by_std_in_grpo",
            "gdpo_reward_weights": "AlgoConfig.gdpo_reward_weights: None weighs every key 1",
        },
        differs=["Whitened over tokens, so long completions count more in mean and variance", DUAL, LONE],
        source=SOURCE,
        golden=[
            Golden(
                rewards=[2, 1, 0, 0],
                lengths=[1, 1, 1, 1],
                fields={"rewards.accuracy": [1.0, 0.0, 0.0, 0.0], "rewards.format": [1.0, 1.0, 0.0, 0.0]},
                settings={"gdpo_reward_keys": ["accuracy"]},
                advantage=[1.5, -0.5, -0.5, -0.5],
                grad=[[-0.375], [0.125], [0.125], [0.125]],
                why="0.75/0.500001 and -0.25/0.500001 whitened: ±1.5 and 0.5 but for 1e-8",
            )
        ],
    ),
    base="grpo@verl",
)


def passk_verl(base: Method, norm_adv_by_std_in_grpo: bool) -> Method:
    """Compose pass@k with verl's numbers."""
    scale: Literal["sample_std", "none"] = "sample_std" if norm_adv_by_std_in_grpo else "none"
    return base.with_parts(advantage=BestOverSecond(scale=scale, eps=1e-6))


entry(
    "passk@verl",
    passk_verl,
    Card(
        title="Pass@k as verl computes it",
        summary="adv_estimator=grpo_passk: the best's lead over the second best, divided by the group's spread.",
        formula=f"{VANILLA},  A_i = [R_i = max R] (max R - second R)/(std_g R + 1e-6)",
        defaults={},
        differs=["Divided by the standard deviation", DUAL, "verl refuses a group of one; here it gets 0"],
        reduces=[
            Reduction(
                "passk",
                when=["on_policy", "equal_lengths"],
                other={"scale": "sample_std"},
                why="without drift no clip acts, and the means agree",
            )
        ],
        needs=["at least two completions per prompt"],
        source=SOURCE,
        golden=[one_right(advantage=[1.999996, 0.0, 0.0, 0.0], grad=gradient(-0.3999992, 0.0), why="1/(0.5 + 1e-6)")],
    ),
    base="grpo@verl",
)


def otb_verl(base: Method, handle_zero_tail: bool = True) -> Method:
    """Compose the optimal token baseline with verl's numbers."""
    return base.with_parts(advantage=TokenBaseline(zero_tail=handle_zero_tail))


entry(
    "otb@verl",
    otb_verl,
    Card(
        title="The optimal token baseline as verl computes it",
        summary="adv_estimator=optimal_token_baseline in front of verl's PPO clip.",
        formula=f"{VANILLA},  A_it = G_it - Σ_j G_jt W_jt / (Σ_j W_jt + 1e-8)",
        defaults={"handle_zero_tail": "compute_optimal_token_baseline_advantage: on"},
        differs=[
            DUAL,
            "rollout_is and rollout_rs are not offered: verl's baseline has their weights in it",
            "Positions count a completion's own tokens; verl's are columns, which differ with tool output inside",
        ],
        reduces=[Reduction("otb", when=["on_policy"], why="without drift no clip acts")],
        needs=["at least two completions per prompt", "the policy's distributions (a pass over the completions)"],
        source=SOURCE,
        golden=[
            Golden(
                rewards=[1.0, 0.0],
                lengths=[2, 1],
                fields={"stats.collision": [[0.5, 0.3], [0.7]]},
                advantage=[[0.55785423, 1.0], [-0.44214577]],
                grad=[[-0.18595141, -0.33333333], [0.14738192]],
                why="as otb",
            )
        ],
    ),
    base="grpo@verl",
    keeps=(*CLIPS, *WITHOUT_CORRECTION),
)
