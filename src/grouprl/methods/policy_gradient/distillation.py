"""Learning from a teacher's log-probs of one's own completions: MiniLLM."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.advantage.papers.teacher_to_go import TeacherToGo
from grouprl.algorithms.method import Method
from grouprl.algorithms.regularize.papers.teacher_kl import TeacherKL
from grouprl.algorithms.sampling.papers.teacher_mixed import TeacherMixed
from grouprl.algorithms.token_weight.importance import TruncatedImportance
from grouprl.core.numbers import Share
from grouprl.methods.card import Card, Golden, Paper
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS

SingleStep = Literal["vocabulary", "sampled", "both"]
"""How a token's own step counts: summed over the vocabulary, as that of the token sampled, or as both."""


def minillm(
    base: Method,
    gamma: Share = 1.0,
    normalized: bool = True,
    single_step: SingleStep = "vocabulary",
    teacher_share: Annotated[float, Field(ge=0, lt=1)] = 0.0,
) -> Method:
    """Compose MiniLLM.

    Token mean of PPO's clipped loss with A_t the mean of log(teacher/policy) after t, plus the KL to the teacher at
    each t over the whole vocabulary; no reward is read. Tokens of a mixture with the teacher have the weight π_old/μ.
    """
    weight = TruncatedImportance(high=1 / (1 - teacher_share))  # its largest value
    return base.with_parts(
        sampling=TeacherMixed(share=teacher_share) if teacher_share else None,
        token_weight=(weight,) if teacher_share else (),
        reward_transform=(),
        advantage=TeacherToGo(gamma=gamma, normalized=normalized, own=single_step != "vocabulary"),
        advantage_transform=(),
        critic=None,
        regularize=() if single_step == "sampled" else (TeacherKL(),),
    )


entry(
    "minillm",
    minillm,
    Card(
        title="MiniLLM: the reverse KL to a teacher",
        papers=[Paper("MiniLLM: Knowledge Distillation of Large Language Models", "2306.08543", 2023)],
        summary="A policy gradient of KL(policy || teacher) on the policy's own completions; no reward is read.",
        formula=(
            "L = 1/Σ|y_i| Σ_i Σ_t [-w_t·min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t) + Σ_v π(v)·log(π(v)/p(v))],  "
            "A_t = Σ_{k>t} γ^(k-t)·log(p(y_k)/π_old(y_k)) / Σ_{k>t} γ^(k-t),  p the teacher,  "
            "w_t = π_old(y_t)/μ(y_t), μ what sampled"
        ),
        defaults={
            "gamma": "1, the paper's; TRL's MiniLLMTrainer took 0, so that what follows a token does not count",
            "normalized": "the paper's length normalisation, without which short completions are preferred",
            "single_step": "the paper's: a token's own step is summed over the vocabulary and left out of A_t",
            "teacher_share": "0, so that any engine can sample; the paper's α is 0.2",
        },
        differs=[
            "The mean after t has T-t terms; the paper divides their sum by T-t-1. The authors' code and TRL's also "
            "keep the own step of the token sampled, k = t, beside the sum over the vocabulary: single_step: both.",
            "A clip holds the ratio to the policy before the update; the authors clip its product with w_t. Their "
            "advantages are whitened besides, and their sum over the vocabulary has no w_t either.",
            "In TRL the gradient also passes through A_t, which adds a term of mean 0 (γ = 0: ∇log π(y_t)); padding "
            "counts in its A_t; without normalisation its A_t is smaller by γ^t.",
            "No loss of language modelling on a corpus is added.",
        ],
        needs=[
            "a teacher with the policy's tokenizer: model.reference, the folder of a model of any size",
            "one process where teacher_share is above 0: it samples from both models, token by token",
        ],
        confidence="partly",
        uncertain="The paper's text was not at hand, only reports of it, the authors' losses and TRL's code.",
        source="microsoft/LMOps minillm/losses.py, sampler.py; TRL 1.14.2 experimental/minillm, run against this entry",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                fields={"ref_bt": [[-0.5, -0.8], [-1.4]], "stats.teacher_kl": [[0.6, 0.3], [0.9]]},
                advantage=[[0.2, 0.0], [0.0]],
                loss=0.53333333,
                grad=[[-0.06666667, 0.0], [0.0]],
                why="log-probs are -1: gains 0.5, 0.2 and -0.4, of which one comes after another token; (1.8 - 0.2)/3",
            ),
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                fields={"ref_bt": [[-0.5, -0.8], [-1.4]]},
                settings={"single_step": "sampled"},
                advantage=[[0.35, 0.2], [-0.4]],
                loss=-0.05,
                grad=[[-0.11666667, -0.06666667], [0.13333333]],
                why="0.5, 0.2 and -0.4; their means from each token on",
            ),
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                fields={"ref_bt": [[-0.5, -0.8], [-1.4]]},
                settings={"gamma": 0.5, "normalized": False, "single_step": "sampled"},
                advantage=[[0.6, 0.2], [-0.4]],
                why="0.5 + 0.5·0.2",
            ),
        ],
        run=[
            "model.reference=runs/teacher/model",
        ],
        first="grouprl train addition --folder runs/teacher",
    ),
    base="ppo",
    keeps=CLIPS,
)
