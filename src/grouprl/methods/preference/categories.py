"""Iterative DPO over ordered categories of what was sampled: PLaID++."""

from __future__ import annotations

from grouprl.algorithms.link.link import Logistic
from grouprl.algorithms.method import Method
from grouprl.algorithms.reward_transform.papers.repeated_lowest import RepeatedLowest
from grouprl.algorithms.sampling.papers.rising_temperature import RisingTemperature
from grouprl.algorithms.score.following import FollowingRatio
from grouprl.core.numbers import Count, NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.preference.composing import BETA, TIES, of_pairs
from grouprl.methods.preference.online import ONLINE, ROUNDS
from grouprl.methods.registry import entry


def plaid(beta: Positive = 0.1, every: Count = 100, rise: NonNegative = 0.1, lowest: float = 0.0) -> Method:
    """Compose PLaID++: rounds of DPO on all pairs of different categories, sampled hotter from round to round."""
    method = of_pairs(FollowingRatio(every=every, share=1.0), Logistic(beta=beta))
    return method.with_parts(
        reward_transform=(RepeatedLowest(lowest=lowest),), sampling=RisingTemperature(every=every, rise=rise)
    )


entry(
    "plaid",
    plaid,
    Card(
        title="PLaID++",
        papers=[
            Paper(
                "PLaID++: A Preference Aligned Language Model for Targeted Inorganic Materials Design",
                "2509.07150",
                2025,
            )
        ],
        summary="Iterative DPO on pairs of ordered categories; repeats are never chosen, sampling gets hotter.",
        formula=(
            "L = mean over pairs with c(w) > c(l) of -log σ(β·Δ),  Δ = [log π/π_t](y_w) - [log π/π_t](y_l),  "
            "c the category, the lowest for what is repeated;  T_k = T·(1 + rise·k) in round k"
        ),
        defaults={
            "beta": BETA,
            "every": "customary; the paper's rounds are of another size, not known to us",
            "rise": "ours; the paper's temperatures are not known to us",
            "lowest": "the reward of the lowest category",
        },
        differs=[
            ROUNDS,
            TIES,
            "The reward is the category, in any numbers that keep its order; what it is of (stability by a potential, "
            "novelty, space group) is the reward function's.",
            "A repeated completion is one whose final answer another of its group has; the paper compares structures "
            "over all that was sampled.",
        ],
        reduces=[
            Reduction(
                "iterative_dpo",
                ["all_apart"],
                other={"choose": "all"},
                why="nothing is repeated; sampling is not part of a batch",
            )
        ],
        needs=["several completions per prompt, whose rewards are ordered categories"],
        confidence="partly",
        uncertain="The paper's β, rounds, thresholds and temperatures.",
        source="the paper's abstract and introduction",
        golden=[
            Golden(
                rewards=[2, 2, 1, 0],
                log_ratio=[[0.4], [0.9], [0.1], [-0.2]],
                fields={"refs.iterates": [[-1.0]] * 4, "keys.answer": [0, 1, 2, 1]},
                advantage=[2.0, 0.0, 1.0, 0.0],
                loss=0.69450462,
                grad=[[-0.02980005], [0.02064973], [-0.01039979], [0.0195501]],
                why="the second and the last say the same, so both are 0: pairs 0>1, 0>2, 0>3, 2>1, 2>3",
            )
        ],
        recommended=ONLINE,
    ),
)
