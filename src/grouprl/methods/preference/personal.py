"""Reward models of users whose tastes differ: VPL."""

from __future__ import annotations

from grouprl.algorithms.advantage.advantage import RawReward
from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.filter.paired import PairedGroups
from grouprl.algorithms.link.link import Logistic
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.pair import Pair
from grouprl.algorithms.regularize.papers.user_kl import UserKL
from grouprl.algorithms.score.papers.drawn_score import DrawnScore
from grouprl.core.numbers import Count, NonNegative, Share
from grouprl.methods.card import Card, Golden, Paper
from grouprl.methods.preference.composing import TIES
from grouprl.methods.preference.reward_models import TRAINS
from grouprl.methods.registry import entry


def vpl(kl_coef: NonNegative = 3e-6, low: Share = 0.1, period: Count = 10_000) -> Method:
    """Compose VPL: the Bradley-Terry loss for a user drawn from the belief about them, and the belief's KL."""
    return Method(
        filter=(PairedGroups(),),
        advantage=RawReward(),
        objective=Pair(score=DrawnScore(), link=Logistic(beta=1.0)),
        aggregate=SequenceMean(),
        regularize=(UserKL(coef=kl_coef, low=low, period=period),),
    )


entry(
    "vpl",
    vpl,
    Card(
        title="Variational preference learning: a reward model of each user",
        papers=[
            Paper(
                "Personalizing Reinforcement Learning from Human Feedback with Variational Preference Learning",
                "2408.10075",
                2024,
            )
        ],
        summary="A reward model for users who disagree: a few judgements of a user tell whose taste counts.",
        formula=(
            "L = mean_pairs[-log σ(r(w, z) - r(l, z)) + c·β(step)·KL(q || N(0, I))],  z = μ + σε made √dim long,  "
            "q = N(μ, σ²) from the user's judgements,  β = low + (1 - low)·(1 - cos(π·(step mod period)/period))/2"
        ),
        defaults={
            "kl_coef": "WEIRDLabUW/vpl_llm, submit_job_UF_P_4.sh: 3e-6 (of a sum over the batch of twice the KL)",
            "low": "the code: baseline 0.1",
            "period": "the code: 10,000 steps",
        },
        differs=[
            "The KL is a mean over pairs, with its factor 1/2; the code adds it up over the batch without.",
            "σ is as the paper has it; the released code multiplies the noise by 0.001, as model.users.noise can.",
            "Judgements go through the trunk that is trained; larger runs of the code read them by a frozen one.",
            "Evaluations, and rewards of other runs, take the mean μ, as the paper's do.",
            TIES,
        ],
        needs=[
            TRAINS.replace("a layer for one score", "layers for a user's score"),
            "pairs of stored completions whose prompts begin with judgements of their user (task preferences with "
            "context, or prompts of judged_prompt)",
        ],
        source="WEIRDLabUW/vpl_llm: hidden_context/vae_utils.py, submit_job_UF_P_4.sh",
        golden=[
            Golden(
                rewards=[1, 0, 1, 0],
                lengths=[2, 1, 1, 1],
                groups=[0, 0, 1, 1],
                fields={
                    "row_outputs.drawn_score": [1.0, 0.0, 0.5, 1.5],
                    "row_outputs.user_kl": [2.0, 2.0, 6.0, 6.0],
                    "step": 0,
                },
                settings={"kl_coef": 0.5},
                advantage=[1.0, 0.0, 1.0, 0.0],
                loss=1.013261688,
                grad=[
                    [-0.134470711, 0.0125],
                    [0.134470711, 0.0125],
                    [-0.365529289, 0.0125],
                    [0.365529289, 0.0125],
                ],
                why="(log(1 + e^-1) + log(1 + e^1))/2 + 0.5·0.1·(2 + 6)/2; of each KL 0.5·0.1/4",
            ),
        ],
        notes=[
            "Of three annotators' held-out pairs it ranked 0.688 right and bradley_terry 0.684, five seeds each at "
            "tuned rates: no difference is shown (docs/reward_models.md).",
        ],
        recommended={"learning_rate": 1e-4, "group": 2},
        run=[
            "task=preferences",
            "task.annotators=2",
            "task.context=2",
            "batch.group_size=2",
            "warmup={steps: 0}",
        ],
    ),
)
