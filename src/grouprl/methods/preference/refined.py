"""DPO and IPO with margins by the quality that the policy itself sees: Sr-DPO, Sr-IPO."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.augment.papers.preferences.prefixed import ASKING, Prefixed
from grouprl.algorithms.filter.papers.prefixed import PrefixedApart
from grouprl.algorithms.link.link import Link, Logistic, Squared
from grouprl.algorithms.method import Method
from grouprl.algorithms.score.papers.refined import Refined
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.preference.composing import BETA, NEEDS, PAIRS, RECOMMENDED, TIES, of_pairs
from grouprl.methods.registry import entry

LINKS: dict[str, type[Logistic] | type[Squared]] = {"dpo": Logistic, "ipo": Squared}


PAIR = {
    "rewards": [1, 0, 1, 0],
    "lengths": [1, 1, 1, 1],
    "log_ratio": [[0.4], [-0.2], [0.5], [0.1]],
    "fields": {"ref_bt": [[-1.0]] * 4, "keys.twin": [1, 2, -1, -2]},
    "advantage": [1.0, 0.0, 0.0, 0.0],
}


def sr_dpo(
    beta: Positive = 0.1,
    coef: NonNegative = 0.5,
    loss: Literal["dpo", "ipo"] = "dpo",
    prefix: Annotated[str, Field(min_length=1)] = ASKING,
) -> Method:
    """Compose Sr-DPO or Sr-IPO: DPO or IPO with a margin by the log-ratios after a prompt that asks for quality."""
    link: Link = LINKS[loss](beta=beta)
    method = of_pairs(score=Refined(coef=coef), link=link)
    return method.with_parts(filter=(PrefixedApart(), *method.filter), augment=(Prefixed(prefix=prefix),))


entry(
    "sr_dpo",
    sr_dpo,
    Card(
        title="Quality-aware self-refinement (Sr-DPO, Sr-IPO)",
        papers=[
            Paper("Direct Alignment of Language Models via Quality-Aware Self-Refinement", "2405.21040", 2024),
        ],
        summary="DPO or IPO whose pairs need the larger a margin, the clearer the policy itself tells them apart.",
        formula=(
            "L = mean over pairs of -log σ(β·(Δ - λ·sg[Δ_p])) (dpo) or (Δ - λ·sg[Δ_p] - 1/(2β))² (ipo),  "
            "Δ = [log π/π_ref](y_w|x) - [log π/π_ref](y_l|x),  Δ_p the same after (p, x)"
        ),
        defaults={
            "beta": BETA,
            "coef": "λ = 0.5, ours; the paper's was not seen",
            "loss": "both are the paper's",
            "prefix": "ours; the paper's begins: Please generate a response with a usefulness rating of 100 out of 100",
        },
        differs=[PAIRS, TIES],
        reduces=[
            Reduction("dpo", ["none_prefixed"], why="nothing is taken off"),
            Reduction("ipo", ["none_prefixed"], settings={"loss": "ipo"}, why="nothing is taken off"),
        ],
        needs=NEEDS,
        confidence="partly",
        uncertain="Sign and scale of the margin are those that reviews of the paper describe; λ is ours.",
        source="reviews of the paper",
        golden=[
            Golden(
                **PAIR,  # type: ignore[arg-type]
                loss=0.67334717,
                grad=[[-0.04900013], [0.04900013], [0.0], [0.0]],
                why="Δ = 0.6, Δ_p = 0.4: -log σ(0.1·(0.6 - 0.5·0.4))",
            ),
            Golden(
                **PAIR,  # type: ignore[arg-type]
                settings={"loss": "ipo", "coef": 1.0},
                loss=23.04,
                grad=[[-9.6], [9.6], [0.0], [0.0]],
                why="(0.6 - 0.4 - 5)²",
            ),
        ],
        notes=["Each completion is scored twice, by policy and reference: one more pass than DPO's."],
        recommended=RECOMMENDED,
    ),
)
