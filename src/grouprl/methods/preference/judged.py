"""Rewards through the gates of judges, and best answers of a group: CGPO, directional preference alignment."""

from __future__ import annotations

from grouprl.algorithms.advantage.advantage import Ones, RawReward, Relative
from grouprl.algorithms.aggregate.aggregate import SequenceSum, TokenMean
from grouprl.algorithms.filter.best_of_group import BestOfGroup
from grouprl.algorithms.filter.papers.best_allowed import JudgedPair
from grouprl.algorithms.link.link import Logistic
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import PolicyGradient
from grouprl.algorithms.regularize.chosen import ChosenNLL
from grouprl.algorithms.reward_transform.calibrated_reward import CalibratedReward
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper
from grouprl.methods.preference.composing import BETA, NEEDS, of_pairs
from grouprl.methods.registry import entry

PERFECT_BLEND = Paper("The Perfect Blend: Redefining RLHF with Mixture of Judges", "2409.20370", 2024)
SOURCE = "a community trainer that cites the paper's equations 14 and 18, and summaries of the paper"
UNCERTAIN = "The paper's text was not checked: the mean over kept or over all prompts, and its limits of the KL."
JUDGES = {
    "constraints": "none; names of components of the reward that are 1 where a judge agrees",
    "baseline": "the greedy completion's reward; the paper's baseline answer is stored (name its component)",
    "kl_limit": "off: the paper's value is not known to us",
}
EQUALS = "Completions of equal reward all count; the papers take one."
ONE_TASK = "One reward, one set of judges, one optimiser for all prompts; the paper has each of them per task."


def crpg(constraints: tuple[str, ...] = (), baseline: str = "greedy", kl_limit: Positive | None = None) -> Method:
    """Compose CRPG: REINFORCE on calibrated, gated rewards less their mean over the batch."""
    return Method(
        reward_transform=(CalibratedReward(constraints=constraints, baseline=baseline, kl_limit=kl_limit),),
        advantage=Relative(key="batch", center="mean", scale="none", eps=0.0),
        objective=PolicyGradient(),
        aggregate=SequenceSum(),
        greedy_baseline=baseline == "greedy",
    )


entry(
    "crpg",
    crpg,
    Card(
        title="CGPO's calibrated-regularized policy gradient",
        papers=[PERFECT_BLEND],
        summary="REINFORCE on the reward against a baseline answer, zero where a judge objects or the KL is large.",
        formula=(
            "L = -mean_i[(R_i - mean R)·Σ_t log π(y_t)],  R = v·σ(r(x, y) - r(x, ȳ))·max(0, 1 - KL/KL_max),  "
            "KL = Σ_t log π_old/π_ref"
        ),
        defaults=JUDGES,
        differs=[ONE_TASK],
        needs=["greedy completions, or a component with the baseline's reward"],
        confidence="partly",
        uncertain=UNCERTAIN,
        source=SOURCE,
        golden=[
            Golden(
                rewards=[1, 1],
                lengths=[2, 1],
                fields={"greedy_reward_b": [1.0, 1.0], "rewards.safe": [1.0, 0.0]},
                settings={"constraints": ("safe",)},
                advantage=[0.25, -0.25],
                grad=[[-0.125, -0.125], [0.125]],
                why="σ(0) = 0.5 and, where the judge objects, 0; their mean is 0.25; the mean is over two rows",
            ),
        ],
        recommended={"learning_rate": 1e-6, "epochs": 1},
    ),
)


def codpo(constraints: tuple[str, ...] = (), beta: Positive = 0.1, nll_coef: NonNegative = 1.0) -> Method:
    """Compose CODPO: DPO on the best accepted and the worst refused completion, with the chosen one's likelihood."""
    term = (ChosenNLL(coef=nll_coef, mean="sequence"),) if nll_coef else ()
    method = of_pairs(link=Logistic(beta=beta), regularize=term)
    return method.with_parts(filter=(JudgedPair(constraints=constraints), *method.filter))


entry(
    "codpo",
    codpo,
    Card(
        title="CGPO's constrained online DPO",
        papers=[PERFECT_BLEND],
        summary="DPO on the best completion that judges accept and the worst that they refuse, beside imitation.",
        formula=(
            "L = mean over prompts of -log σ(β·Δ) - λ/|w|·log π(w),  w = argmax_{v=1} r,  l = argmin_{v=0} r, "
            "or argmin r where v = 1 throughout"
        ),
        defaults={
            "constraints": JUDGES["constraints"],
            "beta": BETA,
            "nll_coef": "λ = 1; the paper's is not known to us",
        },
        differs=[
            ONE_TASK,
            EQUALS,
            "A prompt without an accepted completion is skipped, and the mean is over the others.",
        ],
        needs=NEEDS,
        confidence="partly",
        uncertain=UNCERTAIN,
        source=SOURCE,
        golden=[
            Golden(
                rewards=[3, 1, 0],
                fields={"ref_bt": [[-1.0], [-1.0], [-1.0]], "rewards.safe": [0.0, 1.0, 1.0]},
                settings={"constraints": ("safe",), "nll_coef": 0.0},
                advantage=[0.0, 1.0, 0.0],
                loss=0.69314718,
                grad=[[0.05], [-0.05], [0.0]],
                why="the best is refused, so it is the loser although its reward is larger; Δ = 0",
            ),
        ],
        recommended={"group": 4, "learning_rate": 1e-6, "epochs": 1},
    ),
)


def crraft(constraints: tuple[str, ...] = (), baseline: str = "greedy", kl_limit: Positive | None = None) -> Method:
    """Compose CRRAFT: the likelihood of the best accepted completion, weighted by its calibrated reward."""
    gated = CalibratedReward(constraints=constraints, baseline=baseline, kl_limit=kl_limit, kl_gate="hard")
    return Method(
        reward_transform=(gated,),
        filter=(BestOfGroup(above=0.0),),
        advantage=RawReward(),
        objective=PolicyGradient(),
        aggregate=SequenceSum(),
        greedy_baseline=baseline == "greedy",
    )


entry(
    "crraft",
    crraft,
    Card(
        title="CGPO's calibrated-regularized reward-ranked fine-tuning",
        papers=[PERFECT_BLEND],
        summary="Imitate the best completion that judges accept and that is near the reference, by its reward.",
        formula=(
            "L = -mean over prompts of R(y*)·Σ_t log π(y*_t),  y* = argmax R,  "
            "R = v·1[KL ≤ KL_max]·σ(r(x, y) - r(x, ȳ))"
        ),
        defaults=JUDGES,
        differs=[
            ONE_TASK,
            EQUALS,
            "A prompt without an accepted completion is skipped; the paper falls back to the baseline answer.",
        ],
        needs=["greedy completions, or a component with the baseline's reward"],
        confidence="partly",
        uncertain=UNCERTAIN,
        source=SOURCE,
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                fields={"greedy_reward_b": [1.0, 1.0]},
                advantage=[0.5, 0.0],
                loss=1.0,
                grad=[[-0.5, -0.5], [0.0]],
                why="R = σ(0) = 0.5 of the best; its log-probs are -1 and -1",
            ),
        ],
        recommended={"learning_rate": 1e-6, "epochs": 1},
    ),
)


def dpa() -> Method:
    """Compose DPA's fine-tuning: the likelihood of the best completion of each group."""
    return Method(filter=(BestOfGroup(),), advantage=Ones(), objective=PolicyGradient(), aggregate=TokenMean())


entry(
    "dpa",
    dpa,
    Card(
        title="Directional Preference Alignment",
        papers=[
            Paper(
                "Arithmetic Control of LLMs for Diverse User Preferences: Directional Preference Alignment with "
                "Multi-Objective Rewards",
                "2402.18571",
                2024,
            )
        ],
        summary="Best of n by a weighted sum of objectives whose weights stand in the prompt, then imitation.",
        formula="L = -token mean of log π(y*),  y* = argmax over the group of v·r(x, v, y)",
        defaults={},
        differs=[
            EQUALS,
            "The direction v comes with the prompt, from the task (words with directions: true, or columns of yours); "
            "the paper draws it and writes it into the system prompt.",
            "Each step samples anew; the paper samples all prompts, fine-tunes, and repeats.",
        ],
        needs=["a reward that weighs objectives by the prompt's direction"],
        confidence="partly",
        uncertain="The authors' code is not released.",
        source="Haoxiang-Wang/directional-preference-alignment: README",
        golden=[
            Golden(
                rewards=[1, 3],
                lengths=[2, 1],
                advantage=[0.0, 1.0],
                loss=1.0,
                grad=[[0.0, 0.0], [-1.0]],
                why="the second is the best: its single token has log-prob -1",
            ),
        ],
        recommended={"learning_rate": 1e-5, "epochs": 1},
    ),
)
