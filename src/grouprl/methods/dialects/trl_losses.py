"""Further losses of TRL by their names there: soft weights, length, geometric means, rewards of several parts.

The rule of `grouprl.methods.dialects.trl` decides the numbers. `tests/parity/test_trl.py` runs TRL 1.16.0's own
trainers against these entries.
"""

from __future__ import annotations

from grouprl.algorithms.advantage.decoupled_components import DecoupledComponents
from grouprl.algorithms.advantage_transform.advantage_transform import Whiten
from grouprl.algorithms.aggregate.aggregate import SequenceMean, SequenceSum, TokenMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.papers.gamma_weight import CorrectedGammaWeight, GammaWeight, Power
from grouprl.algorithms.objective.papers.soft import GeometricMean, SoftGate, TopEntropyMean
from grouprl.core.numbers import NonNegative, Positive, Share
from grouprl.methods.card import Card, Golden, Reduction
from grouprl.methods.dialects import trl
from grouprl.methods.dialects.golden import gradient, one_right
from grouprl.methods.dialects.switches import dialect
from grouprl.methods.dialects.trl import (
    ADVANTAGE,
    CLIPPED,
    MASKED,
    RANKED,
    STD,
    WINDOW,
    Level,
)
from grouprl.methods.dialects.trl_correction import OfToken
from grouprl.methods.registry import entry

ALL_WEIGH_THE_SAME = gradient(-0.18746251, 0.124975005)
PER_TOKEN = gradient(-0.299940012, 0.099980004)


def sapo_trl(
    base: Method,
    importance_sampling_level: Level,
    sapo_temperature_pos: Positive = 1.0,
    sapo_temperature_neg: Positive = 1.05,
) -> Method:
    """Compose SAPO with TRL's numbers."""
    gate = SoftGate(
        tau_positive=sapo_temperature_pos, tau_negative=sapo_temperature_neg, ratio=importance_sampling_level
    )
    return base.with_parts(objective=gate)


entry(
    "sapo@trl",
    sapo_trl,
    Card(
        title="SAPO as TRL computes it",
        summary='loss_type="sapo": the soft gate with GRPO\'s advantage and mean.',
        formula=f"L = -1/B Σ_i 1/|y_i| Σ_t (4/τ) σ(τ(ρ_t - 1)) A_i,  {STD}",
        defaults={
            "sapo_temperature_pos": "GRPOConfig.sapo_temperature_pos",
            "sapo_temperature_neg": "GRPOConfig.sapo_temperature_neg",
        },
        differs=["1e-4 is added to the standard deviation", MASKED, RANKED],
        reduces=[Reduction("sapo", other={"eps": 1e-4}, why="only the small constant differs")],
        source=trl.SOURCE,
        golden=[one_right(advantage=ADVANTAGE, grad=ALL_WEIGH_THE_SAME, why="at ρ = 1 the gate has slope 1")],
    ),
    base="grpo@trl",
    keeps=trl.FOR_EVERY_LOSS,
)


def bnpo_trl(base: Method) -> Method:
    """Compose what TRL calls BNPO."""
    return base.with_parts(aggregate=TokenMean())


entry(
    "bnpo@trl",
    bnpo_trl,
    Card(
        title="What TRL calls BNPO",
        summary='loss_type="bnpo" is a token mean over the batch; the paper\'s Beta normalisation is not in it.',
        formula=f"L = -1/Σ|y_i| Σ_i Σ_t {CLIPPED},  {STD}",
        defaults={},
        differs=[
            "The paper divides advantages by a Beta density fitted to the pass rates: nothing of that is computed",
            "TRL takes the mean over each micro-batch, so its gradient depends on how a step is cut; here it is the "
            "step's, which agrees when a step is one micro-batch",
            MASKED,
            RANKED,
        ],
        reduces=[Reduction("dapo@trl", why="in one micro-batch both are the same token mean")],
        source=trl.SOURCE,
        golden=[one_right(advantage=ADVANTAGE, grad=PER_TOKEN)],
    ),
    base="grpo@trl",
)


def luspo_trl(base: Method) -> Method:
    """Compose LUSPO with TRL's numbers."""
    return base.with_parts(aggregate=SequenceSum())


entry(
    "luspo@trl",
    luspo_trl,
    Card(
        title="LUSPO as TRL computes it",
        summary='loss_type="luspo" alone: token ratios with clip 0.2, summed over each completion.',
        formula=f"L = -1/B Σ_i Σ_t {CLIPPED},  {STD}",
        defaults={},
        differs=[
            "loss_type='luspo' alone leaves importance_sampling_level at 'token' (TRL warns); 'sequence', epsilon=2e-3 "
            "and epsilon_high=2.5e-3, its recipe for the paper, make it the paper's method",
            "1e-4 is added to the standard deviation",
            MASKED,
            RANKED,
        ],
        reduces=[
            Reduction(
                "luspo",
                settings={"importance_sampling_level": "sequence", "epsilon": 2e-3, "epsilon_high": 2.5e-3},
                other={"eps": 1e-4},
                why="TRL's recipe for the paper",
            )
        ],
        source=trl.SOURCE,
        golden=[one_right(advantage=ADVANTAGE, grad=gradient(-0.374925015, 0.124975005))],
    ),
    base="grpo@trl",
)


def vespo_trl(
    base: Method,
    vespo_k_pos: Power = 2.0,
    vespo_lambda_pos: Power = 3.0,
    vespo_k_neg: Power = 3.0,
    vespo_lambda_neg: Power = 2.0,
    vllm_importance_sampling_correction: bool = False,
    vllm_importance_sampling_mode: OfToken = "token_truncate",
    vllm_importance_sampling_clip_max: Positive | None = 3.0,
    vllm_importance_sampling_clip_min: NonNegative | None = None,
) -> Method:
    """Compose VESPO with TRL's numbers."""
    weight = GammaWeight(
        k_positive=vespo_k_pos,
        lambda_positive=vespo_lambda_pos,
        k_negative=vespo_k_neg,
        lambda_negative=vespo_lambda_neg,
    )
    if vllm_importance_sampling_correction:
        weight = CorrectedGammaWeight(
            **vars(weight),
            floor=vllm_importance_sampling_clip_min,
            cap=vllm_importance_sampling_clip_max,
            beyond="mask" if vllm_importance_sampling_mode == "token_mask" else "truncate",
        )
    return base.with_parts(objective=weight, aggregate=TokenMean(), token_weight=())


entry(
    "vespo@trl",
    vespo_trl,
    Card(
        title="VESPO as TRL computes it",
        summary='loss_type="vespo": the gamma weight of whole completions with a token mean.',
        formula=f"L = -1/Σ|y_i| Σ_i Σ_t sg[w_i^k e^(λ(1-w_i))] A_i log π(y_t),  {STD}",
        defaults={
            "vespo_k_pos": "GRPOConfig.vespo_k_pos",
            "vespo_lambda_pos": "GRPOConfig.vespo_lambda_pos",
            "vespo_k_neg": "GRPOConfig.vespo_k_neg",
            "vespo_lambda_neg": "GRPOConfig.vespo_lambda_neg",
            "vllm_importance_sampling_mode": "GRPOConfig has sequence_mask, which TRL refuses with this loss",
        },
        differs=["1e-4 is added to the standard deviation", WINDOW, MASKED, RANKED],
        reduces=[Reduction("vespo", other={"eps": 1e-4}, why="only the small constant differs")],
        source=trl.SOURCE,
        golden=[one_right(advantage=ADVANTAGE, grad=PER_TOKEN, why="at w = 1 the weight is 1")],
    ),
    base="grpo@trl",
    keeps=trl.FOR_EVERY_LOSS,
)


def gmpo_switches(
    method: Method,
    *,
    scale_rewards: trl.ScaleRewards = "group",
    beta: NonNegative = 0.0,
    mask_truncated_completions: bool = False,
) -> Method:
    """Set those of GRPOTrainer's settings that GMPOTrainer reads; its KL is never weighted by the ratio."""
    return trl.switches(
        method,
        scale_rewards=scale_rewards,
        beta=beta,
        use_bias_correction_kl=False,
        mask_truncated_completions=mask_truncated_completions,
    )


def gmpo_trl(
    epsilon: Positive = 0.4, epsilon_high: Positive | None = None, top_entropy_quantile: Share = 1.0
) -> Method:
    """Compose GMPO with TRL's numbers."""
    high = epsilon if epsilon_high is None else epsilon_high
    mean = GeometricMean(clip_low=epsilon, clip_high=high)
    if top_entropy_quantile < 1:
        mean = TopEntropyMean(clip_low=epsilon, clip_high=high, share=top_entropy_quantile)
    return Method(advantage=trl.advantage(), objective=mean, aggregate=SequenceMean())


dialect(
    "gmpo@trl",
    gmpo_trl,
    Card(
        title="GMPO as TRL computes it",
        summary="TRL's experimental GMPOTrainer: the geometric mean of ratios clipped at e^±0.4.",
        formula=f"L = -1/B Σ_i exp(1/|y_i| Σ_t c_t) A_i,  {STD}",
        defaults={
            "epsilon": "GMPOConfig.epsilon",
            "epsilon_high": "GMPOConfig.epsilon_high: None takes epsilon",
            "top_entropy_quantile": "GMPOConfig.top_entropy_quantile: 1, every token",
        },
        differs=[
            "1e-4 is added to the standard deviation",
            "The KL is never weighted by the ratio",
            "With top_entropy_quantile the other tokens leave the geometric mean, not the KL; ranked are the tokens of "
            "the step, and of each micro-batch in TRL",
            "With mask_truncated_completions TRL adds the constant -A_i of each truncated completion to the loss; here "
            "it adds nothing. No gradient depends on it",
        ],
        reduces=[Reduction("gmpo", other={"eps": 1e-4}, why="only the small constant differs")],
        source="TRL 1.16.0, experimental GMPOTrainer._compute_loss, run against this entry",
        golden=[one_right(advantage=ADVANTAGE, grad=ALL_WEIGH_THE_SAME, why="at ρ = 1 the geometric mean is 1")],
    ),
    gmpo_switches,
    trl.SWITCHES,
)


def gdpo_trl(base: Method, reward_weights: dict[str, float] | None = None) -> Method:
    """Compose GDPO with TRL's numbers."""
    return base.with_parts(
        aggregate=TokenMean(),
        advantage=DecoupledComponents(weights=reward_weights or {}, eps=1e-4),
        advantage_transform=(Whiten(key="batch", count="sequence", variance="sample", eps=1e-4, eps_in="std"),),
    )


entry(
    "gdpo@trl",
    gdpo_trl,
    Card(
        title="GDPO as TRL computes it",
        summary='multi_objective_aggregation="normalize_then_sum" with TRL\'s default loss.',
        formula=f"L = -1/Σ|y_i| Σ_i Σ_t {CLIPPED},  A = (S - mean_B S)/(std_B S + 1e-4),  "
        "S_i = Σ_k w_k (r_ik - mean_g r_k)/(std_g r_k + 1e-4)",
        defaults={"reward_weights": "GRPOConfig.reward_weights: None weighs every component 1"},
        differs=[
            "1e-4 is added to every standard deviation",
            "Mean over tokens, not over completions",
            WINDOW,
            MASKED,
            RANKED,
        ],
        reduces=[
            Reduction(
                "gdpo",
                when=["equal_lengths"],
                other={"eps": 1e-4},
                why="with equal lengths both means are the same",
            )
        ],
        source=trl.SOURCE,
        golden=[
            Golden(
                rewards=[2, 1, 0, 0],
                fields={"rewards.accuracy": [1.0, 0.0, 0.0, 0.0], "rewards.format": [1.0, 1.0, 0.0, 0.0]},
                settings={"reward_weights": {"accuracy": 1.0, "format": 0.0}},
                advantage=[1.49984999, -0.49995, -0.49995, -0.49995],
                grad=[[-0.37496250], [0.12498750], [0.12498750], [0.12498750]],
                why="0.75/0.5001 and -0.25/0.5001 have mean 0 and spread 0.99980004, plus 1e-4",
            )
        ],
    ),
    base="grpo@trl",
    keeps=("epsilon", "epsilon_high", "delta", *trl.FOR_EVERY_LOSS[1:]),
)
