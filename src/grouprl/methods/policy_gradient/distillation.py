"""Learning from a teacher's log-probs of one's own completions: MiniLLM."""

from __future__ import annotations

from grouprl.algorithms.advantage.papers.teacher_to_go import TeacherToGo
from grouprl.algorithms.method import Method
from grouprl.core.numbers import Share
from grouprl.methods.card import Card, Golden, Paper
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIP, CLIPS


def minillm(base: Method, gamma: Share = 1.0, normalized: bool = True) -> Method:
    """Compose MiniLLM.

    Token mean of PPO's clipped loss with A_t the mean of log(teacher/policy) from t to the end; no reward is read.
    """
    return base.with_parts(
        reward_transform=(),
        advantage=TeacherToGo(gamma=gamma, normalized=normalized),
        advantage_transform=(),
        critic=None,
    )


entry(
    "minillm",
    minillm,
    Card(
        title="MiniLLM: the reverse KL to a teacher",
        papers=[Paper("MiniLLM: Knowledge Distillation of Large Language Models", "2306.08543", 2023)],
        summary="A policy gradient of KL(policy || teacher) on the policy's own completions; no reward is read.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t),  "
            "A_t = Σ_{k≥t} γ^(k-t)·log(p(y_k)/π_old(y_k)) / Σ_{k≥t} γ^(k-t),  p the teacher"
        ),
        defaults={
            "clip_low": CLIP,
            "clip_high": CLIP,
            "gamma": "1, the paper's; TRL's MiniLLMTrainer took 0, so that each token is judged alone",
            "normalized": "the paper's length normalisation, without which short completions are preferred",
        },
        differs=[
            "The first step of each return is that of the sampled token; the paper sums it over the vocabulary, which "
            "has the same mean and less variance.",
            "Completions are the policy's own; the paper mixes the teacher in as they are sampled (α = 0.2).",
            "The mean from t on has T-t+1 terms, as in TRL's code; the paper divides the sum behind t by T-t-1.",
            "No loss of language modelling on a corpus is added.",
        ],
        needs=["a teacher with the policy's tokenizer: model.reference, the folder of a model of any size"],
        confidence="partly",
        uncertain="The authors' code was not read; TRL's says that it mostly follows it.",
        source="TRL 1.14.2 experimental/minillm/minillm_trainer.py",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                fields={"ref_bt": [[-0.5, -0.8], [-1.4]]},
                advantage=[[0.35, 0.2], [-0.4]],
                loss=-0.05,
                grad=[[-0.11666667, -0.06666667], [0.13333333]],
                why="log-probs are -1: 0.5, 0.2 and -0.4; their means from each token on",
            ),
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                fields={"ref_bt": [[-0.5, -0.8], [-1.4]]},
                settings={"gamma": 0.5, "normalized": False},
                advantage=[[0.6, 0.2], [-0.4]],
                why="0.5 + 0.5·0.2",
            ),
        ],
    ),
    base="ppo",
    keeps=CLIPS,
)
