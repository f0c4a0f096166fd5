"""DPO and IPO for the worst of several labelled groups of the data, such as annotators of different tastes."""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.advantage.advantage import RawReward
from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.augment.papers.preferences.robust_groups import RobustGroups
from grouprl.algorithms.filter.paired import PairedGroups
from grouprl.algorithms.link.link import Link, Logistic, Squared
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.pair import Pair
from grouprl.algorithms.pair_weight.papers.robust_groups import GroupWeight
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Paper, Reduction
from grouprl.methods.preference.composing import AT_ONE, BETA, NEEDS, PAIRS, RECOMMENDED, TIES, one_pair
from grouprl.methods.registry import entry

LINKS: dict[str, type[Logistic] | type[Squared]] = {"dpo": Logistic, "ipo": Squared}


def gr_dpo(
    beta: Positive = 0.1,
    loss: Literal["dpo", "ipo"] = "dpo",
    by: str = "level",
    step: NonNegative = 0.01,
) -> Method:
    """Compose DPO or IPO whose pairs weigh by their data group: the larger its loss so far, the more."""
    link: Link = LINKS[loss](beta=beta)
    return Method(
        filter=(PairedGroups(),),
        advantage=RawReward(),
        objective=Pair(link=link, pair_weight=GroupWeight()),
        aggregate=SequenceMean(),
        augment=(RobustGroups(by=by, link=link, step=step),),
    )


entry(
    "gr_dpo",
    gr_dpo,
    Card(
        title="Group robust preference optimization (GR-DPO, GR-IPO)",
        papers=[Paper("Group Robust Preference Optimization in Reward-free RLHF", "2405.20304", 2024)],
        summary="DPO or IPO against an adversary who weighs the data's groups, so that the worst served one gains.",
        formula=(
            "L = Σ_g q_g·L_g,  L_g = mean over the pairs of data group g of -log σ(β·Δ) (dpo) or (Δ - 1/(2β))² (ipo);  "
            "before it q_g ← q_g·exp(η·L_g) / Σ_h q_h·exp(η·L_h),  q even at first,  "
            "Δ = [log π/π_ref](y_w) - [log π/π_ref](y_l)"
        ),
        defaults={
            "beta": BETA + "; the authors' runs on opinions have 0.01",
            "loss": "both are the paper's: GR-DPO and GR-IPO",
            "by": "the level, as every prompt has one; name your column (`annotator` of the task `preferences`)",
            "step": "rsshyam/Group-robust-preference-optimization, config/loss/rdpo.yaml: step_size 0.01",
        },
        differs=[
            PAIRS,
            TIES,
            "L_g is the mean over the group's pairs in the step, the code's divide_by_totalcount=False. Its default "
            "multiplies the sum by the size of all data over that of the group, and needs a far smaller step size.",
            "The groups are those that have come so far; a new one begins at the weight of a group without loss.",
            "L_g moves q once per rollout, under the policy before the update: with one update per rollout the code's.",
            "No term for the size of groups (adj, 0 by default) and no fixed weights (importance_sampling).",
        ],
        reduces=[
            Reduction("dpo", ["one_data_group"], why="one group has all the weight"),
            Reduction("ipo", ["one_data_group"], settings={"loss": "ipo"}, why="one group has all the weight"),
        ],
        needs=[*NEEDS, "a column of the data (or levels) that tells its groups apart"],
        source="rsshyam/Group-robust-preference-optimization: src/trainers/grouptrainer.py, src/loss_utils.py",
        golden=[
            one_pair(
                0.99539567,
                [-0.07275068, -0.07275068],
                0.07275068,
                "1.5 times DPO's 0.663597: q = 1/2 for a group with a third of the pairs",
                fields={**AT_ONE, "past.group_weight": [1.5, 1.5]},
            ),
            one_pair(
                9.68,
                [-4.4, -4.4],
                4.4,
                "0.5·(0.6 - 5)²",
                settings={"loss": "ipo"},
                fields={**AT_ONE, "past.group_weight": [0.5, 0.5]},
            ),
        ],
        notes=["With step 0 the groups have equal weight, whatever their sizes."],
        recommended=RECOMMENDED,
    ),
)
