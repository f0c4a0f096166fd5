"""DPO that contrasts completions of different prompts, too: relative preference optimization."""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.advantage.advantage import RawReward
from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.augment.papers.preferences.similar_prompts import SimilarPrompts
from grouprl.algorithms.link.link import Logistic
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.papers.across_prompts import AcrossPrompts
from grouprl.core.numbers import Positive, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.preference.composing import BETA, RECOMMENDED, REFERENCE
from grouprl.methods.registry import entry

CODE = "yinyueqin/relative-preference-optimization, trainers.py and config/loss/rpo-*.yaml"


def relative_po(
    beta: Positive = 0.1,
    weighing: Literal["similarity", "diagonal"] = "similarity",
    temperature: Positive = 0.5,
    diagonal: Share = 0.8,
    by: str = "tokens",
) -> Method:
    """Compose RPO: every chosen completion of a step against every rejected one, the more the prompts are alike."""
    objective = AcrossPrompts(link=Logistic(beta=beta), weighing=weighing, temperature=temperature, diagonal=diagonal)
    return Method(
        advantage=RawReward(),
        objective=objective,
        aggregate=SequenceMean(),
        augment=(SimilarPrompts(by=by),) if weighing == "similarity" else (),
    )


entry(
    "relative_po",
    relative_po,
    Card(
        title="Relative preference optimization",
        papers=[
            Paper(
                "Relative Preference Optimization: Enhancing LLM Alignment through Contrasting Responses across "
                "Identical and Diverse Prompts",
                "2402.10958",
                2024,
            )
        ],
        summary="DPO in which chosen completions are also compared with rejected ones of other, similar prompts.",
        formula=(
            "L = mean_i mean_j of -log σ(β·ω_ij·[s(w_i) - s(l_j)]),  ω_ij = softmax_j(-(1 - cos(x_i, x_j))/τ),  "
            "s = Σ_t log π/π_ref;  diagonal: d·mean of -log σ(β·Δ) over pairs of one prompt + (1-d)·mean over others"
        ),
        defaults={
            "beta": BETA,
            "weighing": "both are the authors': rpo-paired and rpo-unpaired, and rpo-diagonal",
            "temperature": f"{CODE}: distance_temperature 0.5",
            "diagonal": f"{CODE}: diagonal_weight 0.8",
            "by": "tokens; the authors' is a sentence encoder's embedding, which a column of the data may hold",
        },
        differs=[
            "Prompts are alike by how often tokens occur in them, unless `by` names a column with embeddings (the "
            "paper: all-MiniLM-L6-v2).",
            "All rows of the optimiser step are contrasted, however it is cut; the authors' are those of a device.",
            "Groups of more than two completions: each that is better than another is chosen, each that is worse "
            "rejected, and the worse of a pair never meets the better as chosen.",
            "Pairs and single labelled completions may be mixed; one that is alone is chosen if its reward is above "
            "0.5.",
            "Without pairs of one prompt, or of different ones, `diagonal` leaves the other kind all the weight.",
        ],
        reduces=[
            Reduction(
                "dpo", ["one_group"], settings={"weighing": "diagonal"}, why="all contrasts are pairs of one prompt"
            ),
            Reduction("dpo", ["one_group", "two_completions"], why="a single contrast has ω = 1"),
        ],
        needs=[
            REFERENCE,
            "pairs with known winners or single labelled completions (task pairs:FILE), several prompts per step",
        ],
        source=CODE,
        golden=[
            Golden(
                rewards=[1, 0, 1, 0],
                groups=[0, 0, 1, 1],
                log_ratio=[[0.4], [-0.2], [0.1], [0.3]],
                fields={"ref_bt": [[-1.0]] * 4},
                settings={"weighing": "diagonal"},
                advantage=[1.0, 0.0, 1.0, 0.0],
                loss=0.68335965,
                grad=[[-0.02437518], [0.02432519], [-0.025125], [0.02517499]],
                why="Δ = 0.6 and -0.2 within prompts, 0.1 and 0.3 across: 0.4·(0.663597 + 0.703197) + "
                "0.1·(0.688160 + 0.678260)",
            ),
        ],
        notes=["ω shrinks with the number of rejected rows: β·ω is what acts, so larger steps bear a larger β."],
        recommended=RECOMMENDED,
    ),
)
