"""PPO against reward models: stabilised settings, and rollouts that begin inside stored answers."""

from __future__ import annotations

from grouprl.algorithms.advantage_transform.papers.clip_advantage import ClipAdvantage
from grouprl.algorithms.augment.papers.running_moments import RunningMoments
from grouprl.algorithms.method import Method
from grouprl.algorithms.reward_transform.papers.running_scale import RunningScale
from grouprl.algorithms.reward_transform.reward_transform import RewardClip
from grouprl.algorithms.sampling.papers.prefix_restarts import DatasetResets
from grouprl.core.numbers import NonNegative, Positive, Share
from grouprl.methods.card import Card, Golden, Paper
from grouprl.methods.registry import entry
from grouprl.methods.settings import KL_NEED


def ppo_max(
    base: Method,
    center: bool = False,
    reward_limit: Positive | None = None,
    advantage_limit: Positive | None = None,
    kl_coef: NonNegative = 0.01,
) -> Method:
    """Compose PPO-max: PPO on rewards in units of their running spread, optionally clipped like the advantages."""
    clip = (RewardClip(limit=reward_limit),) if reward_limit else ()
    limit = (ClipAdvantage(limit=advantage_limit),) if advantage_limit else ()
    return base.with_parts(
        augment=(RunningMoments(),),
        reward_transform=(RunningScale(center=center), *clip, *base.reward_transform),
        advantage_transform=(*base.advantage_transform, *limit),
    )


entry(
    "ppo_max",
    ppo_max,
    Card(
        title="PPO-max",
        papers=[Paper("Secrets of RLHF in Large Language Models Part I: PPO", "2307.04964", 2023)],
        summary="PPO for RLHF with the settings that keep it stable: scaled rewards, KL in the reward, whitening.",
        formula="R ← clip(R/σ_run, ±c),  r_t ← -β·log π_old/π_ref + R·1[t = T];  then PPO with GAE",
        defaults={
            "center": "MOSS-RLHF: off (its use_reward_norm subtracts the running mean)",
            "reward_limit": "off, as in MOSS-RLHF; its reward_clip is 10",
            "advantage_limit": "off, as in MOSS-RLHF; its advantage_clip is 0.5",
            "kl_coef": "MOSS-RLHF train_ppo_en.sh: 0.01",
        },
        differs=[
            "The critic begins as a value head on the policy; the paper's begins as the reward model.",
            "No loss on pretraining text (PPO-ptx), and no target for the entropy; both are off in MOSS-RLHF, too.",
        ],
        needs=["a critic (value head)", KL_NEED],
        source="OpenLMLab/MOSS-RLHF: ppo/ppo_trainer.py, config_ppo.py, train_ppo_en.sh",
        golden=[
            Golden(
                rewards=[4],
                lengths=[2],
                fields={
                    "value_bt": [[0.5, 0.5]],
                    "ref_bt": [[-1.0, -1.0]],
                    "past.reward_std": [4.0],
                },
                settings={"whiten": False},
                advantage=[[0.475, 0.5]],
                loss=-0.4875,
                grad=[[-0.2375, -0.25]],
                why="the reward is 4/4 = 1, the KL 0: the example of PPO",
            ),
        ],
        recommended={"epochs": 1, "learning_rate": 5e-7},
    ),
    base="ppo",
)


def dr_po(base: Method, chance: Share = 1.0, kl_coef: NonNegative = 0.05) -> Method:
    """Compose DR-PO: PPO whose completions begin with a random part of the task's answer, which is not trained on."""
    return base.with_parts(sampling=DatasetResets(chance=chance))


entry(
    "dr_po",
    dr_po,
    Card(
        title="Dataset Reset Policy Optimization",
        papers=[Paper("Dataset Reset Policy Optimization for RLHF", "2404.08495", 2024)],
        summary="PPO whose rollouts restart from states of good answers: the policy writes the rest.",
        formula="y = (y*_{<k}, π(·|x, y*_{<k})),  k uniform in 1..|y*|-1 with probability β;  PPO's loss on the rest",
        defaults={
            "chance": "Cornell-RL/drpo: β = 1 (0.2 was tried, too)",
            "kl_coef": "PPO's 0.05 of TRL, fixed; Cornell-RL/drpo adapts it",
        },
        differs=[
            "The value loss leaves out the given tokens, as the policy loss does; the authors' counts all tokens.",
            "The weight of the KL is fixed.",
        ],
        needs=["a critic (value head)", KL_NEED, "tasks with answers to begin from"],
        source="Cornell-RL/drpo: src/tldr/drpo.py; Cornell-RL/tril: RollinProcessor",
        golden=[
            Golden(
                rewards=[1],
                lengths=[2],
                fields={"value_bt": [[0.5, 0.5]], "ref_bt": [[-1.0, -1.0]]},
                settings={"whiten": False},
                advantage=[[0.475, 0.5]],
                loss=-0.4875,
                grad=[[-0.2375, -0.25]],
                why="on what is sampled it is PPO",
            ),
        ],
        recommended={"epochs": 4, "learning_rate": 3e-6},
    ),
    base="ppo",
)
