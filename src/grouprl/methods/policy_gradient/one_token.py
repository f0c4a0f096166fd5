"""Fine-tuning on demonstrations as policy gradient: OTR."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.advantage.advantage import Ones
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.buffer.papers.demonstrations import Demonstrations
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.papers.one_token import OneToken
from grouprl.core.numbers import Positive
from grouprl.methods.card import Card, Golden, Paper
from grouprl.methods.registry import entry


def otr(beta: Annotated[float, Field(le=1)] = -0.1, kappa: Positive = 1.0) -> Method:
    """Compose OTR: token mean over demonstrations of the expected policy-gradient loss of one sampled token."""
    return Method(
        advantage=Ones(),
        objective=OneToken(beta=beta, kappa=kappa),
        aggregate=TokenMean(),
        buffer=Demonstrations(),
    )


entry(
    "otr",
    otr,
    Card(
        title="One-Token Rollout",
        papers=[
            Paper("One-Token Rollout: Guiding Supervised Fine-Tuning of LLMs with Policy Gradient", "2509.26313", 2025)
        ],
        summary="Fine-tuning on demonstrations as policy gradient: at each position one token is sampled and judged.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t [p'(x_t) log π(x_t) + β Σ_{a≠x_t} p'(a) log π(a)],  p' = sg softmax(z/κ), x_t the "
            "demonstration's token"
        ),
        defaults={
            "beta": "reviews of the paper: -0.1 is best",
            "kappa": "1, the policy itself; the paper samples at a temperature above 1 whose value was not seen",
        },
        differs=[
            "The expectation in closed form; the paper samples 256 tokens at each position, of which it is the limit.",
        ],
        reduces=[],
        needs=["a task with right solutions to show", "log-probs at temperature kappa where it is not 1"],
        confidence="partly",
        uncertain="The sampling temperature κ.",
        source="reviews of the paper; the closed form was checked by its gradient",
        golden=[
            Golden(
                rewards=[0],
                fields={"stats.cross@1": [[-1.5]]},
                advantage=[1.0],
                loss=0.25466738,
                grad=[[-0.40466739]],
                why="p = 1/e: -(-p - 0.1(-1.5 + p)); the cross-entropy is an input of its own: slope -1.1·p",
            ),
            Golden(
                rewards=[0],
                fields={"stats.logp@2": [[-0.6931471805599453]]},
                settings={"beta": 0.0, "kappa": 2.0},
                loss=0.5,
                grad=[[-0.5]],
                why="p' = 1/2 at temperature 2",
            ),
        ],
        notes=[
            "At κ = 1 a constant reward has no gradient on average: the whole is 1 - β times π(x)·∇log π(x), fine-"
            "tuning in which a token counts by its probability.",
            "Nothing is sampled: each step shows the right solutions of its prompts, one each.",
        ],
    ),
)
