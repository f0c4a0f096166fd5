"""DPO between distributions: divergences other than the reverse KL, and optimal transport."""

from __future__ import annotations

from grouprl.algorithms.link.link import Logistic
from grouprl.algorithms.method import Method
from grouprl.algorithms.score.divergence import Divergence, FDivergence
from grouprl.algorithms.score.sorted import SortedGaps, SortedScores
from grouprl.core.numbers import Positive
from grouprl.methods.card import Card, Paper, Reduction
from grouprl.methods.preference.composing import (
    BETA,
    NEEDS,
    PAIRS,
    RECOMMENDED,
    TIES,
    TRL,
    of_pairs,
    one_pair,
    three_pairs,
)
from grouprl.methods.registry import entry

AOT_PAPER = Paper("Distributional Preference Alignment of LLMs via Optimal Transport", "2406.05882", 2024)
SORTED = "All pairs of the optimiser step are sorted together; TRL sorts those of one process's micro-batch."
RANKED = "The mean is over ranks, so that in ranked lists of several sizes every pair weighs the same."


def f_dpo(beta: Positive = 0.1, divergence: Divergence = "js", alpha: float = 0.5) -> Method:
    """Compose f-DPO: DPO with an f-divergence other than the reverse KL."""
    return of_pairs(score=FDivergence(divergence=divergence, alpha=alpha), link=Logistic(beta=beta))


entry(
    "f_dpo",
    f_dpo,
    Card(
        title="f-DPO: DPO with other divergences",
        papers=[
            Paper(
                "Beyond Reverse KL: Generalizing Direct Preference Optimization with Diverse Divergence Constraints",
                "2309.16240",
                2023,
            )
        ],
        summary="DPO with the forward KL, the Jensen-Shannon or an α-divergence as the penalty.",
        formula=(
            "L = mean over pairs of -log σ(β·[f'(e^u_w) - f'(e^u_l)]),  u = Σ_t log π/π_ref,  f'(e^u) = u, 1 - e^(-u), "
            "log 2 + log σ(u) or (e^((α-1)u) - 1)/(α-1)"
        ),
        defaults={
            "beta": BETA,
            "divergence": "Jensen-Shannon, which the paper finds a good balance; TRL's default is the reverse KL",
            "alpha": "TRL's DPOConfig.f_alpha_divergence_coef: 0.5",
        },
        differs=[
            PAIRS,
            TIES,
            "Exponents are held at 80 or below, with their slope; TRL bounds those of alpha there without slope.",
        ],
        reduces=[
            Reduction("dpo", settings={"divergence": "reverse_kl"}, why="u itself"),
            Reduction("dpo", settings={"divergence": "alpha", "alpha": 1.0}, why="the limit of the α-divergence"),
            Reduction(
                "f_dpo",
                settings={"divergence": "alpha", "alpha": 0.0},
                other={"divergence": "forward_kl"},
                why="(e^(-u) - 1)/(-1) = 1 - e^(-u)",
            ),
        ],
        needs=NEEDS,
        source=f"{TRL}, f_divergence_type",
        golden=[
            one_pair(0.67899262, [-0.01977958, -0.01977958], 0.0270998, "log σ(0.4) - log σ(-0.2); slopes times σ(-u)"),
            three_pairs(0.677479, "0.626146, 0.754222, 0.652068"),
            three_pairs(0.644066, "0.508463, 0.830611, 0.593124", settings={"divergence": "forward_kl"}),
            three_pairs(0.664270, "0.553465, 0.829412, 0.609934", settings={"divergence": "alpha"}),
        ],
        recommended=RECOMMENDED,
    ),
)


def aot(beta: Positive = 0.1) -> Method:
    """Compose AOT, paired: DPO of the sorted gaps of the policy and those of the reference."""
    return of_pairs(score=SortedGaps(), link=Logistic(beta=beta))


entry(
    "aot",
    aot,
    Card(
        title="Alignment via Optimal Transport, paired",
        papers=[AOT_PAPER],
        summary="The policy's gaps are to exceed the reference's in distribution: equal ranks are compared.",
        formula=(
            "L = mean over k of -log σ(β·Δ_k),  Δ_k = [log π(y_w) - log π(y_l)]_(k) - [log π_ref(y_w) - "
            "log π_ref(y_l)]_(k), sorted over all pairs of the step"
        ),
        defaults={"beta": BETA},
        differs=[PAIRS, TIES, SORTED, RANKED],
        reduces=[Reduction("dpo", ["one_group", "two_completions"], why="a single pair has nothing to be sorted with")],
        needs=NEEDS,
        source=f"{TRL}, loss aot",
        golden=[
            one_pair(0.66359711, [-0.04850045, -0.04850045], 0.04850045, "one pair: DPO"),
            three_pairs(0.683751, "gaps -6, 1.5, 3 and -3, 0, 0.5: Δ = -3, 1.5, 2.5"),
        ],
        recommended=RECOMMENDED,
    ),
)


def aot_unpaired(beta: Positive = 0.1) -> Method:
    """Compose AOT, unpaired: DPO of the sorted log-ratios of chosen and of rejected completions."""
    return of_pairs(score=SortedScores(), link=Logistic(beta=beta))


entry(
    "aot_unpaired",
    aot_unpaired,
    Card(
        title="Alignment via Optimal Transport, unpaired",
        papers=[AOT_PAPER],
        summary="Chosen completions are to score above rejected ones in distribution, whichever prompts they are from.",
        formula="L = mean over k of -log σ(β·[s_(k)(y_w) - s_(k)(y_l)]),  s = Σ_t log π/π_ref, sorted over the step",
        defaults={"beta": BETA},
        differs=[PAIRS, TIES, SORTED, RANKED, "As many chosen as rejected completions: those of the pairs."],
        reduces=[Reduction("dpo", ["one_group", "two_completions"], why="a single pair has nothing to be sorted with")],
        needs=NEEDS,
        source=f"{TRL}, loss aot_unpaired",
        golden=[
            one_pair(0.66359711, [-0.04850045, -0.04850045], 0.04850045, "one pair: DPO"),
            three_pairs(0.677938, "-1, 0.5, 1 and -1.5, -1, 2: 0.668460, 0.620957, 0.744397"),
        ],
        recommended=RECOMMENDED,
    ),
)
