"""Preference losses on pairs of completions that the policy samples itself, round by round."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.augment.opponents import Opponents
from grouprl.algorithms.link.link import Logistic
from grouprl.algorithms.method import Method
from grouprl.algorithms.pairing.pairing import Across, AllPairs, Extremes, Own, Pairing
from grouprl.algorithms.regularize.chosen import ChosenNLL
from grouprl.algorithms.regularize.opponents import SampledKL, Unlikely
from grouprl.algorithms.score.following import FollowingRatio
from grouprl.algorithms.score.score import LogRatio, Score
from grouprl.algorithms.update.papers.outer_loops import RoundMomentum
from grouprl.core.numbers import Count, NonNegative, Positive, ShareBelowOne
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.preference.composing import BETA, DPO_PAPER, REFERENCE, TIES, of_pairs, one_pair
from grouprl.methods.registry import entry
from grouprl.methods.settings import in_the_update

SEVERAL = "two or more completions per prompt, scored by a reward, a judge or a reward model"
ROUNDS = (
    "A round has `every` steps. The reference moves once a round's first rollout is scored, so that this one is still "
    "compared with the reference before."
)
DELTA = "Δ = [log π/π_ref](y_w) - [log π/π_ref](y_l)"
Choice = Literal["extremes", "next", "all"]
PAIRINGS: dict[Choice, Pairing] = {"extremes": Extremes(), "next": Extremes(against="next"), "all": AllPairs()}
"""Pairings by the names of a setting."""
ONLINE = {"group": 8, "temperature": 1.0, "learning_rate": 5e-7}
OPPONENT_ROWS = {"keys.opponent": [0, 1], "ref_bt": [[-1.0, -1.0], [-1.0]]}


def online_dpo(beta: Positive = 0.1, choose: Choice = "extremes") -> Method:
    """Compose online DPO: DPO on the best and the worst of the completions that the policy samples now."""
    return of_pairs(link=Logistic(beta=beta), pairing=PAIRINGS[choose])


entry(
    "online_dpo",
    online_dpo,
    Card(
        title="Online DPO",
        papers=[Paper("Direct Language Model Alignment from Online AI Feedback", "2402.04792", 2024), DPO_PAPER],
        summary="DPO on pairs that the policy samples itself and a judge or a reward orders.",
        formula=f"L = mean over prompts of -log σ(β·Δ),  {DELTA}, y_w best and y_l worst of the group",
        defaults={
            "beta": BETA,
            "choose": "best against worst, which of the paper's two completions is the pair; all: every two of a group",
        },
        differs=[TIES, "The paper has two completions a prompt and a language model as judge (reward.judge)."],
        reduces=[
            Reduction("dpo", ["two_completions"], why="of two completions all pairs are the best and the worst"),
            Reduction("dpo", settings={"choose": "all"}, why="every pair counts"),
        ],
        needs=[REFERENCE, SEVERAL],
        source="the paper, section 3; TRL 1.16.0, experimental/online_dpo",
        golden=[
            one_pair(0.66359711, [-0.04850045, -0.04850045], 0.04850045, "DPO's numbers"),
            Golden(
                rewards=[0.5, 1.0, 0.0],
                log_ratio=[[0.9], [0.4], [-0.2]],
                fields={"ref_bt": [[-1.0], [-1.0], [-1.0]]},
                loss=0.66359711,
                grad=[[0.0], [-0.04850045], [0.04850045]],
                why="Δ = 0.6 of the best and the worst; the completion between them is in no pair",
            ),
        ],
        recommended=ONLINE,
    ),
)


def score_of(reference: Literal["iterate", "initial"], every: int) -> Score:
    """Return the log-ratio to the policy as it was when the round began, or to the initial policy."""
    return FollowingRatio(every=every, share=1.0) if reference == "iterate" else LogRatio()


ITERATES = {"refs.iterates": [[-1.0, -1.0], [-1.0]]}
DPO_PAIR = (0.66359711, [-0.04850045, -0.04850045], 0.04850045)


def iterative_dpo(
    beta: Positive = 0.1,
    choose: Choice = "extremes",
    reference: Literal["iterate", "initial"] = "iterate",
    every: Count = 100,
) -> Method:
    """Compose iterative DPO: online pairs, the reference being the policy at the start of the round."""
    return of_pairs(score_of(reference, every), Logistic(beta=beta), pairing=PAIRINGS[choose])


entry(
    "iterative_dpo",
    iterative_dpo,
    Card(
        title="Iterative DPO (GSHF, Online-RLHF)",
        papers=[
            Paper(
                "Iterative Preference Learning from Human Feedback: Bridging Theory and Practice for RLHF under "
                "KL-Constraint",
                "2312.11456",
                2023,
            )
        ],
        summary="Rounds of DPO on best and worst of the policy's own completions; the reference is the last round's.",
        formula="L = mean over prompts of -log σ(β·Δ),  Δ = [log π/π_t](y_w) - [log π/π_t](y_l)",
        defaults={
            "beta": BETA,
            "choose": "RLHFlow/Online-RLHF: max_min; next is its max_max",
            "reference": "RLHFlow/Online-RLHF: the model at the start of the iteration; the theory has the initial one",
            "every": "customary; the authors have 3 rounds of 20,000 prompts",
        },
        differs=[
            ROUNDS,
            TIES,
            "Completions are the current policy's; the authors sample them when a round begins.",
        ],
        reduces=[
            Reduction("online_dpo", settings={"reference": "initial"}, why="the reference never moves"),
        ],
        needs=[SEVERAL],
        source="RLHFlow/Online-RLHF: run_loop.sh, dpo_iteration/run_dpo.py",
        golden=[one_pair(*DPO_PAIR, "DPO's numbers, against the iterate", fields=ITERATES)],
        recommended=ONLINE,
    ),
)


def accelerated_dpo(base: Method, every: Count = 100, momentum: ShareBelowOne = 0.3) -> Method:
    """Compose accelerated preference optimisation: iterative DPO, whose weights are extrapolated after each round."""
    return base.with_parts(update=RoundMomentum(every=every, momentum=momentum))


entry(
    "accelerated_dpo",
    accelerated_dpo,
    Card(
        title="Accelerated Preference Optimization",
        papers=[
            Paper("Accelerated Preference Optimization for Large Language Model Alignment", "2410.06293", 2024),
        ],
        summary="Iterative DPO with Nesterov's extrapolation of the weights between rounds.",
        formula="L of iterative_dpo; after a round θ ← ϑ_{t+1} + α(ϑ_{t+1} - ϑ_t) (not the last), ϑ: trained weights",
        defaults={"momentum": "from memory of the paper: α = 0.3", "every": "as iterative_dpo"},
        differs=[
            ROUNDS,
            TIES,
            "Weights are extrapolated; the paper's formula is for distributions log-linear in them.",
        ],
        reduces=[Reduction("iterative_dpo", why="the losses are the same: rounds end differently")],
        needs=[SEVERAL],
        notes=[in_the_update("those of iterative_dpo")],
        confidence="partly",
        uncertain="The default of the momentum.",
        source="the paper's abstract; the derivation for log-linear policies",
        golden=[one_pair(*DPO_PAIR, "DPO's numbers, against the iterate", fields=ITERATES)],
        recommended=ONLINE,
    ),
    base="iterative_dpo",
)


def xpo(beta: Positive = 0.1, alpha: NonNegative = 1e-5) -> Method:
    """Compose XPO: DPO between a completion of the policy and one of the initial policy, which loses likelihood."""
    method = of_pairs(link=Logistic(beta=beta), pairing=Across(), regularize=(Unlikely(coef=alpha),))
    return method.with_parts(augment=(Opponents(initial=1.0, together=True),))


entry(
    "xpo",
    xpo,
    Card(
        title="XPO: exploratory preference optimisation",
        papers=[
            Paper(
                "Exploratory Preference Optimization: Harnessing Implicit Q*-Approximation for Sample-Efficient RLHF",
                "2405.21046",
                2024,
            )
        ],
        summary="Online DPO against the initial policy's completions, with optimism for what that would not write.",
        formula=f"L = mean over pairs of -log σ(β·Δ) + α·mean over ỹ of log π(ỹ),  {DELTA}, ỹ ~ π_ref",
        defaults={"beta": BETA, "alpha": "TRL's XPOConfig: 1e-5"},
        differs=[TIES, "A tied pair counts in the second term only; TRL counts a tie as won by the policy."],
        needs=[REFERENCE, "a reward, a judge or a reward model"],
        source="TRL 1.13.0, experimental/xpo; the paper, Algorithm 1",
        golden=[
            one_pair(
                0.54359711,
                [-0.04850045, -0.04850045],
                0.14850045,
                "DPO's 0.66359711 and 0.1·(-1.2), the rejected one being the initial policy's",
                settings={"alpha": 0.1},
                fields=OPPONENT_ROWS,
            )
        ],
        recommended={**ONLINE, "group": 1},
    ),
)


def vpo(
    beta: Positive = 0.1, alpha: NonNegative = 1e-4, stance: Literal["optimism", "pessimism"] = "optimism"
) -> Method:
    """Compose VPO: DPO and α times the value of what it learned, pushed up online and down offline."""
    logistic = Logistic(beta=beta)
    if stance == "pessimism":
        return of_pairs(link=logistic, regularize=(ChosenNLL(coef=alpha * beta, mean="sum"),))
    method = of_pairs(link=logistic, pairing=Own(), regularize=(Unlikely(coef=alpha * beta),))
    return method.with_parts(augment=(Opponents(initial=1.0),))


entry(
    "vpo",
    vpo,
    Card(
        title="VPO: value-incentivised preference optimisation",
        papers=[
            Paper(
                "Value-Incentivized Preference Optimization: A Unified Approach to Online and Offline RLHF",
                "2405.19320",
                2024,
            )
        ],
        summary="DPO with optimism online, away from known answers, or pessimism offline, towards those of the data.",
        formula=f"L = mean over pairs of -log σ(β·Δ) ± αβ·mean over y_cal of log π(y_cal),  {DELTA}",
        defaults={
            "beta": BETA,
            "alpha": "so that αβ is XPO's 1e-5 in TRL",
            "stance": "optimism is the online method: + and y_cal of the initial policy; pessimism: - and y_cal = y_w",
        },
        differs=[TIES, "The constant log π_ref(y_cal) is left out of the loss."],
        reduces=[
            Reduction("dpo", ["no_opponents"], settings={"alpha": 0.0}, why="no second term"),
            Reduction("dpo", settings={"alpha": 0.0, "stance": "pessimism"}, why="no second term"),
        ],
        needs=[REFERENCE, SEVERAL],
        confidence="partly",
        uncertain="The defaults of α, and the paper's choice of y_cal offline.",
        source="the paper's abstract and reviews; the derivation",
        golden=[
            Golden(
                rewards=[1, 0, 0.5],
                lengths=[2, 1, 1],
                log_ratio=[[0.3, 0.1], [-0.2], [0.5]],
                fields={"ref_bt": [[-1.0, -1.0], [-1.0], [-1.0]], "keys.opponent": [0, 0, 1]},
                settings={"alpha": 1.0},
                loss=0.61359711,
                grad=[[-0.04850045, -0.04850045], [0.04850045], [0.1]],
                why="DPO's 0.66359711 of the policy's pair and 0.1·(-0.5)",
            ),
            one_pair(
                0.82359711,
                [-0.14850045, -0.14850045],
                0.04850045,
                "DPO's 0.66359711 and -0.1·(-1.6)",
                settings={"alpha": 1.0, "stance": "pessimism"},
            ),
        ],
        recommended=ONLINE,
    ),
)


def hypo(beta: Positive = 0.1, coef: NonNegative = 1e-4, samples: Annotated[int, Field(ge=2)] = 2) -> Method:
    """Compose HyPO: DPO on stored pairs, and KL to the reference on completions that the policy samples."""
    method = of_pairs(link=Logistic(beta=beta), pairing=Own(), regularize=(SampledKL(coef=coef),))
    return method.with_parts(augment=(Opponents(initial=0.0, count=samples, scored=False),))


entry(
    "hypo",
    hypo,
    Card(
        title="HyPO: hybrid preference optimisation",
        papers=[
            Paper(
                "The Importance of Online Data: Understanding Preference Fine-tuning via Coverage", "2406.01462", 2024
            )
        ],
        summary="DPO on stored pairs with the KL to the reference that only the policy's own samples can measure.",
        formula=f"L = mean over pairs of -log σ(β·Δ) + λ·KL(π || π_ref),  {DELTA}; KL from y ~ π, leave-one-out",
        defaults={
            "beta": BETA,
            "coef": "of the order that the paper is said to have: 1e-4",
            "samples": "the least that a leave-one-out baseline needs",
        },
        differs=[TIES],
        reduces=[Reduction("dpo", ["no_opponents"], settings={"coef": 0.0}, why="no KL")],
        needs=[REFERENCE, "stored pairs with known winners (task pairs:FILE), or rewards"],
        confidence="partly",
        uncertain="The paper's λ and its number of samples.",
        source="the paper's abstract and published notes on it",
        golden=[
            Golden(
                rewards=[1, 0, 0, 0],
                lengths=[2, 1, 1, 1],
                log_ratio=[[0.3, 0.1], [-0.2], [0.5], [-0.1]],
                fields={
                    "ref_bt": [[-1.0, -1.0], [-1.0], [-1.0], [-1.0]],
                    "keys.opponent": [0, 0, 1, 1],
                },
                settings={"coef": 0.1},
                advantage=[1.0, 0.0, 0.0, 0.0],
                loss=0.68359711,
                grad=[[-0.04850045, -0.04850045], [0.04850045], [0.03], [-0.03]],
                why="DPO's 0.66359711 and 0.1·(0.5 - 0.1)/2; slopes 0.1·(0.5 + 0.1)/2 and its negative",
            )
        ],
        recommended={"group": 2, "learning_rate": 1e-6},
    ),
)
