"""DPO with ties: pairs in which neither completion is better say that their scores are close."""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.advantage.advantage import RawReward
from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.augment.papers.preferences.tie_margin import TieMargin
from grouprl.algorithms.filter.paired import PairedGroups
from grouprl.algorithms.link.papers.ties import Davidson, RaoKupper, TieLink
from grouprl.algorithms.margin.margin import Constant
from grouprl.algorithms.margin.papers.ties import LearnedTies
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.papers.tied_pair import TiedPair
from grouprl.core.numbers import Positive
from grouprl.methods.card import Card, Golden, Paper
from grouprl.methods.preference.composing import AT_ONE, BETA, PAIRS, RECOMMENDED, REFERENCE, one_pair
from grouprl.methods.registry import entry

MODELS: dict[str, type[Davidson] | type[RaoKupper]] = {"davidson": Davidson, "rao_kupper": RaoKupper}


TIE = Golden(
    rewards=[1, 1],
    lengths=[2, 1],
    log_ratio=[[0.3, 0.1], [-0.2]],
    fields=AT_ONE,
    loss=1.0989122663,
    grad=[[0.00099985, 0.00099985], [-0.00099985]],
    why="a tie: log(e^0.03 + e^-0.03 + 1) - log 1",
)


def dpo_ties(
    beta: Positive = 0.1,
    model: Literal["davidson", "rao_kupper"] = "davidson",
    margin: Positive = 0.5,
    rate: Positive | None = None,
) -> Method:
    """Compose DPO with a model of ties, whose parameter is fixed, or learned at a rate."""
    link: TieLink = MODELS[model](beta=beta)
    known = Constant(value=margin) if rate is None else LearnedTies()
    return Method(
        filter=(PairedGroups(ties=True),),
        advantage=RawReward(),
        objective=TiedPair(link=link, margin=known),
        aggregate=SequenceMean(),
        augment=() if rate is None else (TieMargin(link=link, start=margin, rate=rate),),
    )


entry(
    "dpo_ties",
    dpo_ties,
    Card(
        title="DPO with ties",
        papers=[Paper("On Extending Direct Preference Optimization to Accommodate Ties", "2409.17431", 2024)],
        summary="The likelihood of win, loss or tie: tied pairs are drawn together where DPO would leave them out.",
        formula=(
            "davidson: L = mean of log(e^(z/2) + e^(-z/2) + 2m) less z/2 of a win, log 2m of a tie;  rao_kupper: "
            "-log σ(z - m) of a win, -log[(e^2m - 1)·σ(z - m)·σ(-z - m)] of a tie;  z = β·Δ, Δ the difference of "
            "Σ_t log π/π_ref"
        ),
        defaults={
            "beta": BETA,
            "model": "both are the paper's",
            "margin": "2m = 1: a tie between equals is as likely as each win; the paper's numbers were not seen",
            "rate": "none, the parameter is fixed, as in the paper; a number learns it at that rate",
        },
        differs=[
            PAIRS,
            "The parameter can be learned: before each update its logarithm takes a step against the loss.",
            "Completions of equal reward are ties wherever they come from; 'ties: keep' of the task keeps tied pairs.",
        ],
        needs=[REFERENCE, "two completions per prompt, of which one is better or which are tied"],
        confidence="partly",
        uncertain="The paper's values of the parameter, and its names for it.",
        source="Rao and Kupper (1967) and Davidson (1970), with DPO's difference of scores",
        golden=[
            one_pair(1.0689122663, [-0.04900015, -0.04900015], 0.04900015, "log(1 + e^-0.06 + e^-0.03)"),
            TIE,
            one_pair(
                0.93715445,
                [-0.0608259, -0.0608259],
                0.0608259,
                "-log σ(0.06 - 0.5)",
                settings={"model": "rao_kupper"},
            ),
            one_pair(
                1.0689122663,
                [-0.04900015, -0.04900015],
                0.04900015,
                "the same with the parameter as it was learned",
                settings={"rate": 0.1},
                fields={**AT_ONE, "past.tie_margin": [0.5, 0.5]},
            ),
        ],
        recommended=RECOMMENDED,
    ),
)
