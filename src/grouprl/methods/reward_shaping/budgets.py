"""Methods in which completions have a budget of tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.advantage.papers.budget_segments import Baseline, BudgetSegments, Prior
from grouprl.algorithms.advantage_transform.papers.budget_gap import BudgetGap
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.allocation.papers.budget_prompts import BudgetPrompts, Budgets
from grouprl.algorithms.augment.papers.budget_cuts import BudgetCuts
from grouprl.algorithms.method import Method
from grouprl.algorithms.reward_transform.papers.budget_cosine import BudgetCosine, Longest
from grouprl.algorithms.reward_transform.papers.fail_truncated import FailTruncated
from grouprl.algorithms.sampling.papers.budget import LengthBudget
from grouprl.core.numbers import NonNegative, Positive, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, GROUP, PPO_CLIP

TWO = "at least two completions per prompt"


def hbpo(
    base: Method,
    budgets: Budgets = (0.125, 0.25, 0.5, 0.625),
    beta: Positive = 4.0,
    alpha: NonNegative | None = None,
    length: Longest = None,
    below: Literal["flat", "min"] = "flat",
    floor: float | None = None,
    intra_weight: NonNegative = 1.0,
    clip_high: Positive = 0.28,
) -> Method:
    """Compose HBPO.

    Correct completions earn 4cos(πb/(2Lmax)) within their budget b and less beyond it; the advantage is the group's,
    plus the gap between the budget's mean and its ideal; token mean of DAPO's clip. The paper adds that term once.
    """
    gap = BudgetGap(weight=intra_weight, beta=beta, length=length)
    return base.with_parts(
        reward_transform=(BudgetCosine(beta=beta, alpha=alpha, length=length, below=below, floor=floor),),
        advantage_transform=(gap,) if intra_weight > 0 else (),
        aggregate=TokenMean(),
        allocation=BudgetPrompts(budgets=budgets),
    )


entry(
    "hbpo",
    hbpo,
    Card(
        title="Hierarchical Budget Policy Optimization",
        papers=[
            Paper("Hierarchical Budget Policy Optimization for Adaptive Reasoning", "2507.15844", 2025),
        ],
        summary="Completions of one prompt have different token budgets; each budget is judged by its own ideal score.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε_low, 1+ε_high) A_i),  "
            "A_i = (R_i - mean_g R)/(std_g R + eps) + w·(mean_{g,b} R - f(b)),  f(n) = β cos(πn/(2 Lmax)),  "
            "right: R = f(b) if n ≤ b else f(n) - α(n - b);  wrong: R = 0"
        ),
        defaults={
            "budgets": "the paper: 512, 1024, 2048 and 2560 tokens of 4096; here shares of the completion limit",
            "beta": "the paper: 4",
            "alpha": "1/Lmax, which is the paper's 1/4096 at its Lmax = 4096",
            "length": "the longest allowed completion; 4096 in the paper",
            "below": "the paper: no bonus for staying below the budget; the release takes the smaller formula (min)",
            "floor": "none, as published: a correct completion far beyond a small budget gets less than a wrong one",
            "intra_weight": "the paper: once; the release adds the term twice (2)",
            "clip_low": "the paper: 0.2",
            "clip_high": "the paper: 0.28",
            "eps": "the release: 1e-6",
        },
        differs=[
            "The budget is a paragraph of the prompt (Task.with_budget), in the paper after the opening think tag.",
            "Rewards are not rounded to two decimals as in the release.",
            "A malformed completion gets -1 in the release; here a wrong completion keeps a negative reward of "
            "the task.",
            "Rewards of correct completions are multiplied by the task's own (1 in the paper).",
            "A row without budget is rewarded as in the release, β cos(πn/(2 Lmax)); having no ideal score, it has no "
            "second term.",
        ],
        reduces=[
            Reduction(
                "dapo",
                ["mixed_groups"],
                settings={"intra_weight": 0.0, "alpha": 0.0, "length": 1_000_000_000},
                why="without the second term and with a limit out of reach, right is 4 and wrong is 0",
            ),
        ],
        needs=[TWO, "at least as many completions per prompt as budgets", "the longest allowed completion"],
        source="ZJU-REAL/HBPO: paper, rllm/rewards/math_reward.py, verl/trainer/ppo/core_algos.py",
        golden=[
            Golden(
                rewards=[1, 0, 1, 0],
                lengths=[2, 1, 3, 1],
                fields={"keys.budget": [2, 2, 1, 1], "max_length": 4},
                advantage=[-0.017246068, -2.137412679, -3.130720527, -3.903350382],
                grad=[[0.002463724] * 2, [0.305344668], [0.44724579] * 3, [0.557621483]],
                why="R = 4cos(π/4), 0, 4cos(3π/8) - 2/4, 0; the budgets miss 4cos(π/4)/2 and 4cos(π/8) - R_3/2",
            )
        ],
        recommended={
            "group": 16,
            "budgets": "512, 1024, 2048, 2560 tokens, four completions each",
            "max_length": 4096,
            "learning_rate": 1e-6,
            "prompts": 64,
        },
        notes=[
            "The second term is the same for all completions of a budget and at most 0: it pushes down what is late or "
            "wrong, also every completion of a prompt that nobody solved.",
        ],
    ),
    base="grpo",
    keeps=("clip_low", "eps", "alone"),
)


def brpo(
    base: Method,
    budgets: Budgets = (0.25, 0.5, 0.75, 1.0),
    summaries: Annotated[int, Field(ge=1)] = 4,
    summary_tokens: Annotated[int, Field(ge=1)] = 118,
    end: Annotated[str, Field(min_length=1)] | None = None,
    ellipsis: str | None = None,
    header: str = "",
    prior: Prior = "uniform",
    baseline: Baseline = "both",
) -> Method:
    """Compose BRPO.

    Token mean of PPO's clip with one advantage per segment of a thought, from the scores of completions sampled at its
    end and later; no division by a spread, as in the paper. Completions are judged at their own cut.
    """
    cuts = BudgetCuts(
        budgets=budgets,
        summaries=summaries,
        summary_tokens=summary_tokens,
        end=end,
        ellipsis=ellipsis,
        header=header,
    )
    return base.with_parts(
        advantage=BudgetSegments(prior=prior, baseline=baseline),
        aggregate=TokenMean(),
        augment=(cuts,),
    )


entry(
    "brpo",
    brpo,
    Card(
        title="Budget Relative Policy Optimization (AnytimeReasoner)",
        papers=[
            Paper("Optimizing Anytime Reasoning via Budget Relative Policy Optimization", "2505.13438", 2025),
        ],
        summary=(
            "A thought is cut at several budgets; each stretch of it earns what the completions after it are worth."
        ),
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t),  A_s = Ret_s - (s·V1_s + (S-s)·V2_s)/S,  "
            "Ret_s = Σ_{j≥s} P_j r_j,  V1_s = Σ_{j≥s} P_j · Σ_{j<s} 2^j r_j/Σ_{j<s} 2^j,  V2_s = mean_g Ret_s;  "
            "completions: A = R - mean_cut R"
        ),
        defaults={
            "budgets": "the paper: 2000, 4000, 6000, 8000 tokens, quarters of its limit; at most 1 is a share",
            "summaries": "the paper: A = 4",
            "summary_tokens": "the release: 118, which is 128 less what is put in",
            "end": "the task's: </think> as of the paper's models, unless a task says another sign",
            "ellipsis": "the task's: three dots as in the release, unless a task says another",
            "header": "none; the release puts the words that introduce a final answer after the thought",
            "prior": "the paper's uniform prior over budgets; linear and base are its others",
            "baseline": "the paper: both; the release also has v1only, v2only and none",
            **PPO_CLIP,
        },
        differs=[
            "A completion's score is the task's reward; the release also asks for exactly one end of the thought.",
            "The linear prior counts budgets 1..S: right for equally spaced ones, as in the paper (2000 to 8000).",
        ],
        needs=[
            TWO,
            "completions that think first, up to a sign that ends the thought",
        ],
        source="sail-sg/AnytimeReasoner verl/trainer/ppo/brpo.py: compute_cot_advantage, compute_summary_advantage",
        golden=[
            Golden(
                rewards=[0, 0],
                lengths=[4, 4],
                fields={
                    "turn_bt": [[0, 1, 2, 3], [0, 1, 2, 3]],
                    "turn_reward_bs": [[0.0, 0.5, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]],
                    "keys.cut": [-1, -1],
                },
                advantage=[[0.1875, 0.296875, 0.229166667, 0.053571429], [-0.1875, -0.078125, 0.0625, 0.1875]],
                grad=[
                    [-0.0234375, -0.037109375, -0.028645833, -0.006696429],
                    [0.0234375, 0.009765625, -0.0078125, -0.0234375],
                ],
                why="Ret = (.625, .625, .5, .25) and (.25, .25, .25, .25); V1 = (0, 0, 1/6, 5/28) and 0; eight tokens",
            ),
            Golden(
                rewards=[0, 0, 1, 0],
                lengths=[1, 1, 1, 2],
                fields={
                    "turn_bt": [[0], [0], [-1], [-1, -1]],
                    "turn_reward_bs": [[1.0], [0.0], [0.0], [0.0]],
                    "keys.cut": [-1, -1, 3, 3],
                    "source_b": [0, 0, 6, 6],
                },
                advantage=[0.5, -0.5, 0.5, -0.5],
                grad=[[-0.1], [0.1], [-0.1], [0.1, 0.1]],
                why="one budget: score minus the thoughts' mean; completions minus the mean at their cut; five tokens",
            ),
        ],
        recommended={
            "group": 8,
            "budgets": "2000, 4000, 6000, 8000 tokens, four completions at each",
            "temperature": 1.0,
            "learning_rate": 1e-6,
            "prompts": 64,
        },
        notes=["With one budget this is Dr. GRPO's advantage."],
    ),
    base="grpo",
    keeps=CLIPS,
)


def palu(
    base: Method,
    target: Share = 0.8,
    shrink: Share = 0.5,
    floor: Annotated[float, Field(gt=0, le=1)] = 0.1,
) -> Method:
    """Compose PALU.

    GRPO; each prompt has a budget of tokens that falls to the (1-τ)-quantile of its correct completions while at least
    80 % are right, and completions that run out of it earn nothing. The floor of the budget is our choice.
    """
    budget = LengthBudget(target=target, shrink=shrink, floor=floor)
    return base.with_parts(reward_transform=(FailTruncated(),), sampling=budget)


entry(
    "palu",
    palu,
    Card(
        title="Performance-Aware Length Update",
        papers=[Paper("Concise Reasoning in the Lens of Lagrangian Optimization", "2510.10168", 2025)],
        summary="GRPO with a token budget for each prompt, which shrinks while the prompt is solved.",
        formula=(
            "L = GRPO's with R ← min(R, 0) where a completion ran out of L_q;  pass rate of the last visit ≥ C: "
            "L_q ← L_q - (Q_1 - Q_{1-τ}) of the lengths of correct completions, else L_q ← Lmax"
        ),
        defaults={
            "target": "the paper: C = 0.8",
            "shrink": "the paper: τ = 0.5",
            "floor": "our choice: a tenth of the run's limit; the paper's rule has no floor",
            **PPO_CLIP,
        },
        differs=[
            "A completion that reaches its budget is cut off there and earns nothing.",
            "A budget has a floor.",
            "The loss is GRPO's as published, with the mean of completions' means.",
        ],
        needs=[TWO, "which completions were cut off", "prompts that are sampled more than once (data.prompts)"],
        confidence="partly",
        uncertain="Whether a completion over budget is cut off or only earns nothing.",
        source="notes on the paper and its reviews",
        golden=[
            Golden(
                rewards=[1, 1, 0],
                lengths=[2, 3, 1],
                fields={"truncated_b": [False, True, False]},
                settings={"scale": "none"},
                advantage=[2 / 3, -1 / 3, -1 / 3],
                grad=[[-1 / 9] * 2, [1 / 27] * 3, [1 / 9]],
                why="the second completion ran out of its budget: rewards 1, 0, 0",
            )
        ],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)
