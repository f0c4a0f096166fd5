"""PPO for long completions: a critic fitted to whole outcomes, with a separate λ for advantages (VC-PPO, VAPO)."""

from __future__ import annotations

from grouprl.algorithms.advantage.returns import GAE
from grouprl.algorithms.advantage_transform.advantage_transform import Whiten
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.critic.critic import ValueLoss
from grouprl.algorithms.method import Method
from grouprl.algorithms.pretrain.value_pretraining import ValuePretraining
from grouprl.algorithms.regularize.papers.positive import PositiveNLL
from grouprl.core.numbers import NonNegative, Positive, Share, Whole
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, PPO_CLIP

VALUE_DEFAULTS = {
    "critic_lam": "the paper: 1, so that the end's reward reaches the first token undiminished",
    "whiten": "TRL and verl: advantages whitened over all tokens of the batch, returns not",
    "value_coef": "c = 1 on half the squared error, as for PPO",
    "value_clip": "off, NeMo-RL's default; the paper does not say",
    "gamma": "the paper: 1",
    "value_pretraining": "notes on the VAPO paper: about 50 rollouts of the frozen policy; 0 leaves it out",
}
PRETRAINING = (
    "The critic is a head on the policy's own trunk, so value pre-training fits the head alone, in closed form; the "
    "paper's critic is a model of its own, trained until its loss and explained variance level off."
)
TOGETHER = "Critic and policy share each optimiser step; the released implementations update the critic first."


def fitted(lam: float, gamma: float, clip: float | None, coef: float) -> ValueLoss:
    """Return the critic with its own λ for the targets."""
    return ValueLoss(lam=lam, gamma=gamma, clip=clip, coef=coef)


def pretrained(steps: int, gamma: float) -> tuple[ValuePretraining, ...]:
    """Return value pre-training on `steps` rollouts, or nothing."""
    return (ValuePretraining(steps=steps, gamma=gamma),) if steps else ()


def vc_ppo(
    base: Method,
    gamma: Share = 1.0,
    lam: Share = 0.95,
    critic_lam: Share = 1.0,
    whiten: bool = True,
    value_coef: NonNegative = 1.0,
    value_clip: Positive | None = None,
    value_pretraining: Whole = 50,
) -> Method:
    """Compose VC-PPO.

    PPO with GAE, λ = 0.95 for the policy and 1 for the critic's targets, after `value_pretraining` rollouts of the
    frozen policy to which the value head is fitted.
    """
    return base.with_parts(
        advantage=GAE(gamma=gamma, lam=lam),
        advantage_transform=(Whiten(key="batch", count="token", variance="sample"),) if whiten else (),
        aggregate=TokenMean(),
        critic=fitted(critic_lam, gamma, value_clip, value_coef),
        pretrain=pretrained(value_pretraining, gamma),
    )


entry(
    "vc_ppo",
    vc_ppo,
    Card(
        title="Value-Calibrated PPO",
        papers=[
            Paper("What's Behind PPO's Collapse in Long-CoT? Value Optimization Holds the Secret", "2503.01491", 2025)
        ],
        summary="PPO whose critic learns the undiscounted outcome (λ = 1) while the policy keeps λ = 0.95.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t) + c·½(V-G)²,  "
            "A_t = δ_t + γλ_policy A_{t+1},  G_t = V_t + A_t with λ_critic = 1, that is Σ_{k≥t} r_k"
        ),
        defaults={
            **PPO_CLIP,
            "lam": "the paper: 0.95 for the policy; values from 0.95 to below 1 work, 1 is worst",
            **VALUE_DEFAULTS,
        },
        differs=[PRETRAINING, TOGETHER],
        reduces=[
            Reduction("ppo", other={"critic_lam": 1.0, "value_clip": None}, why="PPO with a λ of the critic's own"),
            Reduction(
                "vapo",
                settings={"clip_high": 0.28},
                other={"length_alpha": None, "nll_coef": 0.0},
                why="VAPO without its additions",
            ),
        ],
        needs=["a critic (value head)"],
        confidence="partly",
        uncertain="Value clip and whitening of the paper's runs.",
        source="notes on the full paper; NeMo-RL advantage_estimator.py (decoupled GAE)",
        golden=[
            Golden(
                rewards=[1],
                lengths=[2],
                fields={"value_bt": [[0.5, 0.5]]},
                settings={"whiten": False},
                advantage=[[0.475, 0.5]],
                loss=-0.4875,
                grad=[[-0.2375, -0.25]],
                why="the policy's side is PPO's: δ = 0 and 0.5, A = 0.95·0.5 and 0.5; the targets are 1 and 1",
            )
        ],
        recommended={"reward": "+1 / -1", "gamma": 1},
    ),
    base="grpo",
    keeps=(*CLIPS, "dual_clip"),
)


def vapo(
    base: Method,
    clip_high: Positive = 0.28,
    gamma: Share = 1.0,
    length_alpha: Positive | None = 0.05,
    lam: Share = 0.95,
    critic_lam: Share = 1.0,
    nll_coef: NonNegative = 0.1,
    whiten: bool = True,
    value_coef: NonNegative = 1.0,
    value_clip: Positive | None = None,
    value_pretraining: Whole = 50,
) -> Method:
    """Compose VAPO.

    VC-PPO, value pre-training included, with λ = 1 - 1/(0.05·|y|) per completion, clip 0.2/0.28 and 0.1 times the
    likelihood of correct completions, as in the paper.
    """
    return base.with_parts(
        advantage=GAE(gamma=gamma, lam=lam, length_alpha=length_alpha),
        advantage_transform=(Whiten(key="batch", count="token", variance="sample"),) if whiten else (),
        aggregate=TokenMean(),
        regularize=(PositiveNLL(coef=nll_coef),) if nll_coef > 0 else (),
        critic=fitted(critic_lam, gamma, value_clip, value_coef),
        pretrain=pretrained(value_pretraining, gamma),
    )


entry(
    "vapo",
    vapo,
    Card(
        title="Value-based Augmented Proximal Policy Optimization",
        papers=[
            Paper(
                "VAPO: Efficient and Reliable Reinforcement Learning for Advanced Reasoning Tasks", "2504.05118", 2025
            )
        ],
        summary="VC-PPO with a λ that grows with length, DAPO's higher clip, and likelihood of correct completions.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε_low, 1+ε_high) A_t) - μ·mean_{right} log π(y_t) + "
            "c·½(V-G)²,  A_t = δ_t + γλ_i A_{t+1},  λ_i = 1 - 1/(α|y_i|),  G_t = Σ_{k≥t} r_k"
        ),
        defaults={
            "clip_low": "the paper: 0.2",
            "clip_high": "the paper: 0.28, clip-higher as in DAPO",
            "length_alpha": "the paper: 0.05, so that Σ_t λ^t = α·|y|",
            "lam": "0.95, used only when length_alpha is none (VC-PPO)",
            "nll_coef": "the paper: μ = 0.1",
            **VALUE_DEFAULTS,
        },
        differs=[
            PRETRAINING,
            TOGETHER,
            "λ_i is held at 0 or above: completions of at most 1/α = 20 tokens get pure one-step differences "
            "(NeMo-RL).",
            "Group sampling (16 completions per prompt) is a setting of the run.",
        ],
        reduces=[
            Reduction(
                "vc_ppo",
                settings={"length_alpha": None, "nll_coef": 0.0},
                other={"clip_high": 0.28},
                why="without its additions",
            ),
            Reduction(
                "ppo",
                settings={"nll_coef": 0.0},
                other={"clip_high": 0.28, "length_alpha": 0.05, "critic_lam": 1.0, "value_clip": None},
                why="PPO's own settings",
            ),
        ],
        needs=["a critic (value head)"],
        confidence="partly",
        uncertain="Value clip and whitening of the paper's runs.",
        source="NeMo-RL advantage_estimator.py and loss_functions.py; notes on the full paper",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                groups=[0, 1],
                fields={"value_bt": [[0.5, 0.5], [0.25]]},
                settings={"whiten": False, "length_alpha": 1.0},
                advantage=[[0.25, 0.5], [-0.25]],
                loss=-2 / 30,
                grad=[[-0.25 / 3 - 0.05, -0.5 / 3 - 0.05], [0.25 / 3]],
                why="λ = 1 - 1/2 and 0; δ = 0, 0.5 and -0.25; the two right tokens share μ = 0.1",
            )
        ],
        notes=[
            "The paper's ablations (AIME 2024): 60 in full; 11 without value pre-training, 33 without a λ of the "
            "critic's own, 45 without the length-adaptive λ, 54 without the likelihood term.",
            "For short completions set length_alpha higher (or none): with α = 0.05 and at most 20 tokens λ is 0.",
        ],
        recommended={"prompts": 512, "group": 16, "gamma": 1},
    ),
    base="grpo",
    keeps=("clip_low", "dual_clip"),
)
