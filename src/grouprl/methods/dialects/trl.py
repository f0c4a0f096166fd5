"""Dialects of TRL: losses of Hugging Face's trainers under well-known names, from the same parts.

One rule decides the numbers: select the method in the library by its name there, and leave every other option at its
default. If the library has no name for a method, its published recipe is followed, and the card says so.
`tests/parity/test_trl.py` runs TRL 1.16.0's own trainers against these entries.
"""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.advantage_transform.advantage_transform import Whiten
from grouprl.algorithms.aggregate.aggregate import ConstantLength, SequenceMean, TokenMean
from grouprl.algorithms.filter.filter import MaskTruncated
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import Clipped
from grouprl.algorithms.objective.papers.outer_clip import BoundedClip
from grouprl.algorithms.objective.stop_gradient import Capped
from grouprl.algorithms.regularize.regularize import KLLoss
from grouprl.algorithms.regularize.top_entropy import TopEntropyBonus
from grouprl.algorithms.reward_transform.reward_transform import KLInReward, RewardClip
from grouprl.algorithms.token_gate.token_gate import LeftBehind, TopEntropy
from grouprl.core.numbers import NonNegative, Positive, Share
from grouprl.methods.card import Card, Reduction
from grouprl.methods.dialects import trl_correction
from grouprl.methods.dialects.golden import gradient, one_right
from grouprl.methods.dialects.switches import dialect
from grouprl.methods.dialects.trl_correction import Mode, corrected_as_in_trl
from grouprl.methods.registry import entry
from grouprl.methods.settings import ClipLow

Level = Literal["token", "sequence"]
ScaleRewards = Literal["group", "batch", "none"]
SWITCHES = {
    "scale_rewards": "GRPOConfig.scale_rewards",
    "importance_sampling_level": "GRPOConfig.importance_sampling_level",
    "beta": "GRPOConfig.beta (the paper of GRPO: 0.04)",
    "use_bias_correction_kl": "GRPOConfig.use_bias_correction_kl: k3 times the ratio, at the ratio's level",
    "entropy_coef": "GRPOConfig.entropy_coef; the bonus is a mean over tokens whatever the loss's own mean",
    "top_entropy_quantile": "GRPOConfig.top_entropy_quantile: 1, every token (arXiv:2506.01939 recommends 0.2)",
    "off_policy_mask_threshold": "GRPOConfig.off_policy_mask_threshold: None, no mask (DeepSeek-V3.2's delta)",
    "mask_truncated_completions": "GRPOConfig.mask_truncated_completions",
    "epsilon": "GRPOConfig.epsilon",
    "epsilon_high": "GRPOConfig.epsilon_high: None takes epsilon",
    "delta": "GRPOConfig.delta: None, no bound on the free branch",
    **trl_correction.SOURCES,
}
"""Origins of the defaults of settings that TRL's trainer has for every loss."""

FOR_EVERY_LOSS = (
    *("scale_rewards", "importance_sampling_level", "beta", "use_bias_correction_kl", "entropy_coef"),
    *("top_entropy_quantile", "off_policy_mask_threshold", "mask_truncated_completions"),
    *trl_correction.SOURCES,
)
"""Settings of `grpo@trl` other than the clip: an entry with another objective keeps these."""

SOURCE = "TRL 1.16.0, GRPOTrainer._compute_loss and _generate_and_score_completions, run against this entry"
SOURCE_RLOO = "TRL 1.16.0, RLOOTrainer._compute_loss and _generate_and_score_completions, run against this entry"
ROUNDING = "A group without spread gets exactly 0 here; TRL divides the rounding error of its float32 mean by 1e-4"
WINDOW = (
    "TRL divides by the tokens of the whole generation batch times the optimiser step's share of it; the two agree "
    "when one optimiser step uses the whole generation batch (the default)"
)
MASKED = (
    "With mask_truncated_completions truncated completions have no loss but stay in the group's statistics; they count "
    "in a mean over completions and not in one over tokens, as in TRL (drop_truncated takes them out of both means)"
)
RANKED = (
    "With top_entropy_quantile TRL ranks the tokens of each micro-batch (of all processes), so its gradient depends on "
    "how a step is cut; here the step's tokens are ranked, which agrees when a step is one micro-batch"
)
STD = "A_i = (R_i - mean_g R) / (std_g R + 1e-4)"
CLIPPED = "min(ρ_t A_i, clip(ρ_t, 0.8, 1.2) A_i)"
ADVANTAGE = [1.49970006, -0.49990002, -0.49990002, -0.49990002]
"""0.75 / 0.5001 and -0.25 / 0.5001."""


def advantage(scale_rewards: ScaleRewards = "group") -> Relative:
    """Return the advantage that GRPOTrainer computes: the reward minus the group's mean, divided by the spread of group
    or batch.
    """
    if scale_rewards == "none":
        return Relative("group", center="mean", scale="none", eps=1e-4)
    key = "batch" if scale_rewards == "batch" else None
    return Relative("group", center="mean", scale="sample_std", eps=1e-4, scale_key=key)


def clipped(epsilon: float, epsilon_high: float | None, level: Level, delta: float | None = None) -> Clipped:
    """Return TRL's clip; a `delta` within the clip, which TRL runs too, is the upper bound for A > 0."""
    high = epsilon if epsilon_high is None else epsilon_high
    if delta is not None and delta <= 1 + high:
        return BoundedClip(clip_low=epsilon, clip_high=high, ratio=level, bound=delta)
    return Clipped(clip_low=epsilon, clip_high=high, ratio=level, dual_clip=delta)


def switches(
    method: Method,
    *,
    scale_rewards: ScaleRewards = "group",
    importance_sampling_level: Level = "token",
    beta: NonNegative = 0.0,
    use_bias_correction_kl: bool = True,
    entropy_coef: NonNegative = 0.0,
    top_entropy_quantile: Share = 1.0,
    off_policy_mask_threshold: Positive | None = None,
    mask_truncated_completions: bool = False,
    vllm_importance_sampling_correction: bool = False,
    vllm_importance_sampling_mode: Mode = "sequence_mask",
    vllm_importance_sampling_clip_max: Positive | None = 3.0,
    vllm_importance_sampling_clip_min: NonNegative | None = None,
) -> Method:
    """Set what GRPOTrainer has for every loss: the spread, the KL, the entropy bonus, masks, the sampler's ratio."""
    kl = KLLoss(
        coef=beta,
        estimator="weighted_k3" if use_bias_correction_kl else "k3",
        ratio=importance_sampling_level if use_bias_correction_kl else "token",
    )
    bonus = TopEntropyBonus(coef=entropy_coef, share=top_entropy_quantile)
    far = () if off_policy_mask_threshold is None else (LeftBehind(threshold=off_policy_mask_threshold),)
    flat = () if top_entropy_quantile == 1 else (TopEntropy(share=top_entropy_quantile),)
    terms = (*([kl] if beta > 0 else []), *([bonus] if entropy_coef > 0 else []))
    prepared = method.advantage
    if isinstance(prepared, Relative):
        prepared = advantage(scale_rewards)
    corrected = corrected_as_in_trl(
        method,
        vllm_importance_sampling_correction=vllm_importance_sampling_correction,
        vllm_importance_sampling_mode=vllm_importance_sampling_mode,
        vllm_importance_sampling_clip_max=vllm_importance_sampling_clip_max,
        vllm_importance_sampling_clip_min=vllm_importance_sampling_clip_min,
    )
    return corrected.with_parts(
        filter=(MaskTruncated(count="completions"),) if mask_truncated_completions else (),
        advantage=prepared,
        token_gate=(*far, *flat),
        regularize=terms,
    )


def grpo_trl(
    epsilon: ClipLow = 0.2,
    epsilon_high: Positive | None = None,
    delta: Positive | None = None,
    importance_sampling_level: Level = "token",
) -> Method:
    """Compose GRPO with TRL's numbers."""
    surrogate = clipped(epsilon, epsilon_high, importance_sampling_level, delta)
    return Method(advantage=advantage(), objective=surrogate, aggregate=SequenceMean())


dialect(
    "grpo@trl",
    grpo_trl,
    Card(
        title="GRPO as TRL computes it",
        summary='loss_type="grpo": sample standard deviation + 1e-4, completions weigh the same, no KL.',
        formula=f"L = -1/B Σ_i 1/|y_i| Σ_t {CLIPPED},  {STD}",
        differs=[
            "1e-4 is added to the standard deviation: rewards [1, 0, 0, 0] give (1.4997, -0.4999)",
            "No KL term (GRPOConfig.beta = 0); the paper has β = 0.04 with k3. With β > 0 TRL 1.16 multiplies k3 by "
            "the ratio (use_bias_correction_kl=True), which is kl_estimator=weighted_k3 of grpo",
            "TRL's default loss_type is 'dapo', not 'grpo': see dapo@trl",
            ROUNDING,
            MASKED,
            RANKED,
        ],
        reduces=[Reduction("grpo", other={"eps": 1e-4}, why="only the small constant differs")],
        source=SOURCE,
        golden=[one_right(advantage=ADVANTAGE, grad=gradient(-0.18746251, 0.124975005))],
    ),
    switches,
    SWITCHES,
)


def dr_grpo_trl(base: Method) -> Method:
    """Compose Dr. GRPO with TRL's numbers."""
    return base.with_parts(aggregate=ConstantLength())


entry(
    "dr_grpo@trl",
    dr_grpo_trl,
    Card(
        title="Dr. GRPO as TRL computes it",
        summary='loss_type="dr_grpo" changes the denominator alone: advantages keep the standard deviation.',
        formula=f"L = -1/(B·Lmax) Σ_i Σ_t {CLIPPED},  {STD}",
        differs=[
            "loss_type='dr_grpo' alone keeps dividing by the standard deviation, which the paper takes out. "
            "scale_rewards='none' makes it the paper's method",
            "Lmax is max_completion_length",
            MASKED,
            RANKED,
        ],
        reduces=[
            Reduction(
                "dr_grpo", settings={"scale_rewards": "none"}, why="scale_rewards='none' is the paper's advantage"
            ),
        ],
        source=SOURCE,
        golden=[
            one_right(
                fields={"max_length": 4},
                advantage=ADVANTAGE,
                grad=gradient(-0.09373125, 0.03124375),
            )
        ],
    ),
    base="grpo@trl",
)


def dapo_trl(base: Method) -> Method:
    """Compose TRL's default loss."""
    return base.with_parts(aggregate=TokenMean())


entry(
    "dapo@trl",
    dapo_trl,
    Card(
        title="DAPO as TRL computes it (TRL's default loss)",
        summary='loss_type="dapo", what GRPOTrainer does unless told otherwise: GRPO with a token mean.',
        formula=f"L = -1/Σ|y_i| Σ_i Σ_t {CLIPPED},  {STD}",
        defaults={"epsilon_high": "GRPOConfig.epsilon_high: None takes epsilon (TRL's recipe for the paper sets 0.28)"},
        differs=[
            "Only the token mean of the paper's four parts is on: the clip is symmetric, over-long completions "
            "are neither "
            "punished nor masked",
            "Dynamic sampling does not exist in TRL",
            WINDOW,
            MASKED,
            RANKED,
        ],
        reduces=[Reduction("grpo@trl", when=["equal_lengths"], why="with equal lengths both means are the same")],
        source=SOURCE,
        golden=[one_right(advantage=ADVANTAGE, grad=gradient(-0.299940012, 0.099980004))],
    ),
    base="grpo@trl",
)


def gspo_trl(
    base: Method,
    epsilon: ClipLow = 3e-4,
    epsilon_high: Positive | None = 4e-4,
    importance_sampling_level: Level = "sequence",
) -> Method:
    """Compose GSPO with TRL's numbers: GRPO's with other settings."""
    return base


entry(
    "gspo@trl",
    gspo_trl,
    Card(
        title="GSPO as TRL computes it",
        summary="TRL's recipe for the paper: a sequence-level ratio with the paper's clip, sequence mean.",
        formula="L = -1/B Σ_i min(s_i A_i, clip(s_i, 1-3e-4, 1+4e-4) A_i),  s_i = exp(1/|y_i| Σ_t log ρ_t)",
        defaults=dict.fromkeys(
            ("epsilon", "epsilon_high", "importance_sampling_level"),
            "TRL's paper index, GSPO (the name is a recipe there, not an option)",
        ),
        differs=[
            "1e-4 is added to the standard deviation",
            "TRL has no option named GSPO: its recipe sets importance_sampling_level='sequence', loss_type='grpo', "
            "epsilon=3e-4, epsilon_high=4e-4. With importance_sampling_level alone the clip is 0.2 and the mean is "
            "over tokens",
            MASKED,
            RANKED,
        ],
        reduces=[Reduction("grpo@trl", when=["on_policy"], why="without drift the ratio is 1 at every level")],
        source=SOURCE,
        golden=[
            one_right(
                log_ratio=[[0.1, 0.1], [0.0002], [0.0], [0.0]],
                advantage=ADVANTAGE,
                grad=[[0.0, 0.0], [0.1250000025], [0.124975005], [0.124975005]],
                why="s_1 = exp(0.1) is beyond the clip; s_2 = exp(0.0002) is not",
            )
        ],
    ),
    base="grpo@trl",
)


def cispo_trl(
    base: Method, epsilon_high: float | None, importance_sampling_level: Level, epsilon: Positive = 0.2
) -> Method:
    """Compose CISPO with TRL's numbers."""
    cap = epsilon if epsilon_high is None else epsilon_high
    surrogate = Capped(cap=cap, cap_negative=cap, ratio=importance_sampling_level)
    return base.with_parts(objective=surrogate, aggregate=TokenMean())


entry(
    "cispo@trl",
    cispo_trl,
    Card(
        title="CISPO as TRL computes it",
        summary='loss_type="cispo" alone caps every ratio at 0.2, also the on-policy ratio of 1.',
        formula=f"L = -1/Σ|y_i| Σ_i Σ_t sg[min(ρ_t, 0.2)] A_i log π(y_t),  {STD}",
        defaults={
            "epsilon": "GRPOConfig.epsilon, which only stands in for epsilon_high here",
            "epsilon_high": "GRPOConfig.epsilon_high is the cap itself here; None takes epsilon = 0.2; its help text "
            "recommends 5.0",
        },
        differs=[
            "epsilon_high is the cap of the ratio, not its distance from 1. Left unset it is 0.2, so every on-policy "
            "gradient is multiplied by 0.2",
            "No lower bound of the ratio, as in the paper's experiments",
            WINDOW,
            MASKED,
            RANKED,
        ],
        reduces=[
            Reduction("dapo@trl", settings={"epsilon_high": 5.0}, when=["on_policy"], why="without drift no cap acts"),
            Reduction("dapo@trl", when=["on_policy"], scale=0.2, why="the unset cap scales the gradient by 0.2"),
        ],
        source=SOURCE,
        golden=[one_right(advantage=ADVANTAGE, grad=gradient(-0.0599880024, 0.0199960008))],
    ),
    base="grpo@trl",
    keeps=("epsilon_high", *FOR_EVERY_LOSS),
)


def rloo_trl(
    epsilon: ClipLow = 0.2,
    epsilon_high: Positive | None = None,
    beta: NonNegative = 0.05,
    reward_clip_range: tuple[float, float] | None = None,
    normalize_advantages: bool = False,
) -> Method:
    """Compose RLOO with TRL's numbers."""
    bounds = () if reward_clip_range is None else (RewardClip(low=reward_clip_range[0], limit=reward_clip_range[1]),)
    kl = (KLInReward(coef=beta, estimator="k1", level="sequence"),) if beta > 0 else ()
    whiten = Whiten(key="batch", count="sequence", variance="sample", eps=1e-4, eps_in="std")
    high = epsilon if epsilon_high is None else epsilon_high
    return Method(
        reward_transform=(*bounds, *kl),
        advantage=Relative("group", center="leave_one_out", scale="none"),
        advantage_transform=(whiten,) if normalize_advantages else (),
        objective=Clipped(clip_low=epsilon, clip_high=high, ratio="sequence_sum"),
        aggregate=SequenceMean(),
    )


entry(
    "rloo@trl",
    rloo_trl,
    Card(
        title="RLOO as TRL computes it",
        summary="Leave-one-out baseline; the ratio of whole sequences, clipped as in PPO; KL in the reward.",
        formula="L = -1/B Σ_i min(ρ_i A_i, clip(ρ_i, 0.8, 1.2) A_i),  ρ_i = π/π_old(y_i),  A_i = R_i - mean_{j≠i} R_j",
        defaults={
            "epsilon": "RLOOConfig.epsilon",
            "epsilon_high": "RLOOConfig.epsilon_high: None takes epsilon",
            "beta": "RLOOConfig.beta (the paper: 0.03)",
            "reward_clip_range": "RLOOConfig.reward_clip_range: none",
            "normalize_advantages": "RLOOConfig.normalize_advantages",
        },
        differs=[
            "The paper takes one on-policy REINFORCE step; TRL clips the ratio of whole sequences, which is not "
            "normalised by length",
            "The KL coefficient is 0.05; the paper's is 0.03",
            "mask_truncated_completions is not offered: mask_truncated takes away the loss of truncated completions "
            "and leaves the KL in their rewards, where TRL counts none",
        ],
        reduces=[
            Reduction(
                "rloo@verl",
                settings={"beta": 0.0},
                when=["on_policy", "equal_lengths"],
                scale=None,
                why="without drift both are REINFORCE with the leave-one-out baseline",
            )
        ],
        needs=["a reference model, unless beta is 0"],
        source=SOURCE_RLOO,
        golden=[
            one_right(
                fields={"ref_bt": [[-2.0, -2.0], [-1.0], [-1.0], [-1.0]]},
                advantage=[0.9, -0.3, -0.3, -0.3],
                grad=gradient(-0.225, 0.075),
                why="the KL of the correct completion is 2 nats, so its reward is 1 - 0.05 · 2",
            )
        ],
    ),
)
