"""DPO on other pairs, tokens, margins or references: RS-DPO, ADPO, DPO-BMC, MODPO, Pre-DPO."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from grouprl.algorithms.curriculum.papers.informative_pairs import InformativePairs
from grouprl.algorithms.filter.papers.clearly_apart import ClearlyApart
from grouprl.algorithms.link.link import Logistic
from grouprl.algorithms.margin.stored import StoredMargin
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.papers.clear_pair import ClearPair
from grouprl.algorithms.score.papers.bridged import Bridged
from grouprl.core.numbers import Count, NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.preference.composing import (
    AT_ONE,
    BETA,
    NEEDS,
    PAIRS,
    RECOMMENDED,
    REFERENCE,
    TIES,
    of_pairs,
    one_pair,
    three_pairs,
    with_objective,
)
from grouprl.methods.registry import entry

Chance = Annotated[float, Field(ge=0.5, lt=1)]
DELTA = "Δ = [log π/π_ref](y_w) - [log π/π_ref](y_l)"


def rs_dpo(beta: Positive = 0.1, tau: Positive = 1.0, eta: Chance = 0.6) -> Method:
    """Compose RS-DPO: DPO on every pair of sampled completions whose scaled gap of rewards is above a threshold."""
    gap = tau * math.log(eta / (1 - eta))
    loss = with_objective(ClearPair(link=Logistic(beta=beta), gap=gap))
    return loss.with_parts(filter=(ClearlyApart(gap=gap),))


entry(
    "rs_dpo",
    rs_dpo,
    Card(
        title="Rejection sampling and DPO",
        papers=[
            Paper(
                "RS-DPO: A Hybrid Rejection Sampling and Direct Preference Optimization Method for Alignment of Large "
                "Language Models",
                "2402.10038",
                2024,
            )
        ],
        summary="Of several sampled completions every pair with a clear gap of rewards is trained on by DPO.",
        formula=f"L = mean over pairs with σ((R_w - R_l)/τ) > η of -log σ(β·Δ),  {DELTA}",
        defaults={
            "beta": BETA,
            "tau": "1; the paper's number was not seen",
            "eta": "0.6; the paper's number was not seen",
        },
        differs=[
            PAIRS,
            "Completions are those of the run's policy, anew at each step; the paper samples all from the first one: "
            "store them as scored lists (task pairs:FILE) for that.",
        ],
        reduces=[
            Reduction("dpo", ["mixed_groups", "two_completions"], settings={"eta": 0.5}, why="every gap is clear")
        ],
        needs=[REFERENCE, "several completions per prompt, with rewards"],
        confidence="partly",
        uncertain="The paper's numbers for τ and η.",
        source="the paper, algorithm 1",
        golden=[
            Golden(
                rewards=[3, 2.9, 0],
                log_ratio=[[0.3], [-0.2], [0.1]],
                fields={"ref_bt": [[-1.0], [-1.0], [-1.0]]},
                advantage=[3.0, 2.9, 0.0],
                loss=0.69572843,
                grad=[[-0.02475001], [-0.02537497], [0.05012498]],
                why="the gap 0.1 is below log 1.5: -log σ(0.02) and -log σ(-0.03)",
            )
        ],
        recommended={**RECOMMENDED, "group": 16},
    ),
)


def adpo(beta: Positive = 0.1, among: Count = 256, size: Count = 128, ridge: Positive = 1.0) -> Method:
    """Compose ADPO: DPO on the stored pairs that tell the policy's output layer the most, chosen without verdicts."""
    chosen = InformativePairs(beta=beta, among=among, size=size, ridge=ridge)
    return of_pairs(link=Logistic(beta=beta)).with_parts(curriculum=chosen)


entry(
    "adpo",
    adpo,
    Card(
        title="Active DPO by D-optimal design (ADPO)",
        papers=[Paper("Active Learning for Direct Preference Optimization", "2503.01076", 2025)],
        summary="DPO; a step's pairs are those that add most to what is known of the output layer, verdicts unseen.",
        formula=(
            f"L = mean over the pairs chosen of -log σ(β·Δ);  i = argmax σ'(β·Δ_i)·φ_i'H⁻¹φ_i,  "
            f"H ← H + σ'(β·Δ_i)·φ_iφ_i',  φ = β·∂Δ/∂W, W the output layer,  {DELTA}"
        ),
        defaults={
            "beta": BETA,
            "among": "ours; the paper looks at all pairs, which among at the number of pairs does",
            "size": "ours: numbers of a sketch of the gradient, whose inner products it keeps in expectation",
            "ridge": "ours: H = I at first",
        },
        differs=[
            PAIRS,
            TIES,
            "Gradients of the output layer are sketched by random signs: they have as many numbers as its weights.",
            "The policy is trained as pairs come. The paper fits it to all labels so far before the next is asked for.",
            "What the verdicts cost is not counted: they are stored, and those of pairs not chosen are never read.",
        ],
        reduces=[Reduction("dpo", ["always"], why="the loss is DPO's; only the choice of pairs differs")],
        needs=[*NEEDS, "stored pairs, more than a step takes (data.prompts where the task never ends)"],
        confidence="partly",
        uncertain="The paper's own text was not seen: the weights σ' are those of the optimal design of a logit.",
        source="summaries of the paper; greedy D-optimal design",
        golden=[one_pair(0.66359711, [-0.04850045, -0.04850045], 0.04850045, "Δ = 0.6; slope 0.1·σ(-0.06)")],
        notes=["Candidates are run through the policy and the reference once more than in DPO, `among` pairs a step."],
        recommended=RECOMMENDED,
        run=[
            "task=preferences",
            "batch.group_size=2",
            "data.prompts=512",
        ],
    ),
)


def bmc(beta: Positive = 0.01, delta: NonNegative = 2.0) -> Method:
    """Compose DPO-BMC: DPO in which tokens that tell the pair apart count more, unlikely ones the most."""
    return of_pairs(score=Bridged(delta=delta), link=Logistic(beta=beta))


entry(
    "bmc",
    bmc,
    Card(
        title="DPO-BMC: bridging and modeling correlations",
        papers=[
            Paper(
                "Bridging and Modeling Correlations in Pairwise Data for Direct Preference Optimization",
                "2408.07471",
                2024,
            )
        ],
        summary="DPO with larger weights of the tokens in which chosen and rejected completion differ.",
        formula=(
            "L = mean over pairs of -log σ(β·[s(y_w) - s(y_l)]),  s(y) = Σ_t w_t·log π - Σ_t w'_t·log π_ref,  "
            "w_t = 1 + min(1/π, δ) where the pair differs, else 1 (detached)"
        ),
        defaults={"beta": "YJiangcm/BMC: 0.01", "delta": "YJiangcm/BMC: 2 in the code, 1.5 in configurations"},
        differs=[
            PAIRS,
            TIES,
            "Stop words are weighed like other tokens; the authors' code leaves them at 1.",
            "Pairs are those of the data: the paper first has a model edit the loser towards the winner.",
        ],
        reduces=[Reduction("dpo", settings={"delta": 0.0}, other={"beta": 0.01}, why="every token weighs 1")],
        needs=[*NEEDS, "token ids (token_bt)"],
        source="YJiangcm/BMC: scripts/dpo_bmc_trainer.py, find_modifications and concatenated_forward",
        golden=[
            one_pair(
                0.68915518,
                [-0.00498, -0.01494],
                0.00498,
                "the second token is inserted: weight 1 + min(e^0.9, 2) = 3 for both, Δ = 0.8",
                fields={**AT_ONE, "token_bt": [[7, 8], [7]]},
            ),
        ],
        recommended={**RECOMMENDED, "learning_rate": 5e-7},
    ),
)


def modpo(beta: Positive = 0.1, weight: Annotated[float, Field(gt=0, le=1)] = 0.5) -> Method:
    """Compose MODPO: DPO of one objective with the other objectives' rewards as margins of the pairs."""
    margin = StoredMargin(scale=(1 - weight) / weight) if weight < 1 else None
    return of_pairs(link=Logistic(beta=beta / weight), margin=margin)


entry(
    "modpo",
    modpo,
    Card(
        title="Multi-Objective DPO",
        papers=[
            Paper(
                "Beyond One-Preference-Fits-All Alignment: Multi-Objective Direct Preference Optimization",
                "2310.03708",
                2023,
            )
        ],
        summary="Preferences of one objective, with what other objectives say of the pair as its margin.",
        formula=f"L = mean over pairs of -log σ((1/w)·[β·Δ - (1 - w)·m]),  m = r(y_w) - r(y_l),  {DELTA}",
        defaults={"beta": "ZHZisZZ/modpo: 0.1", "weight": "ZHZisZZ/modpo: (0.5, 0.5)"},
        differs=[
            PAIRS,
            TIES,
            "The others' rewards are one number per pair in the data (column margin): their weighted mean, with the "
            "share 1 - w. One run per w.",
        ],
        reduces=[Reduction("dpo", settings={"weight": 1.0}, why="one objective")],
        needs=[*NEEDS, "the column margin in the data: what the other objectives prefer the chosen completion by"],
        source="ZHZisZZ/modpo: src/trainer/modpo_trainer.py",
        golden=[
            one_pair(
                0.78719172,
                [-0.10897578, -0.10897578],
                0.10897578,
                "z = (0.06 - 0.5·0.3)/0.5",
                fields={**AT_ONE, "rewards.margin": [0.3, 0.3]},
            ),
        ],
        recommended={**RECOMMENDED, "learning_rate": 1e-4},
        run=[
            "task=preferences",
            "task.margins=true",
            "batch.group_size=2",
        ],
    ),
)


def pre_dpo(beta: Positive = 0.1) -> Method:
    """Compose Pre-DPO: DPO, whose reference a run sets to a model that was optimised before."""
    return of_pairs(link=Logistic(beta=beta))


entry(
    "pre_dpo",
    pre_dpo,
    Card(
        title="Pre-DPO: a guiding reference",
        papers=[
            Paper(
                "Pre-DPO: Improving Data Utilization in Direct Preference Optimization Using a Guiding Reference Model",
                "2504.15843",
                2025,
            )
        ],
        summary="DPO anew from the first model, with the model that a first run has made as reference.",
        formula=f"L = mean over pairs of -log σ(β·Δ),  {DELTA}, π_ref the guide",
        defaults={"beta": "DtYXs/Pre-DPO: 0.05 to 0.1"},
        differs=[PAIRS, TIES, "The guide is named by the run: model.reference: FOLDER of the first run's model."],
        reduces=[Reduction("dpo", why="the loss is DPO's: only the reference's weights differ")],
        needs=[*NEEDS, "the folder of a guiding model (model.reference), trained by dpo or simpo on the same data"],
        source="DtYXs/Pre-DPO: scripts/train_predpo.sh",
        golden=[
            one_pair(0.66359711, [-0.04850045, -0.04850045], 0.04850045, "Δ = 0.6; slope 0.1·σ(-0.06)"),
            three_pairs(0.683751, "Δ = 2.5, -3, 1.5; 0.575939, 0.854355, 0.620957"),
        ],
        notes=["At the first step pairs that the guide separates strongly weigh the most: σ(β·margin of the guide)."],
        recommended=RECOMMENDED,
    ),
)
