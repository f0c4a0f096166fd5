"""Credit for single tokens by comparing a group's completions: GTPO (trajectory), KTAE, T-SPMO."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.advantage.papers.prefix_tree import PrefixTree
from grouprl.algorithms.advantage_transform.papers.token_credit import KeyTokens, SharedEnds
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.aggregate.weighted_mean import WeightedMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import PolicyGradient
from grouprl.algorithms.objective.papers.probability import Probability
from grouprl.algorithms.token_weight.papers.once_per_node import OncePerNode
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, GROUP, KL, KL_NEED, PPO_CLIP, DualClip
from grouprl.methods.token_credit.token_choice import MEMORY_PAPER

TOKENS = "token ids"


def gtpo_trajectory(
    base: Method,
    positive: NonNegative = 2.0,
    negative: NonNegative = 0.0,
    spread: bool = True,
    entropy_coef: NonNegative = 0.1,
    entropy_limit: Annotated[float, Field(gt=0)] | None = 0.7,
) -> Method:
    """Compose GTPO (trajectory).

    Mean over completions of the token mean of -A'·δ·log π without ratio, clip or KL; A' is GRPO's advantage minus an
    entropy term, δ spares tokens that good and bad completions share at their beginning or end.
    """
    ends = SharedEnds(
        positive=positive, negative=negative, spread=spread, entropy_coef=entropy_coef, entropy_limit=entropy_limit
    )
    return base.with_parts(
        advantage_transform=(ends,),
        objective=PolicyGradient(),
        on_policy=True,
    )


entry(
    "gtpo_trajectory",
    gtpo_trajectory,
    Card(
        title="Group-relative Trajectory-based Policy Optimization",
        papers=[Paper("GTPO: Trajectory-Based Policy Optimization in Large Language Models", "2508.03772", 2025)],
        summary=(
            "Bad completions do not punish what they share with good ones at either end; uncertain ones are left out."
        ),
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t [H_i ≤ limit] (A_i - c·H_i) δ_t log π(y_t) / max(1, #conflicts_i),  δ = positive "
            "(good) or negative (bad) for tokens of the common prefix and again of the common suffix, else 1; "
            "H_i the mean entropy of the completion"
        ),
        defaults={
            "positive": "the authors' code: W = 2",
            "negative": "the paper: conflicts of bad completions are skipped",
            "spread": "the authors' code: divided by the completion's number of conflict tokens",
            "entropy_coef": "the authors' code: 0.1",
            "entropy_limit": "the authors' code: 0.7, about the paper's ln 2",
        },
        differs=[
            "Entropies are those of the sampling policy: with one update per rollout the current one's.",
            "The mean over completions; the authors' code accumulates their sum.",
        ],
        reduces=[
            Reduction(
                "reinforce",
                ["on_policy", "equal_lengths", "one_group"],
                settings={
                    "positive": 1.0,
                    "negative": 1.0,
                    "spread": False,
                    "entropy_coef": 0.0,
                    "entropy_limit": None,
                    "scale": "none",
                },
                other={"baseline": "group"},
                scale=None,
                why="conflicts count like other tokens, entropy not at all",
            ),
            Reduction(
                "grpo",
                ["on_policy"],
                settings={
                    "positive": 1.0,
                    "negative": 1.0,
                    "spread": False,
                    "entropy_coef": 0.0,
                    "entropy_limit": None,
                },
                why="conflicts count like other tokens; every ratio is 1",
            ),
        ],
        needs=[
            "at least two completions per prompt",
            TOKENS,
            "entropies of the sampler",
            "exactly one update per rollout",
        ],
        source="winstonsmith1897/GTPO gtpo/gtpo_training.py, config.yaml",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[3, 3],
                fields={
                    "token_bt": [[5, 6, 7], [5, 8, 9]],
                    "entropy_bt": [[0.5, 0.5, 0.5], [0.2, 0.2, 0.2]],
                },
                settings={"scale": "none"},
                advantage=[[0.9, 0.45, 0.45], [0.0, -0.52, -0.52]],
                grad=[[-0.15, -0.075, -0.075], [0.0, 0.0866666667, 0.0866666667]],
                why="A' = 0.5 - 0.05 and -0.5 - 0.02; the shared first token counts 2 and 0; each weighs 1/(2·3)",
            ),
            Golden(
                rewards=[1, 0],
                lengths=[2, 3],
                fields={"token_bt": [[5, 6], [7, 5, 6]], "entropy_bt": [[0.5, 0.5], [0.9, 0.9, 0.9]]},
                settings={"scale": "none"},
                advantage=[[0.45, 0.45], [0.0, 0.0, 0.0]],
                why="a suffix of two: ·2, over two conflicts; the second completion is too uncertain",
            ),
        ],
        notes=[
            "While a policy is less certain than the limit, nothing is trained: raise entropy_limit or switch it off.",
            "Groups without spread keep a small advantage of -c·H_i: it pushes uncertain completions down most.",
        ],
        recommended={"group": 8, "learning_rate": 1e-6, "grad_clip": 0.1},
    ),
    base="grpo",
    keeps=GROUP,
)


def ktae(
    base: Method,
    top: NonNegative = 1.0,
    alpha: Positive = 1.0,
    beta: Positive = 1.0,
    dual_clip: DualClip = 3.0,
) -> Method:
    """Compose GRPO with key-token advantages.

    PPO's clip with a dual clip, mean over all tokens; each token's advantage changes by up to ±`top` with the
    association between its presence and correct completions of the group (Fisher's exact test, information gain,
    frequencies).
    """
    return base.with_parts(
        advantage_transform=(KeyTokens(top=top, alpha=alpha, beta=beta),) if top > 0 else (),
        aggregate=TokenMean(),
    )


entry(
    "ktae",
    ktae,
    Card(
        title="Key-token Advantage Estimation",
        papers=[
            Paper(
                "KTAE: A Model-Free Algorithm to Key-Tokens Advantage Estimation in Mathematical Reasoning",
                "2505.16826",
                2025,
            )
        ],
        summary=(
            "GRPO plus a bonus for tokens that occur in correct completions rather than wrong ones, by Fisher's test."
        ),
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t), at most -c·A_t where A_t < 0,  "
            "A_t = (R_i - mean_g R)/(std_g R + eps) + 2·top·(σ((α e^(-2P) + β IG) x/(α+β)) - ½) of the token y_t,  "
            "IG = H(right) - p·H(right | with the token) - (1-p)·H(right | without), p the share with the token"
        ),
        defaults={
            "top": "the authors' code: 1",
            "alpha": "the authors' code: 1",
            "beta": "the authors' code: 1 (a setting of 2 in the script never reaches it)",
            **PPO_CLIP,
            "dual_clip": "the authors' code: c = 3, verl's default; 10 in its DAPO recipe",
            "kl_coef": "off, so that no reference is needed; the authors' GRPO scripts have 0.001, their DAPO ones "
            "none",
            "kl_estimator": "the authors' scripts: low_var_kl, which is k3",
        },
        differs=[
            "The end token gets no bonus, as in the authors' code: here the last token of completions that ended by "
            "themselves.",
            "The KL to the reference is off by default.",
        ],
        reduces=[
            Reduction("grpo@verl", settings={"top": 0.0}, why="no bonus"),
            Reduction(
                "grpo",
                ["equal_lengths"],
                settings={"top": 0.0, "dual_clip": None},
                why="no bonus; the mean over tokens is that over completions",
            ),
            Reduction(
                "dapo",
                ["mixed_groups"],
                settings={"top": 0.0, "dual_clip": None},
                other={"clip_high": 0.2},
                why="no bonus",
            ),
        ],
        needs=[
            "at least two completions per prompt",
            TOKENS,
            "raw correctness",
            "which completions were cut off",
            KL_NEED,
        ],
        source="xiaolizh1/KTAE verl/workers/actor/compute_key_tokens.py, verl/trainer/ppo/core_algos.py",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 2],
                fields={
                    "token_bt": [[5, 6], [5, 7]],
                    "correct_b": [True, False],
                    "truncated_b": [True, True],
                },
                advantage=[[0.70710578, 1.70710578], [-0.70710578, -1.70710578]],
                grad=[[-0.176776445, -0.426776445], [0.176776445, 0.426776445]],
                why=(
                    "5 is in both: nothing; 6 only in the right and 7 only in the wrong completion: the sigmoid "
                    "saturates"
                ),
            ),
            Golden(
                rewards=[1, 1, 0, 0],
                lengths=[2, 1, 2, 1],
                fields={
                    "token_bt": [[1, 9], [1], [2, 9], [1]],
                    "correct_b": [True, True, False, False],
                    "truncated_b": [True, True, True, True],
                },
                settings={"scale": "none"},
                advantage=[[0.65165368, 0.5], [0.65165368], [-1.5, -0.5], [-0.34834632]],
                loss=0.09083983,
                grad=[[-0.10860895, -1 / 12], [-0.10860895], [0.25, 1 / 12], [0.05805772]],
                why="token 1: 2 of 2 right, 1 of 2 wrong ones: P = 1, IG = 1 - ¾·H(⅔) = 0.31128 bits, "
                "x = π/4 + 1.75 - 0.5714; token 9 tells nothing; six tokens",
                tolerance=1e-5,
            ),
            Golden(
                rewards=[1, 0],
                log_ratio=[[0.0], [1.3862943611]],
                fields={"token_bt": [[5], [5]], "correct_b": [True, False], "truncated_b": [True, True]},
                settings={"scale": "none"},
                advantage=[0.5, -0.5],
                loss=0.5,
                grad=[[-0.25], [0.0]],
                why="the wrong token's ratio 4 is beyond the dual clip: 3·0.5; (-0.5 + 1.5)/2",
            ),
        ],
        notes=[
            "A token that only right (or only wrong) completions contain always gets the full bonus (or malus).",
            "Changed after 0.1: the information gain left out the completions without the token and could be negative; "
            "the loss was grpo's mean over completions, without the dual clip.",
        ],
        recommended={"kl_coef": 0.001, "group": 16, "learning_rate": 1e-6, "updates per rollout": 8},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP, *KL),
)


def t_spmo() -> Method:
    """Compose T-SPMO.

    Mean over the distinct (prefix, token) pairs of the rollout's trees of -A(v|u)·π(v|u); A compares the rewards after
    a token with those after other tokens that follow the same prefix.
    """
    return Method(
        advantage=PrefixTree(),
        token_weight=(OncePerNode(),),
        objective=Probability(),
        aggregate=WeightedMean(),
        on_policy=True,
    )


entry(
    "t_spmo",
    t_spmo,
    Card(
        title="Token-Specific Prefix Matching Optimization",
        papers=[MEMORY_PAPER],
        summary="The group's completions as a tree: only branching tokens learn, each by the outcomes after it, once.",
        formula=(
            "L = -1/#nodes Σ_{(u,v)} A(v|u) π(v|u),  A(v|u) = mean R of completions through u and v - mean R of "
            "completions "
            "through u without v"
        ),
        defaults={},
        differs=[
            "The paper's L2 penalty on the weights is optim's weight decay; its replay from a past completion's "
            "prefix is "
            "a matter of sampling and not here.",
        ],
        needs=["at least two completions per prompt", TOKENS, "exactly one update per rollout"],
        confidence="abstract-only",
        uncertain="The exact contrast of a node (against the other branches, as here, or against all) and its scale.",
        source="the paper's abstract",
        golden=[
            Golden(
                rewards=[1, 0, 0],
                lengths=[3, 3, 1],
                fields={"token_bt": [[4, 5, 6], [4, 7, 6], [4]]},
                advantage=[[0.0, 1.0, 0.0], [0.0, -1.0, 0.0], [0.0]],
                loss=0.0,
                grad=[[0.0, -0.0735758882, 0.0], [0.0, 0.0735758882, 0.0], [0.0]],
                why="all share 4; then 5 leads to 1 and 7 to 0; five nodes, probabilities 1/e",
            ),
            Golden(
                rewards=[1, 0, 0],
                fields={"token_bt": [[4], [4], [5]]},
                advantage=[0.5, 0.5, -0.5],
                grad=[[-0.0459849301], [-0.0459849301], [0.0919698603]],
                why="two nodes; 4 leads to 1/2 and counts half in each of its completions; 0.5/e/2",
            ),
        ],
    ),
)
