"""Dialects of verl: what its advantage estimators and policy losses compute under a famous name, from the same parts.

One rule decides the numbers: ask the library for the method by the name it has there and leave every other option at
its default. Where the library has no name for a method, its own published recipe is followed, and the card says so.
`tests/parity/test_verl.py` runs verl 0.9.1's own functions against these entries.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.levels import Scale
from grouprl.method import Method
from grouprl.methods.card import Card, Golden, Reduction
from grouprl.methods.dialects_trl import gradient, one_right, papers_of
from grouprl.methods.registry import entry
from grouprl.methods.settings import ClipLow, Positive
from grouprl.parts.advantage import Relative
from grouprl.parts.aggregate import ConstantLength, TokenMean
from grouprl.parts.objective import Clipped
from grouprl.parts.refill import DynamicSampling
from grouprl.parts.selection import MixedGroups
from grouprl.parts.shaping import SoftOverlong
from grouprl.parts.stop_gradient import Capped

Dual = Annotated[float, Field(gt=1)]

SOURCE = "verl 0.9.1, trainer/ppo/core_algos.py, run against this entry"
ROUNDING = (
    "A group without spread gets exactly 0 here; verl divides the rounding error of its mean by 1e-6, so that seven "
    "equal float32 rewards of 0.7 get an advantage of 0.056 there"
)
LONE = "A group of one keeps its raw reward as advantage; verl divides that by 1 + 1e-6 as well"
DUAL_CLIPPED = "l_t = -min(ρ_t A_i, clip(ρ_t, 0.8, 1.2) A_i), at most -3 A_i where A_i < 0"
ADVANTAGE = [1.499997, -0.499999, -0.499999, -0.499999]
"""0.75 / 0.500001 and -0.25 / 0.500001."""
CLIP = {"clip_low": "ActorConfig.clip_ratio_low", "clip_high": "ActorConfig.clip_ratio_high"}
DUAL = "ActorConfig.clip_ratio_c"


def _advantage(scale: Scale = "sample_std") -> Relative:
    return Relative("group", center="mean", scale=scale, eps=1e-6, alone="raw")


@entry(
    "grpo@verl",
    Card(
        title="GRPO as verl computes it",
        papers=papers_of("grpo"),
        summary="adv_estimator=grpo: GRPO's advantage with a token mean and a dual clip.",
        formula=f"L = 1/Σ|y_i| Σ_i Σ_t l_t,  {DUAL_CLIPPED}",
        defaults={**CLIP, "dual": DUAL},
        differs=[
            "Mean over tokens of the mini-batch (loss_agg_mode='token-mean'), not over answers",
            "Dual clip at 3: a token of negative advantage whose ratio exceeds 3 has no gradient",
            "No KL term (use_kl_loss and use_kl_in_reward are off); the paper has β = 0.04",
            LONE,
            ROUNDING,
        ],
        reduces=[
            Reduction(
                "grpo", when=["on_policy", "equal_lengths"], why="without drift no clip acts, and the means agree"
            )
        ],
        source=SOURCE,
        golden=[
            one_right(
                log_ratio=[[0.0, 0.0], [1.3862943611], [0.0], [0.0]],
                advantage=ADVANTAGE,
                grad=[[-0.2999994, -0.2999994], [0.0], [0.0999998], [0.0999998]],
                why="a wrong token with ratio 4 is beyond the dual clip",
            )
        ],
    ),
)
def grpo_verl(clip_low: ClipLow = 0.2, clip_high: Positive = 0.2, dual: Dual = 3.0) -> Method:
    """Compose GRPO with verl's numbers."""
    return Method(
        advantage=_advantage(),
        objective=Clipped(low=clip_low, high=clip_high, dual=dual),
        aggregate=TokenMean(),
    )


@entry(
    "dr_grpo@verl",
    Card(
        title="Dr. GRPO as verl computes it",
        papers=papers_of("dr_grpo"),
        summary="verl's recipe: norm_adv_by_std_in_grpo=False, loss_agg_mode='seq-mean-token-sum-norm'.",
        formula=f"L = 1/(B·Lmax) Σ_i Σ_t l_t,  {DUAL_CLIPPED}",
        defaults={**CLIP, "dual": DUAL},
        differs=[
            "Dual clip at 3",
            "Lmax is the padded width of the response (data.max_response_length) unless loss_scale_factor is set",
            "Releases before verl#5366 did not divide by the number of answers B",
            LONE,
        ],
        reduces=[Reduction("dr_grpo", when=["on_policy"], why="without drift no clip acts")],
        source=SOURCE,
        golden=[
            one_right(
                fields={"max_length": 4},
                advantage=[0.75, -0.25, -0.25, -0.25],
                grad=gradient(-0.046875, 0.015625),
            )
        ],
    ),
)
def dr_grpo_verl(clip_low: ClipLow = 0.2, clip_high: Positive = 0.2, dual: Dual = 3.0) -> Method:
    """Compose Dr. GRPO with verl's numbers."""
    return Method(
        advantage=_advantage("none"),
        objective=Clipped(low=clip_low, high=clip_high, dual=dual),
        aggregate=ConstantLength(),
    )


@entry(
    "dapo@verl",
    Card(
        title="DAPO as verl computes it",
        papers=papers_of("dapo"),
        summary="verl's DAPO recipe: clip-higher with a dual clip at 10, overlong punishment, dynamic sampling.",
        formula="L = 1/Σ|y_i| Σ_i Σ_t l_t,  l_t = -min(ρ_t A_i, clip(ρ_t, 0.8, 1.28) A_i), at most -10 A_i if A_i < 0",
        defaults={
            "clip_low": "verl's DAPO recipe, the paper's value",
            "clip_high": "verl's DAPO recipe, the paper's value",
            "dual": "verl's DAPO recipe, clip_ratio_c=10.0",
            "overlong_buffer": "verl's DAPO recipe: 4096 of 20480 tokens",
            "max_rounds": "verl's DAPO recipe, filter_groups.max_num_gen_batches",
        },
        differs=[
            "Dual clip at 10, which the paper does not have",
            "The overlong punishment has no lower bound of its own; the length limit bounds it at -1 all the same",
            "verl stops the run when max_num_gen_batches is reached; here the batch stays smaller",
            LONE,
        ],
        reduces=[
            Reduction(
                "grpo@verl",
                when=["on_policy", "mixed_groups"],
                settings={"overlong_buffer": 1e-9},
                why="without drift no clip acts; a buffer of one token punishes no answer below the limit",
            )
        ],
        confidence="partly",
        uncertain="The recipe's scripts live outside the verl 0.9.1 package and were read, not run; the loss was run",
        source=SOURCE,
        golden=[
            Golden(
                rewards=[2, 0, 0, 0],
                lengths=[2, 1, 1, 1],
                fields={"max_length": 2},
                settings={"overlong_buffer": 1},
                advantage=ADVANTAGE,
                grad=gradient(-0.2999994, 0.0999998),
                why="the answer of two tokens reaches the limit of two: its reward falls by 1",
            )
        ],
    ),
)
def dapo_verl(
    clip_low: ClipLow = 0.2,
    clip_high: Positive = 0.28,
    dual: Dual = 10.0,
    overlong_buffer: Positive = 0.2,
    max_rounds: Annotated[int, Field(ge=1)] = 10,
) -> Method:
    """Compose DAPO with the numbers of verl's recipe."""
    return Method(
        shape=(SoftOverlong(buffer=overlong_buffer),),
        select=(MixedGroups(),),
        advantage=_advantage(),
        objective=Clipped(low=clip_low, high=clip_high, dual=dual),
        aggregate=TokenMean(),
        refill=DynamicSampling(max_rounds=max_rounds),
    )


@entry(
    "gspo@verl",
    Card(
        title="GSPO as verl computes it",
        papers=papers_of("gspo"),
        summary="loss_mode=gspo: the token form of the sequence ratio, by default with clip 0.2 and a token mean.",
        formula="L = -1/Σ|y_i| Σ_i Σ_t min(s_it A_i, clip(s_it, 0.8, 1.2) A_i),  s_it = sg[s_i] π(y_t)/sg[π(y_t)]",
        defaults=CLIP,
        differs=[
            "loss_mode=gspo alone leaves loss_agg_mode at 'token-mean' and the clip at 0.2, where it hardly ever acts: "
            "verl's scripts set 'seq-mean-token-mean', 3e-4 and 4e-4 as well",
            "The log-ratio is held below 10 (here ±20)",
            LONE,
        ],
        reduces=[
            Reduction("grpo@verl", when=["on_policy"], why="without drift the ratio is 1 at every level"),
        ],
        source=SOURCE,
        golden=[
            one_right(
                log_ratio=[[0.2, 0.0], [0.0], [0.0], [0.0]],
                advantage=ADVANTAGE,
                grad=[[-0.331550613, -0.331550613], [0.0999998], [0.0999998], [0.0999998]],
                why="both tokens of the right answer have the ratio exp(0.1)",
            )
        ],
    ),
)
def gspo_verl(clip_low: ClipLow = 0.2, clip_high: Positive = 0.2) -> Method:
    """Compose GSPO with verl's numbers."""
    return Method(
        advantage=_advantage(),
        objective=Clipped(low=clip_low, high=clip_high, ratio="sequence_token"),
        aggregate=TokenMean(),
    )


@entry(
    "cispo@verl",
    Card(
        title="CISPO as verl computes it",
        papers=papers_of("cispo"),
        summary="loss_mode=cispo: the detached ratio held in [0.8, 1.2] on both sides.",
        formula="L = -1/Σ|y_i| Σ_i Σ_t sg[clip(ρ_t, 0.8, 1.2)] A_i log π(y_t)",
        defaults=CLIP,
        differs=[
            "Both sides are bounded, at 1 - 0.2 and 1 + 0.2; the paper's experiments have no lower bound",
            LONE,
        ],
        reduces=[Reduction("grpo@verl", when=["on_policy"], why="without drift the ratio is 1")],
        source=SOURCE,
        golden=[
            one_right(
                log_ratio=[[0.6931471806, 0.0], [-0.6931471806], [0.0], [0.0]],
                advantage=ADVANTAGE,
                grad=[[-0.35999928, -0.2999994], [0.07999984], [0.0999998], [0.0999998]],
                why="ratio 2 is held at 1.2, ratio 0.5 at 0.8; both keep a gradient",
            )
        ],
    ),
)
def cispo_verl(clip_low: ClipLow = 0.2, clip_high: Positive = 0.2) -> Method:
    """Compose CISPO with verl's numbers."""
    low, high = 1 - clip_low, 1 + clip_high
    return Method(
        advantage=_advantage(),
        objective=Capped(low=low, high=high, low_negative=low, high_negative=high),
        aggregate=TokenMean(),
    )


@entry(
    "rloo@verl",
    Card(
        title="RLOO as verl computes it",
        papers=papers_of("rloo"),
        summary="adv_estimator=rloo: the leave-one-out baseline in front of verl's token-level PPO clip.",
        formula=f"L = 1/Σ|y_i| Σ_i Σ_t l_t,  {DUAL_CLIPPED}",
        defaults={**CLIP, "dual": DUAL},
        differs=[
            "The loss is verl's token-level PPO clip with a token mean; the paper's action is the whole sequence",
            "No KL by default",
            "A group of one keeps its raw reward as advantage",
        ],
        reduces=[
            Reduction(
                "dr_grpo@verl",
                when=["one_group", "on_policy"],
                scale=None,
                why="leave-one-out is the group mean times G/(G-1); both denominators are constants of a step",
            )
        ],
        source=SOURCE,
        golden=[
            one_right(
                advantage=[1.0, -0.3333333333, -0.3333333333, -0.3333333333],
                grad=gradient(-0.2, 0.0666666667),
            )
        ],
    ),
)
def rloo_verl(clip_low: ClipLow = 0.2, clip_high: Positive = 0.2, dual: Dual = 3.0) -> Method:
    """Compose RLOO with verl's numbers."""
    return Method(
        advantage=Relative("group", center="leave_one_out", scale="none", alone="raw"),
        objective=Clipped(low=clip_low, high=clip_high, dual=dual),
        aggregate=TokenMean(),
    )
