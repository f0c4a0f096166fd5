"""DPO of several objectives at once, each by an output layer of its own on one trunk: MAH-DPO."""

from __future__ import annotations

from grouprl.algorithms.advantage.advantage import RawReward
from grouprl.algorithms.aggregate.papers.agent_mean import AgentMean
from grouprl.algorithms.filter.paired import PairedGroups
from grouprl.algorithms.link.link import Logistic
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.pair import Pair
from grouprl.core.numbers import Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.preference.composing import NEEDS, PAIRS, RECOMMENDED, TIES, one_pair
from grouprl.methods.registry import entry


def mah_dpo(beta: Positive = 0.1) -> Method:
    """Compose MAH-DPO: DPO of each objective's pairs by its own head; every objective weighs the same."""
    return Method(
        filter=(PairedGroups(),),
        advantage=RawReward(),
        objective=Pair(link=Logistic(beta=beta)),
        aggregate=AgentMean(),
    )


entry(
    "mah_dpo",
    mah_dpo,
    Card(
        title="Multi-Action-Head DPO",
        papers=[
            Paper(
                "Simultaneous Multi-objective Alignment Across Verifiable and Non-verifiable Rewards",
                "2510.01167",
                2025,
            )
        ],
        summary="DPO of several objectives at once: each has an output layer of its own on a trunk that all share.",
        formula=(
            "L = mean over objectives d with pairs of the mean over the pairs of d of -log σ(β·Δ_d),  "
            "Δ_d = [log π_d/π_ref,d](y_w) - [log π_d/π_ref,d](y_l),  π_d = softmax(W_d·h)"
        ),
        defaults={"beta": "pearls-lab/multiobj-align: 0.1"},
        differs=[
            PAIRS,
            TIES,
            "Where a run has a warm-up, a head is warmed up on the prompts of its own objective.",
            "Decoding guided by a process reward model is absent. Logits are mixed before decoding, by one model whose "
            "output layer is the weighted mean of the heads.",
        ],
        reduces=[Reduction("dpo", ["one_agent"], why="one objective has one head")],
        needs=[
            *NEEDS,
            "objectives that are agents of the task: the column `objective` of pairs:FILE, or preferences with apart",
            "model.agents: heads (or separate, for a model of each objective); shared trains one head for all",
        ],
        source="pearls-lab/multiobj-align: mah_dpo/mahdpo_trainers.py, multihead_model.py",
        golden=[
            one_pair(0.66359711, [-0.04850045, -0.04850045], 0.04850045, "Δ = 0.6; slope 0.1·σ(-0.06)"),
            Golden(
                rewards=[1, 0] * 3,
                groups=[0, 0, 1, 1, 2, 2],
                log_ratio=[[0.4], [-0.2], [0.3], [0.3], [0.1], [0.5]],
                fields={"ref_bt": [[-1.0]] * 6, "agent_b": [0, 0, 1, 1, 0, 0]},
                loss=0.69080966,
                grad=[[-0.01212511], [0.01212511], [-0.025], [0.025], [-0.01274997], [0.01274997]],
                why="objective 0: (0.66359711 + 0.71334717)/2 = 0.68847214, objective 1: log 2; their mean, in which "
                "the lone pair of objective 1 counts as much as the two of objective 0",
            ),
        ],
        notes=[
            "On the toy of two annotators only the first head comes to follow its objective, and so it is with a model "
            "for each: the small model hardly learns to copy the second letter (docs/preferences.md).",
            "An objective without pairs in a step does not count, and its head has no gradient.",
            "On a toy of two annotators it ended 0.010 below DPO of one head after 120 steps, five seeds "
            "(docs/preferences.md).",
        ],
        recommended=RECOMMENDED,
        run=[
            "task=preferences",
            "task.annotators=2",
            "task.apart=true",
            "batch.group_size=2",
            "model.agents=heads",
        ],
    ),
)
