"""Dialects of verl: its advantage estimators and policy losses under well-known names, from the same parts.

One rule decides the numbers: select the method in the library by its name there, and leave every other option at its
default. If the library has no name for a method, its published recipe is followed, and the card says so.
`tests/parity/test_verl.py` runs verl 0.9.1's own functions against these entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, cast

from pydantic import Field

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.aggregate.aggregate import (
    Aggregate,
    ConstantLength,
    SequenceMean,
    SequenceSum,
    TokenMean,
    TokenSum,
)
from grouprl.algorithms.filter.filter import MixedGroups
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import Clipped
from grouprl.algorithms.objective.papers.outer_clip import CappedLogRatio
from grouprl.algorithms.objective.stop_gradient import Capped
from grouprl.algorithms.refill.refill import DynamicSampling
from grouprl.algorithms.regularize.kl import Estimator, ValueEstimator
from grouprl.algorithms.regularize.regularize import EntropyBonus, KLLoss, OwnAggregate
from grouprl.algorithms.reward_transform.adaptive_kl_in_reward import AdaptiveKLInReward
from grouprl.algorithms.reward_transform.reward_transform import KLInReward, SoftOverlong
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Reduction
from grouprl.methods.dialects import verl_correction
from grouprl.methods.dialects.golden import gradient, one_right
from grouprl.methods.dialects.switches import dialect
from grouprl.methods.dialects.verl_correction import (
    ImportanceThreshold,
    RejectionThreshold,
    RolloutIS,
    RolloutRS,
    corrected_as_in_verl,
)
from grouprl.methods.registry import entry
from grouprl.methods.settings import ClipLow, DualClip

AggMode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
KLPenalty = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"]
KLControl = Literal["fixed", "adaptive"]
KLType = Literal[
    "kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "kl+", "k1+", "abs+", "mse+", "k2+", "low_var_kl+", "k3+"
]
SWITCHES = {
    "loss_agg_mode": "ActorConfig.loss_agg_mode",
    "loss_scale_factor": "ActorConfig.loss_scale_factor: None takes the longest allowed completion",
    "entropy_coeff": "ActorConfig.entropy_coeff",
    "use_kl_loss": "ActorConfig.use_kl_loss",
    "kl_loss_coef": "ActorConfig.kl_loss_coef",
    "kl_loss_type": "ActorConfig.kl_loss_type: low_var_kl is k3, clamped to ±10 without slope; '+' takes the "
    "gradient of k2, which has no bound",
    "use_kl_in_reward": "AlgoConfig.use_kl_in_reward",
    "kl_coef": "AlgoConfig.kl_ctrl.kl_coef",
    "kl_ctrl": "AlgoConfig.kl_ctrl.type: adaptive moves kl_coef towards target_kl",
    "target_kl": "AlgoConfig.kl_ctrl.target_kl, read by kl_ctrl adaptive alone",
    "horizon": "AlgoConfig.kl_ctrl.horizon, read by kl_ctrl adaptive alone",
    "kl_penalty": "AlgoConfig.kl_penalty: kl is k1; low_var_kl is clamped to ±10",
    "clip_ratio_low": "ActorConfig.clip_ratio_low",
    "clip_ratio_high": "ActorConfig.clip_ratio_high",
    "clip_ratio_c": "ActorConfig.clip_ratio_c; null turns the dual clip off, which verl cannot",
    "norm_adv_by_std_in_grpo": "AlgoConfig.norm_adv_by_std_in_grpo",
    **verl_correction.SOURCES,
}
"""Origins of the defaults of settings that verl has for every loss."""
CLIPS = ("clip_ratio_low", "clip_ratio_high", "clip_ratio_c")
"""Settings of the clip of `grpo@verl`."""
IN_REWARD = ("use_kl_in_reward", "kl_coef", "kl_penalty", "kl_ctrl", "target_kl", "horizon")
WITHOUT_CORRECTION = (
    *("loss_agg_mode", "loss_scale_factor", "entropy_coeff", "use_kl_loss", "kl_loss_coef", "kl_loss_type"),
    *IN_REWARD,
)
FOR_EVERY_LOSS = (*WITHOUT_CORRECTION, *verl_correction.SOURCES)
"""Settings of `grpo@verl` that verl has for every advantage and loss."""
_MEANS: Mapping[str, OwnAggregate] = {
    "token-mean": "token_mean",
    "token-sum": "token_sum",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum-norm": "constant_length",
}
_ESTIMATORS = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}

SOURCE = "verl 0.9.1, trainer/ppo/core_algos.py, run against this entry"
ROUNDING = (
    "A group without spread gets exactly 0 here; verl divides the rounding error of its mean by 1e-6, so that seven "
    "equal float32 rewards of 0.7 get an advantage of 0.056 there"
)
LONE = "A group of one keeps its raw reward as advantage; verl divides that by 1 + 1e-6 as well"
DUAL_CLIPPED = "l_t = -min(ρ_t A_i, clip(ρ_t, 0.8, 1.2) A_i), at most -3 A_i where A_i < 0"
ADVANTAGE = [1.499997, -0.499999, -0.499999, -0.499999]
"""0.75 / 0.500001 and -0.25 / 0.500001."""


def advantage(norm_adv_by_std_in_grpo: bool = True) -> Relative:
    """Return the advantage of adv_estimator=grpo."""
    scale: Literal["sample_std", "none"] = "sample_std" if norm_adv_by_std_in_grpo else "none"
    return Relative("group", center="mean", scale=scale, eps=1e-6, alone="raw")


def aggregate(loss_agg_mode: AggMode, loss_scale_factor: int | None) -> Aggregate:
    """Return verl's aggregation."""
    made: dict[str, Aggregate] = {
        "token-mean": TokenMean(),
        "token-sum": TokenSum(),
        "seq-mean-token-sum": SequenceSum(),
        "seq-mean-token-mean": SequenceMean(),
        "seq-mean-token-sum-norm": ConstantLength(length=loss_scale_factor),
    }
    return made[loss_agg_mode]


def estimator(name: KLType | KLPenalty) -> Estimator:
    """Return grouprl's name of verl's KL estimator."""
    base, plus = name.removesuffix("+"), "+" if name.endswith("+") else ""
    ours = _ESTIMATORS.get(base, base)
    return cast(Estimator, ours if ours == "k2" else ours + plus)


def kl_loss(coef: float, kl_loss_type: KLType, own: OwnAggregate = None) -> KLLoss:
    """Return verl's KL loss term."""
    which = estimator(kl_loss_type)
    return KLLoss(coef=coef, estimator=which, value_limit=value_limit(which), aggregate=own)


def value_limit(which: str) -> float | None:
    """Return verl's limit of an estimate: k3 is clamped to ±10, in loss and reward alike, the others are not."""
    return 10.0 if which.startswith("k3") else None


def switches(
    method: Method,
    *,
    loss_agg_mode: AggMode = "token-mean",
    loss_scale_factor: Annotated[int, Field(ge=1)] | None = None,
    entropy_coeff: NonNegative = 0.0,
    use_kl_loss: bool = False,
    kl_loss_coef: NonNegative = 0.001,
    kl_loss_type: KLType = "low_var_kl",
    use_kl_in_reward: bool = False,
    kl_coef: NonNegative = 0.001,
    kl_penalty: KLPenalty = "kl",
    kl_ctrl: KLControl = "fixed",
    target_kl: Positive = 0.1,
    horizon: Annotated[int, Field(ge=1)] = 10_000,
    rollout_is: RolloutIS = None,
    rollout_is_threshold: ImportanceThreshold = 2.0,
    rollout_rs: RolloutRS = None,
    rollout_rs_threshold: RejectionThreshold = None,
) -> Method:
    """Set what verl has for every loss: aggregation, entropy, KL in the loss and in the reward, the sampler's ratio."""
    made = aggregate(loss_agg_mode, loss_scale_factor)
    terms = _terms(entropy_coeff, use_kl_loss, kl_loss_coef, kl_loss_type, None)
    in_reward = _in_reward(use_kl_in_reward, kl_coef, kl_penalty, kl_ctrl, target_kl, horizon)
    shape = (*method.reward_transform, *in_reward)
    corrected = corrected_as_in_verl(
        method,
        rollout_is=rollout_is,
        rollout_is_threshold=rollout_is_threshold,
        rollout_rs=rollout_rs,
        rollout_rs_threshold=rollout_rs_threshold,
    )
    return corrected.with_parts(aggregate=made, regularize=terms, reward_transform=shape)


def switches_apart(
    method: Method,
    *,
    loss_agg_mode: AggMode = "token-mean",
    entropy_coeff: NonNegative = 0.0,
    use_kl_loss: bool = False,
    kl_loss_coef: NonNegative = 0.001,
    kl_loss_type: KLType = "low_var_kl",
    use_kl_in_reward: bool = False,
    kl_coef: NonNegative = 0.001,
    kl_penalty: KLPenalty = "kl",
    kl_ctrl: KLControl = "fixed",
    target_kl: Positive = 0.1,
    horizon: Annotated[int, Field(ge=1)] = 10_000,
    rollout_is: RolloutIS = None,
    rollout_is_threshold: ImportanceThreshold = 2.0,
    rollout_rs: RolloutRS = None,
    rollout_rs_threshold: RejectionThreshold = None,
) -> Method:
    """Set the same for a policy loss with its own mean, where loss_agg_mode applies to entropy and KL alone."""
    terms = _terms(entropy_coeff, use_kl_loss, kl_loss_coef, kl_loss_type, _MEANS[loss_agg_mode])
    in_reward = _in_reward(use_kl_in_reward, kl_coef, kl_penalty, kl_ctrl, target_kl, horizon)
    shape = (*method.reward_transform, *in_reward)
    corrected = corrected_as_in_verl(
        method,
        rollout_is=rollout_is,
        rollout_is_threshold=rollout_is_threshold,
        rollout_rs=rollout_rs,
        rollout_rs_threshold=rollout_rs_threshold,
    )
    return corrected.with_parts(regularize=terms, reward_transform=shape)


def _terms(
    entropy_coeff: float, use_kl_loss: bool, kl_loss_coef: float, kl_loss_type: KLType, own: OwnAggregate
) -> tuple[EntropyBonus | KLLoss, ...]:
    bonus = (EntropyBonus(coef=entropy_coeff, aggregate=own),) if entropy_coeff > 0 else ()
    kl = (kl_loss(kl_loss_coef, kl_loss_type, own),) if use_kl_loss and kl_loss_coef > 0 else ()
    return (*bonus, *kl)


def _in_reward(
    use_kl_in_reward: bool, kl_coef: float, kl_penalty: KLPenalty, kl_ctrl: KLControl, target_kl: float, horizon: int
) -> tuple[KLInReward, ...]:
    if not use_kl_in_reward or kl_coef == 0:
        return ()
    which = cast(ValueEstimator, estimator(kl_penalty))
    if kl_ctrl == "fixed":
        return (KLInReward(coef=kl_coef, estimator=which, value_limit=value_limit(which)),)
    adaptive = AdaptiveKLInReward(
        coef=kl_coef, estimator=which, value_limit=value_limit(which), target=target_kl, horizon=horizon
    )
    return (adaptive,)


def grpo_verl(
    clip_ratio_low: ClipLow = 0.2,
    clip_ratio_high: Positive = 0.2,
    clip_ratio_c: DualClip = 3.0,
    norm_adv_by_std_in_grpo: bool = True,
) -> Method:
    """Compose GRPO with verl's numbers."""
    surrogate = Clipped(clip_low=clip_ratio_low, clip_high=clip_ratio_high, dual_clip=clip_ratio_c)
    return Method(advantage=advantage(norm_adv_by_std_in_grpo), objective=surrogate, aggregate=TokenMean())


dialect(
    "grpo@verl",
    grpo_verl,
    Card(
        title="GRPO as verl computes it",
        summary="adv_estimator=grpo: GRPO's advantage with a token mean and a dual clip.",
        formula=f"L = 1/Σ|y_i| Σ_i Σ_t l_t,  {DUAL_CLIPPED}",
        differs=[
            "Mean over tokens of the mini-batch (loss_agg_mode='token-mean'), not over completions",
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
    switches,
    SWITCHES,
)


def dr_grpo_verl(
    base: Method, norm_adv_by_std_in_grpo: bool = False, loss_agg_mode: AggMode = "seq-mean-token-sum-norm"
) -> Method:
    """Compose Dr. GRPO with verl's numbers: GRPO's with other settings."""
    return base


entry(
    "dr_grpo@verl",
    dr_grpo_verl,
    Card(
        title="Dr. GRPO as verl computes it",
        summary="verl's recipe: norm_adv_by_std_in_grpo=False, loss_agg_mode='seq-mean-token-sum-norm'.",
        formula=f"L = 1/(B·Lmax) Σ_i Σ_t l_t,  {DUAL_CLIPPED}",
        differs=[
            "Dual clip at 3",
            "Lmax is the padded width of the response (data.max_response_length) unless loss_scale_factor is set",
            "Releases before verl#5366 did not divide by the number of completions B",
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
    base="grpo@verl",
)


def dapo_verl(
    base: Method,
    clip_ratio_high: Positive = 0.28,
    clip_ratio_c: DualClip = 10.0,
    overlong_buffer: Positive = 0.2,
    max_num_gen_batches: Annotated[int, Field(ge=1)] = 10,
) -> Method:
    """Compose DAPO with the numbers of verl's recipe."""
    return base.with_parts(
        reward_transform=(SoftOverlong(buffer=overlong_buffer), *base.reward_transform),
        filter=(MixedGroups(), *base.filter),
        refill=DynamicSampling(max_rounds=max_num_gen_batches),
    )


entry(
    "dapo@verl",
    dapo_verl,
    Card(
        title="DAPO as verl computes it",
        summary="verl's DAPO recipe: clip-higher with a dual clip at 10, overlong punishment, dynamic sampling.",
        formula="L = 1/Σ|y_i| Σ_i Σ_t l_t,  l_t = -min(ρ_t A_i, clip(ρ_t, 0.8, 1.28) A_i), at most -10 A_i if A_i < 0",
        defaults={
            "clip_ratio_low": "verl's DAPO recipe, the paper's value",
            "clip_ratio_high": "verl's DAPO recipe, the paper's value",
            "clip_ratio_c": "verl's DAPO recipe, clip_ratio_c=10.0",
            "overlong_buffer": "verl's DAPO recipe: 4096 of 20480 tokens",
            "max_num_gen_batches": "verl's DAPO recipe, filter_groups.max_num_gen_batches",
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
                why="without drift no clip acts; a buffer of one token punishes no completion below the limit",
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
                why="the completion of two tokens reaches the limit of two: its reward falls by 1",
            )
        ],
    ),
    base="grpo@verl",
)


def gspo_verl(base: Method, clip_ratio_low: float, clip_ratio_high: float) -> Method:
    """Compose GSPO with verl's numbers."""
    surrogate = CappedLogRatio(clip_low=clip_ratio_low, clip_high=clip_ratio_high, ratio="sequence_token", log_cap=10.0)
    return base.with_parts(objective=surrogate)


entry(
    "gspo@verl",
    gspo_verl,
    Card(
        title="GSPO as verl computes it",
        summary="loss_mode=gspo: the token form of the sequence ratio, by default with clip 0.2 and a token mean.",
        formula="L = -1/Σ|y_i| Σ_i Σ_t min(s_it A_i, clip(s_it, 0.8, 1.2) A_i),  s_it = sg[s_i] π(y_t)/sg[π(y_t)]",
        differs=[
            "loss_mode=gspo alone leaves loss_agg_mode at 'token-mean' and the clip at 0.2, where it hardly ever acts: "
            "verl's scripts set 'seq-mean-token-mean', 3e-4 and 4e-4 as well",
            "The log-ratio is at most 10, without slope: a completion of negative advantage that is likelier by more "
            "than e^10 per token has no gradient",
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
                why="both tokens of the correct completion have the ratio exp(0.1)",
            )
        ],
    ),
    base="grpo@verl",
    keeps=(*CLIPS[:2], "norm_adv_by_std_in_grpo", *FOR_EVERY_LOSS),
)


def cispo_verl(base: Method, clip_ratio_low: float, clip_ratio_high: float) -> Method:
    """Compose CISPO with verl's numbers."""
    low, high = 1 - clip_ratio_low, 1 + clip_ratio_high
    return base.with_parts(objective=Capped(floor=low, cap=high, floor_negative=low, cap_negative=high))


entry(
    "cispo@verl",
    cispo_verl,
    Card(
        title="CISPO as verl computes it",
        summary="loss_mode=cispo: the detached ratio held in [0.8, 1.2] on both sides.",
        formula="L = -1/Σ|y_i| Σ_i Σ_t sg[clip(ρ_t, 0.8, 1.2)] A_i log π(y_t)",
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
    base="grpo@verl",
    keeps=(*CLIPS[:2], "norm_adv_by_std_in_grpo", *FOR_EVERY_LOSS),
)


def rloo_verl(base: Method) -> Method:
    """Compose RLOO with verl's numbers."""
    return base.with_parts(advantage=Relative("group", center="leave_one_out", scale="none", alone="raw"))


entry(
    "rloo@verl",
    rloo_verl,
    Card(
        title="RLOO as verl computes it",
        summary="adv_estimator=rloo: the leave-one-out baseline in front of verl's token-level PPO clip.",
        formula=f"L = 1/Σ|y_i| Σ_i Σ_t l_t,  {DUAL_CLIPPED}",
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
    base="grpo@verl",
    keeps=(*CLIPS, *FOR_EVERY_LOSS),
)
