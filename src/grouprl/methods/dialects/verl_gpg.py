"""GPG as verl computes it."""

from __future__ import annotations

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.advantage_transform.papers.nonzero_scores import NonzeroScores
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import PolicyGradient
from grouprl.methods.card import Card, Golden, Reduction
from grouprl.methods.dialects import verl
from grouprl.methods.dialects.switches import dialect


def gpg_verl() -> Method:
    """Compose GPG with verl's numbers."""
    return Method(
        advantage=Relative("group", center="mean", scale="none", alone="raw"),
        advantage_transform=(NonzeroScores(),),
        objective=PolicyGradient(),
        aggregate=TokenMean(),
    )


dialect(
    "gpg@verl",
    gpg_verl,
    Card(
        title="GPG as verl computes it",
        summary="adv_estimator=gpg, loss_mode=gpg: no ratio, no clip; α counts the completions with a score.",
        formula="L = -α/Σ|y_i| Σ_i Σ_t A_i log π(y_t),  A_i = R_i - mean_g R,  α = B / #(R_i ≠ 0)",
        differs=[
            "α divides by the completions whose score is not 0; the paper's by those in groups with a spread. With "
            "rewards of ±1 verl's is always 1",
            "Mean over tokens, not over completions",
            "Several updates per rollout are allowed, as in verl: nothing corrects for the drift",
            verl.LONE,
        ],
        reduces=[
            Reduction(
                "gpg",
                when=["on_policy", "equal_lengths", "mixed_groups"],
                other={"alone": "raw"},
                scale=None,
                why="one factor per batch",
            )
        ],
        needs=["at least two completions per prompt"],
        source=verl.SOURCE,
        golden=[
            Golden(
                rewards=[1, 0, 1, 1],
                lengths=[2, 1, 1, 1],
                groups=[0, 0, 1, 1],
                advantage=[2 / 3, -2 / 3, 0.0, 0.0],
                loss=2 / 15,
                grad=[[-2 / 15] * 2, [2 / 15], [0.0], [0.0]],
                why="α = 4/3 of ±1/2; five tokens, log-probs of -1",
            )
        ],
    ),
    verl.switches,
    verl.SWITCHES,
)
