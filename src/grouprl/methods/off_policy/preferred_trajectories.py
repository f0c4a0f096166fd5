"""Learning from stored trajectories of which one of two is preferred, without rewards in the loss: OPPO."""

from __future__ import annotations

from grouprl.algorithms.advantage.advantage import RawReward
from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.link.link import Hinge
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.pair import Pair, PairSum
from grouprl.algorithms.regularize.papers.hindsight import ContextSize, HindsightError
from grouprl.algorithms.score.papers.context_score import ContextScore, GoalScore
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper
from grouprl.methods.registry import entry


def oppo(preference: NonNegative = 0.1, size: NonNegative = 0.1, margin: Positive = 1.0) -> Method:
    """Compose OPPO: cloning given each trajectory's context, and triplet losses of contexts and of the one that acts.

    A hinge of margin 1 times `margin`, with the slope 1/margin, is the triplet loss max(0, margin - Δs).
    """
    hinge = Hinge(beta=1 / margin)
    return Method(
        advantage=RawReward(),
        objective=PairSum(
            first=Pair(score=ContextScore(), link=hinge),
            second=Pair(score=GoalScore(), link=hinge),
            first_weight=preference * margin,
            second_weight=margin,
        ),
        aggregate=SequenceMean(),
        regularize=(HindsightError(coef=2.0), ContextSize(coef=2 * size)),
    )


entry(
    "oppo",
    oppo,
    Card(
        title="Offline preference-guided policy optimisation: a context of what is preferred acts",
        papers=[Paper("Beyond Reward: Offline Preference-guided Policy Optimization", "2305.16217", 2023)],
        summary="Clone stored trajectories given a context of each, and act by a context near those of preferred ones.",
        formula=(
            "L = mean_pairs[e(w) + e(l) + c·T(sg(z*), z_w, z_l) + c_1·((||z_w|| - 1)² + (||z_l|| - 1)²) + "
            "T(z*, sg(z_w), sg(z_l))],  z = I(τ),  T(a, p, n) = max(0, ||a - p|| - ||a - n|| + margin),  "
            "e = mean_t |π(s_t, z) - a_t|² (numbered actions: -log π(a_t|s_t, z));  acts by π(·|s, z*)"
        ),
        defaults={
            "preference": "bkkgbkjb/OPPO, pdt_trainer.py: 0.1",
            "size": "the code: 0.1",
            "margin": "the code: 1",
        },
        differs=[
            "z* takes its step together with the encoder, by the contexts before it, and by the run's optimiser; the "
            "code encodes again after the step, and has an optimiser of its own for z*.",
            "Numbered actions have -log π(a|s, z) for the squared error: ours, the paper has vectors alone.",
            "The error is a mean over each trajectory, then over trajectories, which are taken whole; the code draws "
            "pieces of equal length and prefers by what the whole trajectories, or these, earned.",
            "A pair without a preference (equal rewards) is cloned, and counts in the mean over pairs; the code leaves "
            "it out of the triplet's mean.",
            "z* begins with length 1, in the code with twice a normal vector; distances have no 1e-6 added.",
        ],
        notes=[
            "The deviation of vector actions is not learned: evaluate the likeliest actions (greedy).",
            "A z* far beyond the contexts of both has nearly the same distance from each, and hardly moves; with one "
            "number for a context it then stays where it is.",
            "Where one of two trajectories is by a good hand it earned nearly twice what cloning everything did, "
            "three seeds; on a stored pendulum no more, and cloning the preferred half earned more (docs/control.md).",
            "Rewards are read only to tell which of two trajectories is preferred.",
        ],
        needs=[
            "stored trajectories in groups, of which the one with the higher return is preferred (task: "
            "trajectories:FILE, column group)",
            "a policy with contexts (model: hindsight)",
        ],
        source="bkkgbkjb/OPPO oppo/scripted/gym: decision_transformer/training/pdt_trainer.py, experiment.py",
        golden=[
            Golden(
                rewards=[3, 1],
                lengths=[2, 1],
                fields={
                    "stats.hindsight_error": [[0.2, 0.4], [0.5]],
                    "row_outputs.context_score": [-0.5, -0.8],
                    "row_outputs.goal_score": [-0.5, -0.8],
                    "row_outputs.context_size_error": [0.04, 0.25],
                },
                advantage=[3.0, 1.0],
                loss=1.599,
                grad=[[-0.1, -1.0, 0.1], [0.1, 1.0, 0.1]],
                why="e 0.3 + 0.5; T = 0.5 - 0.8 + 1 = 0.7, weighed 0.1 and 1; 0.1·(0.04 + 0.25)",
            ),
            Golden(
                rewards=[3, 1, 2, 2],
                groups=[0, 0, 1, 1],
                settings={"margin": 0.25, "size": 0.0},
                fields={
                    "stats.hindsight_error": [[0.2], [0.5], [0.1], [0.4]],
                    "row_outputs.context_score": [-0.5, -0.8, -2.0, -1.0],
                    "row_outputs.goal_score": [-0.5, -0.8, -2.0, -1.0],
                    "row_outputs.context_size_error": [0.04, 0.25, 9.0, 9.0],
                },
                advantage=[3.0, 1.0, 2.0, 2.0],
                loss=0.6,
                grad=[[0.0] * 3] * 4,
                why="beyond the margin of 0.25, and a tie: what is left is cloning, (0.7 + 0.5)/2",
            ),
        ],
        recommended={"group": 2, "learning_rate": 1e-3},
        run=[
            "warmup={steps: 0}",
            "task=trajectories:grouprl.envs.construction.combination_lock:compared_episodes",
            "task.of=env:grouprl.envs.construction.combination_lock:CombinationLock",
            "batch.group_size=2",
            "model.name=hindsight",
        ],
    ),
)
