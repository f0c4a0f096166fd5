"""Reward models: a model whose one output is a score learns it from preferences, or from ratings."""

from __future__ import annotations

from grouprl.algorithms.advantage.advantage import RawReward
from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.filter.paired import PairedGroups
from grouprl.algorithms.link.link import Logistic
from grouprl.algorithms.margin.margin import Constant
from grouprl.algorithms.margin.stored import StoredMargin
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.pair import Pair
from grouprl.algorithms.objective.score_error import AttributeErrors, ScoreError, ScoreLikelihood
from grouprl.algorithms.regularize.center_scores import CenterScores
from grouprl.algorithms.score.model_score import ModelScore
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper
from grouprl.methods.preference.composing import TIES
from grouprl.methods.registry import entry

TRAINS = "trains a reward model: the model has a layer for one score in place of its output layer"
TRL = "huggingface/trl: trl/trainer/reward_trainer.py"


def bradley_terry(margin: bool = False, center: NonNegative = 0.0, tau: Positive = 1.0) -> Method:
    """Compose the Bradley-Terry reward model: pairs' mean of -log σ((r(w) - r(l))/τ - m) + center·(r(w) + r(l))²."""
    return Method(
        filter=(PairedGroups(),),
        advantage=RawReward(),
        objective=Pair(
            score=ModelScore(), link=Logistic(beta=1 / tau), margin=StoredMargin() if margin else Constant()
        ),
        aggregate=SequenceMean(),
        regularize=(CenterScores(coef=center),) if center else (),
    )


entry(
    "bradley_terry",
    bradley_terry,
    Card(
        title="Bradley-Terry reward model",
        papers=[
            Paper("Training language models to follow instructions with human feedback", "2203.02155", 2022),
            Paper("Llama 2: Open Foundation and Fine-Tuned Chat Models", "2307.09288", 2023),
            Paper(
                "Helping or Herding? Reward Model Ensembles Mitigate but do not Eliminate Reward Hacking",
                "2312.09244",
                2023,
            ),
        ],
        summary="A reward model learns from pairs: the chosen completion should get the higher score.",
        formula="L = mean_pairs[-log σ((r(x, w) - r(x, l))/τ - m)] + c·mean_pairs[(r(x, w) + r(x, l))²]",
        defaults={
            "margin": "off: TRL subtracts the column margin if the data have it; here it is asked for",
            "center": "off, as in TRL; arXiv:2312.09244 has 0.01",
            "tau": "1, as in TRL; 0.1 in general-preference/general-preference-model",
        },
        differs=[
            "A column of margins acts only with margin=true.",
            "Groups of more than two rows: every pair with different rewards, averaged within the group.",
            TIES,
        ],
        needs=[TRAINS, "groups of stored completions with different rewards, such as pairs"],
        source=TRL,
        golden=[
            Golden(
                rewards=[1, 0, 1, 0],
                lengths=[2, 1, 1, 1],
                groups=[0, 0, 1, 1],
                fields={"row_outputs.score": [1.0, 0.0, 0.5, 1.5]},
                advantage=[1.0, 0.0, 1.0, 0.0],
                loss=0.813261688,
                grad=[[-0.134470711], [0.134470711], [-0.365529289], [0.365529289]],
                why="(log(1 + e^-1) + log(1 + e^1))/2",
            ),
            Golden(
                rewards=[1, 0],
                fields={"row_outputs.score": [1.0, -0.5], "rewards.margin": [0.5, 0.5]},
                settings={"margin": True, "center": 0.01},
                loss=0.315761688,
                grad=[[-0.258941421], [0.278941421]],
                why="log(1 + e^-(1.5 - 0.5)) + 0.01·(0.5)²",
            ),
        ],
        recommended={"learning_rate": 1e-4, "group": 2},
    ),
)


def reward_regression() -> Method:
    """Compose the regression of scores on rewards: mean over rows of (r(x, y) - R)²."""
    return Method(advantage=RawReward(), objective=ScoreError(), aggregate=SequenceMean())


entry(
    "reward_regression",
    reward_regression,
    Card(
        title="Reward model by regression",
        papers=[Paper("HelpSteer2-Preference: Complementing Ratings with Preferences", "2410.01257", 2024)],
        summary="A reward model learns ratings: the score of a completion is fitted to its reward.",
        formula="L = mean_rows (r(x, y) - R)²",
        defaults={},
        differs=["One rating per completion; the paper fits several attributes at once."],
        needs=[TRAINS, "stored completions with rewards"],
        confidence="partly",
        uncertain="The paper's full text was not checked; the squared error of one rating is textbook material.",
        source="textbook material",
        golden=[
            Golden(
                rewards=[2, -1, 0.5],
                lengths=[2, 1, 3],
                fields={"row_outputs.score": [1.0, 0.0, 0.5]},
                advantage=[2.0, -1.0, 0.5],
                loss=2 / 3,
                grad=[[-2 / 3], [2 / 3], [0.0]],
                why="(1 + 1 + 0)/3",
            ),
        ],
        recommended={"learning_rate": 1e-4},
    ),
)


def process_reward() -> Method:
    """Compose a process reward model: the likelihood of each step's label, each step a row of its own."""
    return Method(advantage=RawReward(), objective=ScoreLikelihood(), aggregate=SequenceMean())


entry(
    "process_reward",
    process_reward,
    Card(
        title="Process reward model",
        papers=[
            Paper("Let's Verify Step by Step", "2305.20050", 2023),
            Paper("Solving math word problems with process- and outcome-based feedback", "2211.14275", 2022),
        ],
        summary="A reward model learns which steps of an answer are right: its score at the end of each step.",
        formula="L = mean over steps k of -[l_k·log σ(r(x, y_≤k)) + (1 - l_k)·log σ(-r(x, y_≤k))]",
        defaults={},
        differs=[
            "A step is a row that ends behind it (task step_labels:FILE), with an end token; TRL reads two classes at "
            "each step's last token in one pass. The loss is the same function of the difference of the two logits.",
        ],
        needs=[TRAINS, "labels of steps (task step_labels:FILE), or stored completions with labels 0 and 1"],
        source="TRL 1.13.0, experimental/prm (the last release that has it): cross-entropy, mean over labelled steps",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                fields={"row_outputs.score": [0.0, 1.0]},
                advantage=[1.0, 0.0],
                loss=1.003204434,
                grad=[[-0.25], [0.365529289]],
                why="(log 2 + log(1 + e))/2; gradients (σ(r) - l)/2",
            ),
        ],
        recommended={"learning_rate": 1e-4},
    ),
)


def attribute_regression(attributes: tuple[str, ...] = ("helpfulness", "correctness")) -> Method:
    """Compose the regression of several scores on as many ratings: mean over rows and attributes of (r_k - R_k)²."""
    return Method(advantage=RawReward(), objective=AttributeErrors(attributes=attributes), aggregate=SequenceMean())


entry(
    "attribute_regression",
    attribute_regression,
    Card(
        title="Reward model of several attributes, by regression",
        papers=[
            Paper("HelpSteer2: Open-source dataset for training top-performing reward models", "2406.08673", 2024),
            Paper(
                "Optimizing Safe and Aligned Language Generation: A Multi-Objective GRPO Approach", "2503.21819", 2025
            ),
        ],
        summary="A reward model learns several ratings of a completion at once, a score for each from one layer.",
        formula="L = mean_rows 1/K Σ_k (r_k(x, y) - R_k)²",
        defaults={"attributes": "two of HelpSteer2's five; those of the data (ratings of the task)"},
        differs=["Every row has every rating."],
        reduces=[],
        needs=[
            TRAINS.replace("a layer for one score", "a layer with a score for each attribute"),
            "stored completions with a rating of each attribute (task pairs:FILE with ratings)",
        ],
        confidence="partly",
        uncertain="The papers' full texts were not checked; squared errors of several ratings are textbook material.",
        source="textbook material; as a reward the weighted sum of its scores (reward.model.weights)",
        golden=[
            Golden(
                rewards=[2, -1],
                lengths=[2, 1],
                fields={
                    "row_outputs.score@1": [1.0, 0.0],
                    "row_outputs.score@2": [0.0, 1.0],
                    "rewards.helpfulness": [2.0, -1.0],
                    "rewards.correctness": [1.0, 1.0],
                },
                advantage=[2.0, -1.0],
                loss=0.75,
                grad=[[-0.5, -0.5], [0.5, 0.0]],
                why="(1 + 1)/2 and (1 + 0)/2, their mean; slopes (r - R)/2",
            ),
        ],
        recommended={"learning_rate": 1e-4},
        run=[
            "task=preferences",
            "task.form=ratings",
            "warmup={steps: 0}",
            "batch.group_size=4",
            "method.attributes=[liked, brief]",
        ],
    ),
)
