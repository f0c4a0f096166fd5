"""Models of preferences that no single score explains: GPM."""

from __future__ import annotations

from grouprl.algorithms.advantage.advantage import RawReward
from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.filter.paired import PairedGroups
from grouprl.algorithms.link.link import Logistic
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.pair import Pair
from grouprl.algorithms.score.papers.preference_score import PreferenceScore
from grouprl.core.numbers import Count, Positive
from grouprl.methods.card import Card, Golden
from grouprl.methods.preference.composing import TIES
from grouprl.methods.preference.reward_models import TRAINS
from grouprl.methods.registry import entry
from grouprl.methods.settings import GPM_PAPER


def gpm(blocks: Count = 2, tau: Positive = 0.1) -> Method:
    """Compose the general preference model: mean over pairs of -log σ(s(w ≻ l)/τ), s skew-symmetric in the vectors of
    the two.
    """
    return Method(
        filter=(PairedGroups(),),
        advantage=RawReward(),
        objective=Pair(score=PreferenceScore(blocks=blocks), link=Logistic(beta=1 / tau)),
        aggregate=SequenceMean(),
    )


entry(
    "gpm",
    gpm,
    Card(
        title="GPM: general preference model",
        papers=[GPM_PAPER],
        summary="A model that compares: preferences from vectors of completions, which may go in circles.",
        formula="L = mean_pairs[-log σ(s/τ)],  s = Σ_k v_(2k-1)(w)·v_2k(l) - v_2k(w)·v_(2k-1)(l)",
        defaults={
            "blocks": "the code's scripts: vectors of 2 to 6 numbers; its class of several blocks has 4",
            "tau": "the code's loss of several blocks: 0.1 (of a single block 1)",
        },
        differs=[
            "The blocks weigh the same; the code can scale them by a layer that reads the prompt.",
            "Groups of more than two rows: every pair with different rewards, averaged within the group.",
            TIES,
        ],
        needs=[
            TRAINS.replace("a layer for one score", "a layer for a vector"),
            "groups of stored completions with different rewards, such as pairs",
        ],
        source="general-preference/general-preference-model: general_preference/models/loss.py",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                fields={"row_outputs.preference@1": [1.0, 0.5], "row_outputs.preference@2": [0.2, -0.4]},
                settings={"blocks": 1, "tau": 1.0},
                advantage=[1.0, 0.0],
                loss=0.974076984,
                grad=[[0.248983732, 0.311229666], [0.124491866, -0.622459331]],
                why="s = 1·(-0.4) - 0.2·0.5 = -0.5: log(1 + e^0.5); slopes -σ(0.5)·(l₂, -l₁) and -σ(0.5)·(-w₂, w₁)",
            ),
        ],
        notes=["With one block and second coordinates of 1 it is bradley_terry: s = r(w) - r(l)."],
        recommended={"learning_rate": 1e-4, "group": 2},
    ),
)
