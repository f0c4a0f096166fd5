"""Methods with a critic: PPO."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.advantage.returns import GAE
from grouprl.algorithms.advantage_transform.advantage_transform import Whiten
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.critic.critic import ValueLoss
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import Clipped
from grouprl.algorithms.regularize.kl import ValueEstimator
from grouprl.algorithms.regularize.regularize import EntropyBonus
from grouprl.algorithms.reward_transform.missing_eos import MissingEOS
from grouprl.core.numbers import NonNegative, Positive, Share
from grouprl.methods.card import Card, Golden, Paper
from grouprl.methods.registry import entry
from grouprl.methods.settings import DUAL, KL_NEED, PPO_CLIP, PPO_PAPER, ClipLow, DualClip, kl_in_reward

GAE_PAPER = Paper("High-Dimensional Continuous Control Using Generalized Advantage Estimation", "1506.02438", 2015)


def ppo(
    clip_low: ClipLow = 0.2,
    clip_high: Positive = 0.2,
    dual_clip: DualClip = None,
    gamma: Share = 1.0,
    lam: Share = 0.95,
    critic_lam: Share | None = None,
    length_alpha: Annotated[float, Field(gt=0)] | None = None,
    whiten: bool = True,
    value_coef: NonNegative = 1.0,
    value_clip: Annotated[float, Field(gt=0)] | None = 0.2,
    entropy_coef: NonNegative = 0.0,
    kl_coef: NonNegative = 0.0,
    kl_estimator: ValueEstimator = "k1",
    missing_eos_penalty: NonNegative = 0.0,
) -> Method:
    """Compose PPO for language models.

    Token mean of the clipped loss with GAE advantages, whitened over the batch, and a clipped value loss. KL in the
    reward and entropy bonus are off, as in the paper's clip variant for continuous control.
    """
    penalty = (MissingEOS(penalty=missing_eos_penalty),) if missing_eos_penalty > 0 else ()
    return Method(
        reward_transform=(*penalty, *kl_in_reward(kl_coef, kl_estimator)),
        advantage=GAE(gamma=gamma, lam=lam, length_alpha=length_alpha),
        advantage_transform=(Whiten(key="batch", count="token", variance="sample"),) if whiten else (),
        objective=Clipped(clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip),
        aggregate=TokenMean(),
        regularize=(EntropyBonus(coef=entropy_coef),) if entropy_coef > 0 else (),
        critic=ValueLoss(lam=lam if critic_lam is None else critic_lam, gamma=gamma, clip=value_clip, coef=value_coef),
    )


entry(
    "ppo",
    ppo,
    Card(
        title="Proximal Policy Optimization",
        papers=[
            PPO_PAPER,
            Paper("High-Dimensional Continuous Control Using Generalized Advantage Estimation", "1506.02438", 2015),
        ],
        summary="Clipped ratio, a critic's values, generalised advantage estimation.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t) + c·½·max((V-G)², (V_clip-G)²) - c_H·H,  "
            "A_t = δ_t + γλA_{t+1},  δ_t = r_t + γV_{t+1} - V_t"
        ),
        defaults={
            **PPO_CLIP,
            "dual_clip": DUAL,
            "gamma": "1, as for language models everywhere (the paper: 0.99)",
            "lam": "the paper, table 3: 0.95",
            "critic_lam": "the same λ as the advantage; VC-PPO sets 1",
            "length_alpha": "off; VAPO (arXiv:2504.05118) has 0.05",
            "whiten": "TRL and verl: advantages whitened over all tokens of the batch, returns not",
            "value_coef": "c = 1 on half the squared error, the paper's c1 = 0.5",
            "value_clip": "TRL: 0.2",
            "entropy_coef": "off; the paper has 0 to 0.01",
            "kl_coef": "off: the paper has no reference model; TRL's default is 0.05",
            "kl_estimator": "k1 in the reward, as in RLHF",
            "missing_eos_penalty": "off; optional in TRL",
        },
        differs=[
            "For language models: a token is a step, the reward comes on the last token, gamma is 1.",
            "A cut-off completion is treated as ended: its last state has value 0.",
        ],
        needs=["a critic (value head)", KL_NEED],
        source="verl core_algos.py, TRL experimental/ppo, OpenRLHF models/loss.py",
        golden=[
            Golden(
                rewards=[1],
                lengths=[2],
                fields={"value_bt": [[0.5, 0.5]]},
                settings={"whiten": False},
                advantage=[[0.475, 0.5]],
                loss=-0.4875,
                grad=[[-0.2375, -0.25]],
                why="δ = 0 and 0.5; A = 0.95·0.5 and 0.5; two tokens",
            ),
            Golden(
                rewards=[1],
                lengths=[2],
                fields={"value_bt": [[0.5, 0.5]]},
                advantage=[[-0.70709547, 0.70709547]],
                why="0.475 and 0.5 whitened: ±0.0125 / sqrt(0.0003125 + 1e-8)",
            ),
        ],
        recommended={"epochs": 4, "learning_rate": 3e-6, "kl_coef": 0.05},
    ),
)
