"""Losses of labelled completions: KTO and BCO need no pairs, only whether a completion is liked."""

from __future__ import annotations

from grouprl.algorithms.advantage.advantage import RawReward
from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.augment.papers.preferences.mismatched import Mismatched
from grouprl.algorithms.augment.papers.preferences.running_score import RunningScore
from grouprl.algorithms.filter.papers.mismatched import MismatchedApart
from grouprl.algorithms.link.link import Link, Logistic
from grouprl.algorithms.link.papers.saturating import Saturating
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.labelled import Labelled
from grouprl.algorithms.pretrain.papers.prompt_density import PromptDensity
from grouprl.algorithms.score.papers.baselines import AboveMismatched, AboveRunningMean
from grouprl.algorithms.score.score import LogRatio, Score
from grouprl.algorithms.token_weight.papers.density_weight import DensityWeight
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper
from grouprl.methods.preference.composing import ANCHOR, BETA, LENGTHS, POLICY, REFERENCE
from grouprl.methods.registry import entry

LABELS = "labelled completions (task pairs:FILE with the columns prompt, completion, label), or rewards"
GROUPS = "Completions of one prompt may be several, as a pair's two are: each counts by its own label."
ONE_STEP = (
    "The paper's batch is the optimiser step; where a rollout makes several steps (batch.minibatches), partners come "
    "from the whole rollout, and the baseline from those of the step."
)


def of_labels(score: Score, link: Link, desirable: float = 1.0, undesirable: float = 1.0) -> Method:
    """Compose a loss of labelled completions; their mean is over completions."""
    return Method(
        advantage=RawReward(),
        objective=Labelled(score=score, link=link, desirable=desirable, undesirable=undesirable),
        aggregate=SequenceMean(),
    )


def matched(loss: Method, density: PromptDensity) -> Method:
    """Return a loss of labels whose disliked completions have the weight of their prompt's density."""
    return loss.with_parts(pretrain=(density,), token_weight=(DensityWeight(),))


def apart(rewards: list[float], fields: dict[str, object]) -> dict[str, object]:
    """Return the settings of a golden example in which every row is a group of its own."""
    ratio = [[policy / n + 1] * n for n, policy in zip(LENGTHS, POLICY, strict=True)]
    ref_bt = [[anchor / n] * n for n, anchor in zip(LENGTHS, ANCHOR, strict=True)]
    more = len(rewards) - len(LENGTHS)
    return {
        "rewards": rewards,
        "lengths": [*LENGTHS, *[1] * more],
        "groups": list(range(len(rewards))),
        "log_ratio": [*ratio, *[[0.3]] * more],
        "fields": {"ref_bt": [*ref_bt, *[[-1.0]] * more], **fields},
    }


SMALL = Golden(
    rewards=[1, 0, 0],
    lengths=[2, 1, 1],
    groups=[0, 1, 0],
    log_ratio=[[0.3, 0.1], [-0.2], [0.5]],
    fields={"ref_bt": [[-1.0, -1.0], [-1.0], [-1.0]], "keys.mismatched": [0, 0, 1]},
    advantage=[1.0, 0.0, 0.0],
    loss=0.49250356,
    grad=[[-0.01249969, -0.01249969], [0.0124847], [0.0]],
    why="s = 0.4 and -0.2, z0 = 0.5: the mean of 1 - σ(0.1·(0.4 - 0.5)) and 1 - σ(0.1·(0.5 + 0.2))",
)
LARGE = Golden(
    **apart([1, 0, 1, 0, 1, 0, 1], {"keys.mismatched": [0] * 6 + [1]}),  # type: ignore[arg-type]
    loss=0.495838,
    why="z0 = 0.3: desirable 0.482507, 0.532454, 0.495000; undesirable 0.455121, 0.542398, 0.467546",
)


def kto(beta: Positive = 0.1, desirable: NonNegative = 1.0, undesirable: NonNegative = 1.0) -> Method:
    """Compose KTO: the chance of the wrong judgement of each completion, against a baseline of mismatched ones."""
    loss = of_labels(AboveMismatched(of=LogRatio()), Saturating(beta=beta), desirable, undesirable)
    return loss.with_parts(augment=(Mismatched(),), filter=(MismatchedApart(),))


entry(
    "kto",
    kto,
    Card(
        title="Kahneman-Tversky Optimization",
        papers=[Paper("KTO: Model Alignment as Prospect Theoretic Optimization", "2402.01306", 2024)],
        summary="Learns from completions that are liked or not, one by one, against what the policy gains on average.",
        formula=(
            "L = mean of λ_D·[1 - σ(β·(s - z0))] if liked, λ_U·[1 - σ(β·(z0 - s))] if not,  s = Σ_t log π/π_ref,  "
            "z0 = max(0, mean of s over completions after other prompts) (detached)"
        ),
        defaults={
            "beta": "the paper: 0.1",
            "desirable": "the paper: 1; it advises λ_D·n_D between 1 and 4/3 of λ_U·n_U",
            "undesirable": "the paper: 1",
        },
        differs=[
            "The baseline is over the whole optimiser step, with partners drawn by the run's seed and never of the "
            "same prompt, so that no cut into micro-batches changes it. TRL's is over each device's batch, rotated by "
            "one: see kto@trl.",
            ONE_STEP,
            GROUPS,
        ],
        needs=[
            REFERENCE,
            LABELS,
            "at least two prompts per step, so that each completion can be scored after another one",
        ],
        source="the paper, eq. 7 and 8; TRL 1.16.0, trainer/kto_trainer.py, KTOTrainer._compute_loss",
        golden=[SMALL, LARGE],
        notes=["A completion whose score is far from the baseline, on either side, teaches nothing."],
        recommended={"group": 1, "learning_rate": 5e-7, "epochs": 1},
    ),
)


def bco(
    beta: Positive = 0.1,
    desirable: NonNegative = 1.0,
    undesirable: NonNegative = 1.0,
    encoder: str | None = None,
) -> Method:
    """Compose BCO: a classifier of liked and disliked completions with the running mean of scores as threshold."""
    loss = of_labels(AboveRunningMean(of=LogRatio()), Logistic(beta=beta), desirable, undesirable)
    loss = loss.with_parts(augment=(RunningScore(),))
    return loss if encoder is None else matched(loss, PromptDensity(encoder=encoder))


entry(
    "bco",
    bco,
    Card(
        title="Binary Classifier Optimization",
        papers=[Paper("Binary Classifier Optimization for Large Language Model Alignment", "2404.04656", 2024)],
        summary="A classifier tells liked from disliked completions by their log-ratio above its running mean.",
        formula=(
            "L = mean of λ_D·[-log σ(β·(s - δ))] if liked, λ_U·[-log σ(-β·(s - δ))] if not,  s = Σ_t log π/π_ref,  "
            "δ the mean of s over all completions so far;  with encoder λ_U times clamp(p/(1 - p + 1e-8), 0.5, 10), "
            "p = P(liked | embedding of the prompt)"
        ),
        defaults={
            "beta": BETA,
            "desirable": "the paper: every completion counts the same",
            "undesirable": "as above",
            "encoder": "TRL's BCOTrainer: no embedding function, so that prompts are taken to be alike",
        },
        differs=[
            "Scores join the running mean before they are used, as they are before the update, once per rollout; the "
            "paper and TRL do so once per micro-batch.",
            "Without encoder disliked completions weigh the same whatever their prompt; with it (policy, or an encoder "
            "of transformers) by how likely their prompt is among liked ones, as in the paper.",
            GROUPS,
        ],
        needs=[REFERENCE, LABELS],
        source="TRL 1.13.0, experimental/bco: BCOTrainer.bco_loss",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                groups=[0, 1],
                log_ratio=[[0.3, 0.1], [-0.2]],
                fields={"ref_bt": [[-1.0, -1.0], [-1.0]], "past.score_mean": [0.1, 0.1]},
                advantage=[1.0, 0.0],
                loss=0.67825968,
                grad=[[-0.02462503, -0.02462503], [0.02462503]],
                why="s = 0.4 and -0.2, δ = 0.1: -log σ(0.1·0.3) twice",
            ),
        ],
        recommended={"group": 1, "learning_rate": 5e-7, "epochs": 1},
    ),
)
