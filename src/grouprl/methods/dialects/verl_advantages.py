"""Further advantage estimators of verl by their names there.

The rule of `grouprl.methods.dialects.verl` decides the numbers. `tests/parity/test_verl.py` runs verl 0.9.1's own
functions against these entries.
"""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.advantage.decoupled_components import DecoupledComponents
from grouprl.algorithms.advantage.papers.baselines import GreedyBaseline, LengthWeighted
from grouprl.algorithms.advantage.papers.best_of_group import BestOverSecond
from grouprl.algorithms.advantage.papers.token_baseline import TokenBaseline
from grouprl.algorithms.advantage_transform.advantage_transform import Whiten
from grouprl.algorithms.method import Method
from grouprl.core.errors import InputError
from grouprl.core.numbers import Positive, Share
from grouprl.methods.card import Card, Golden, Reduction
from grouprl.methods.dialects import verl
from grouprl.methods.dialects.golden import gradient, one_right
from grouprl.methods.dialects.switches import dialect
from grouprl.methods.dialects.verl import (
    CLIPS,
    FOR_EVERY_LOSS,
    IN_REWARD,
    LONE,
    SOURCE,
    SWITCHES,
    WITHOUT_CORRECTION,
)
from grouprl.methods.dialects.verl_losses import DUAL, VANILLA
from grouprl.methods.registry import entry, method
from grouprl.methods.settings import ClipLow, DualClip


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
                advantage=[0.70710677, -0.70710677],
                grad=[[-0.35355338], [0.35355338]],
                why="±0.5 have the sample variance 0.5",
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
            "gdpo_reward_weights": "AlgoConfig.gdpo_reward_weights: None weighs every key 1",
        },
        differs=["Whitened over tokens, so long completions count more in mean and variance", DUAL, LONE],
        source=SOURCE,
        golden=[
            Golden(
                rewards=[2, 1, 0, 0],
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
