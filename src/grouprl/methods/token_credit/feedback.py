"""Learning from verbal feedback: Text2Grad."""

from __future__ import annotations

from grouprl.algorithms.augment.papers.span_feedback import SpanFeedback
from grouprl.algorithms.method import Method
from grouprl.algorithms.regularize.kl import ValueEstimator
from grouprl.algorithms.reward_transform.papers.span_rewards import SpanRewards
from grouprl.core.numbers import NonNegative
from grouprl.methods.card import Card, Golden, Paper
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, CRITIC, KL_NEED, kl_in_reward


def text2grad(
    base: Method,
    kl_estimator: ValueEstimator,
    feedback: str = "",
    kl_coef: NonNegative = 0.2,
) -> Method:
    """Compose Text2Grad: PPO on token rewards from a critique."""
    shape = (SpanRewards(), *kl_in_reward(kl_coef, kl_estimator))
    return base.with_parts(reward_transform=shape, augment=(SpanFeedback(function=feedback),))


entry(
    "text2grad",
    text2grad,
    Card(
        title="Text2Grad: natural language feedback as token rewards",
        papers=[Paper("Text2Grad: Reinforcement Learning from Natural Language Feedback", "2505.22338", 2025)],
        summary=(
            "PPO whose rewards are +1 on parts of the completion that a critique praises and -1 on those it blames."
        ),
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t) + value loss,  A by GAE,  "
            "r_t = [good] - [poor] - β·(log π_old - log π_ref)"
        ),
        defaults={
            "feedback": "none: whoever writes the critique, a model or rules, is yours to name",
            "gamma": "TRL: 1",
            "lam": "TRL: 0.95",
            "whiten": "TRL and verl: advantages whitened over all tokens of the batch",
            "value_coef": "as ppo: 1",
            "value_clip": "as ppo: 0.2",
            "kl_coef": "the authors' script: 0.2 to begin with",
            "kl_estimator": "k1 in the reward; the authors take the whole distributions",
        },
        differs=[
            "The critic in words is a function; the authors fine-tune a language model for it on annotated data.",
            "The weight of the KL is constant; the authors adapt it to a target of 0.1.",
            "A part that does not occur is looked for among as many words as it has, at a likeness of 0.8.",
        ],
        needs=["a critic (value head)", "a function that names good and poor parts of a completion", KL_NEED],
        confidence="partly",
        uncertain="γ and λ, which are TRL's defaults.",
        source="microsoft/Text2Grad: text2grad_trainer.py, train_ultrafeedback.py",
        golden=[
            Golden(
                rewards=[9],
                lengths=[4],
                fields={
                    "marks.good": [[False, False, True, False]],
                    "marks.poor": [[True, False, False, False]],
                    "value_bt": [[0.0, 0.0, 0.0, 0.0]],
                },
                settings={"whiten": False, "kl_coef": 0.0, "lam": 1.0},
                advantage=[[0.0, 1.0, 1.0, 0.0]],
                loss=-0.5,
                grad=[[0.0, -0.25, -0.25, 0.0]],
                why="+1 on the third token reaches the tokens before it, -1 on the first takes it back there",
            )
        ],
        run=[
            "task=keys",
            "method.feedback=grouprl.envs.builtin.key_door:critique",
        ],
    ),
    base="ppo",
    keeps=(*CLIPS, *CRITIC),
)
