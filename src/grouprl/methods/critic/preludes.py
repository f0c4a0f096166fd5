"""PPO with a second model that is trained before the policy: a value model (DVPO), a preference model (RTO)."""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.advantage.papers.guided_gae import GuidedGAE
from grouprl.algorithms.advantage_transform.advantage_transform import Whiten
from grouprl.algorithms.method import Method
from grouprl.algorithms.pretrain.papers.second_model import GlobalValue, PairSource, PreferenceModel
from grouprl.algorithms.reward_transform.papers.expert_reward import ExpertReward
from grouprl.algorithms.reward_transform.reward_transform import RewardClip
from grouprl.core.numbers import Count, NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS

REFERENCE = "a reference model"
MIXED = "prompts that have right and wrong completions before training (or a task with solutions)"
PAIRS = (
    "The pairs are right and wrong completions of the initial policy to the run's own prompts (chosen=solutions: the "
    "task's solution and a wrong completion); the paper has a set of human or AI preferences."
)
STEPS = "ours: rollouts of the initial policy; the paper trains on a preference set"
RATE = "ours, for small models"
DKI = "microsoft/DKI_LLM dvpo"


def whitened(whiten: bool) -> tuple[Whiten, ...]:
    """Return the whitening of advantages over all tokens of the batch, or nothing."""
    return (Whiten(key="batch", count="token", variance="sample"),) if whiten else ()


def dvpo(
    base: Method,
    gamma: float,
    lam: float,
    kl_coef: NonNegative = 0.2,
    terminal: Literal["value", "zero"] = "value",
    whiten_values: bool = True,
    pretraining_steps: Count = 50,
    pretraining_epochs: Count = 2,
    pretraining_lr: Positive = 1e-4,
    chosen: PairSource = "completions",
) -> Method:
    """Compose DVPO.

    A copy of the policy with a value head learns ±1 outcomes from pairs of completions, then is frozen; PPO's clip
    follows GAE on its whitened values and the KL to the reference alone.
    """
    model = GlobalValue(
        steps=pretraining_steps,
        lr=pretraining_lr,
        epochs=pretraining_epochs,
        lam=lam,
        gamma=gamma,
        chosen=chosen,
        whiten=whiten_values,
    )
    return base.with_parts(
        advantage=GuidedGAE(gamma=gamma, lam=lam, terminal=terminal),
        critic=None,
        pretrain=(model,),
    )


entry(
    "dvpo",
    dvpo,
    Card(
        title="Decoupled Value Policy Optimization",
        papers=[
            Paper("Lean and Mean: Decoupled Value Policy Optimization with Global Value Guidance", "2502.16944", 2025)
        ],
        summary="PPO guided by a value model that preferences taught before training; no reward is read any more.",
        formula=(
            "before training: V = argmin ½(V - G)² on pairs, r = ±1 at the end, G by TD(λ);  "
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t),  A_t = δ_t + γλA_{t+1},  "
            "δ_t = -β log(π_old/π_ref)(y_t) + γV_{t+1} - V_t"
        ),
        defaults={
            "gamma": f"{DKI}: 1",
            "lam": f"{DKI}: 0.95, for the value model's targets too",
            "kl_coef": f"{DKI}: 0.2, there adapted towards a KL of 0.1",
            "terminal": "the model's value of the whole completion; the authors' code has 0 (terminal=zero)",
            "whiten": f"{DKI}: advantages whitened",
            "whiten_values": f"{DKI}: values whitened over the batch",
            "pretraining_steps": STEPS,
            "pretraining_epochs": f"{DKI}: 2 passes over the same targets",
            "pretraining_lr": RATE,
            "chosen": "ours: the policy's own correct completions",
        },
        differs=[
            PAIRS,
            "The value after the last token is that of the whole completion; the authors' code has 0, which makes "
            "the last "
            "token's advantage minus its (whitened) value (terminal=zero).",
            "The KL's weight is fixed; the authors' code adapts it and skips a batch whose mean ratio is too large.",
            "V_t is the value of the state before token t, and whiten_values takes mean and spread of these; the "
            "authors' V_t is that after token t. The value of the whole completion is shifted and scaled along, which "
            "theirs has no need of.",
            "whiten_values divides by the spread of the step's own values: the weight of the KL beside them changes "
            "from step to step, as in the authors' code.",
        ],
        reduces=[],
        needs=[REFERENCE, MIXED],
        confidence="partly",
        uncertain="How the paper treats the value after the end of a completion; the code's form is a setting.",
        source=f"{DKI}/policy_model_training/policyv1_trainer.py, value_model_training/vas_trainer.py",
        golden=[
            Golden(
                rewards=[5],
                lengths=[3],
                fields={
                    "value_bt": [[0.2, 0.5, 0.9]],
                    "stats.value_after": [[0.5, 0.9, 0.7]],
                    "ref_bt": [[-1.1, -1.0, -1.2]],
                },
                settings={"whiten": False},
                advantage=[[0.4434, 0.172, -0.24]],
                loss=-0.3754 / 3,
                grad=[[-0.1478, -0.172 / 3, 0.08]],
                why="r = -0.2·(0.1, 0, 0.2); δ = 0.28, 0.4, -0.24; A = δ + 0.95·A_next; the reward 5 is never read",
            ),
            Golden(
                rewards=[5],
                lengths=[3],
                fields={"value_bt": [[0.2, 0.5, 0.9]], "ref_bt": [[-1.1, -1.0, -1.2]]},
                settings={"whiten": False, "terminal": "zero"},
                advantage=[[-0.18835, -0.493, -0.94]],
                why="the last δ is -0.04 - 0.9",
            ),
            Golden(
                rewards=[0],
                lengths=[2],
                fields={
                    "value_bt": [[0.0, 0.5]],
                    "stats.value_after": [[0.5, 0.5]],
                    "ref_bt": [[-1.0, -1.0]],
                },
                advantage=[[0.70710676, -0.70710676]],
                why="δ = 0.5 and 0, whitened: ±0.25/sqrt(0.125 + 1e-8)",
            ),
        ],
        notes=["The run's rewards are logged and make the pairs before training; training itself never reads them."],
        recommended={"epochs": 4, "learning_rate": 1.4e-6, "pretraining": "a preference set"},
    ),
    base="ppo",
    keeps=(*CLIPS, "gamma", "lam", "kl_coef", "whiten"),
)


def rto(
    base: Method,
    expert_coef: NonNegative = 0.05,
    expert_limit: Positive | None = 0.05,
    kl_coef: NonNegative = 0.01,
    reward_limit: Positive | None = 10.0,
    dpo_beta: Positive = 0.1,
    pretraining_steps: Count = 50,
    pretraining_lr: Positive = 1e-4,
    chosen: PairSource = "completions",
) -> Method:
    """Compose RTO.

    A copy of the policy learns by DPO from pairs of completions, then rewards each token by its log-ratio to the
    reference; PPO trains the policy on these rewards.
    """
    model = PreferenceModel(steps=pretraining_steps, lr=pretraining_lr, beta=dpo_beta, chosen=chosen)
    limit = () if reward_limit is None else (RewardClip(limit=reward_limit),)
    dense = (ExpertReward(coef=expert_coef, limit=expert_limit),) if expert_coef > 0 else ()
    return base.with_parts(
        reward_transform=(*limit, *dense, *base.reward_transform),
        pretrain=(model,) if expert_coef > 0 else (),
    )


entry(
    "rto",
    rto,
    Card(
        title="Reinforced Token Optimization",
        papers=[Paper("DPO Meets PPO: Reinforced Token Optimization for RLHF", "2404.18922", 2024)],
        summary="PPO whose tokens are rewarded by how much likelier a DPO-trained model finds them than the reference.",
        formula=(
            "r_t = clip(β1·log(π_dpo/π_ref)(y_t), ±c) - β2·log(π_old/π_ref)(y_t) + [t last]·clip(R, ±10);  "
            "PPO with GAE on r_t"
        ),
        defaults={
            "expert_coef": "the authors' script: β1 = 0.05",
            "expert_limit": "the authors' script: c = 0.05, applied after the scaling; none clips nothing",
            "kl_coef": "the authors' script: β2 = 0.01",
            "reward_limit": "the authors' code: the outcome is clipped to ±10",
            "gamma": "1, as PPO for language models",
            "lam": "0.95, as PPO; the script leaves OpenRLHF's default",
            "whiten": "OpenRLHF, TRL and verl: advantages whitened over all tokens of the batch",
            "value_coef": "c = 1 on half the squared error, as ppo",
            "value_clip": "OpenRLHF: 0.2",
            "dpo_beta": "the usual 0.1 of DPO (arXiv:2305.18290)",
            "pretraining_steps": STEPS,
            "pretraining_lr": RATE,
            "chosen": "ours: the policy's own correct completions",
        },
        differs=[
            PAIRS,
            "The critic begins with a head of zeros on the policy's trunk; the authors start it from a reward model.",
            "The outcome is the task's reward, not that of a normalised reward model.",
        ],
        reduces=[
            Reduction(
                "ppo",
                settings={"expert_coef": 0.0, "reward_limit": None},
                other={"kl_coef": 0.01},
                why="β1 = 0 leaves PPO's rewards",
            )
        ],
        needs=["a critic (value head)", REFERENCE, MIXED],
        source="zkshan2002/RTO openrlhf/models/utils.py, experience_maker.py, examples/scripts/train_rto_llama_8b.sh",
        golden=[
            Golden(
                rewards=[1],
                lengths=[2],
                fields={
                    "value_bt": [[0.5, 0.5]],
                    "ref_bt": [[-1.2, -1.0]],
                    "stats.expert": [[0.0, -1.4]],
                },
                settings={"whiten": False},
                advantage=[[0.504, 0.48]],
                loss=-0.492,
                grad=[[-0.252, -0.24]],
                why="dense 0.06 → 0.05 and -0.02, KL -0.002 and 0; δ = 0.048 and 0.98 - 0.5; A_1 = 0.048 + 0.95·0.48",
            ),
            Golden(
                rewards=[25],
                fields={"value_bt": [[0.0]], "ref_bt": [[-1.0]], "stats.expert": [[-1.0]]},
                settings={"whiten": False},
                advantage=[10.0],
                why="π_dpo = π_ref gives nothing, and the outcome is held at 10",
            ),
        ],
        notes=["Unclipped, the dense rewards of a completion add up to the DPO model's implicit reward."],
        recommended={"learning_rate": 5e-7, "critic learning rate": 9e-6},
    ),
    base="ppo",
    keeps=(*CLIPS, "gamma", "lam", "whiten", "value_coef", "value_clip"),
)
