"""GRPO on a part of the tokens or completions: the uncertain ones, the informative ones, a cheap sample."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.aggregate.weighted_mean import WeightedMean
from grouprl.algorithms.filter.papers.token_subset import TokenSubset
from grouprl.algorithms.method import Method
from grouprl.algorithms.token_weight.papers.variance_subset import VarianceSubset
from grouprl.algorithms.token_weight.token_selection import TopTokens
from grouprl.core.numbers import PositiveShare
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, GROUP, PPO_CLIP

FORKING_PAPER = Paper(
    "Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning for LLM Reasoning",
    "2506.01939",
    2025,
)
MEMORY_PAPER = Paper("Reinforcement Learning for LLM Reasoning Under Memory Constraints", "2504.20834", 2025)


def forking_tokens(
    base: Method,
    fraction: PositiveShare = 0.2,
) -> Method:
    """Compose DAPO on high-entropy tokens.

    DAPO's loss times [H_t ≥ τ], τ the quantile that leaves the top `fraction` of the rollout's tokens. The
    denominator counts all tokens, as in the paper's formula.
    """
    return base.with_parts(token_weight=(TopTokens(fraction=fraction),))


entry(
    "forking_tokens",
    forking_tokens,
    Card(
        title="80/20: only the forking tokens",
        papers=[FORKING_PAPER],
        summary="DAPO on the fifth of the tokens where the policy is most uncertain; the others get no gradient.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t [H_t ≥ τ] min(ρ_t A_i, clip(ρ_t, 1-ε_low, 1+ε_high) A_i),  "
            "τ = (1 - fraction)-quantile of H over all tokens, A and groups as in DAPO"
        ),
        defaults={
            "fraction": "the paper: ρ = 0.2, the top 20% of entropies",
            "clip_low": "DAPO, the paper's base",
            "clip_high": "DAPO, the paper's base",
            "overlong_buffer": "a fifth of the limit, as in DAPO",
            "overlong_penalty": "DAPO: 1",
            "dynamic_sampling": "DAPO, the paper's base",
            "max_rounds": "as dapo: 10",
        },
        differs=[
            "Entropies are those of the sampling policy, and the quantile is taken over the whole rollout; TRL takes "
            "the current policy's over its batch. With one update per rollout both are the same.",
        ],
        reduces=[Reduction("dapo", settings={"fraction": 1.0}, why="every token is in the top 100%")],
        needs=["at least two completions per prompt", "entropies of the sampler"],
        source="TRL grpo_trainer.py (get_high_entropy_mask, top_entropy_quantile 0.2), ms-swift entropy_mask.md",
        golden=[
            Golden(
                rewards=[1, -1],
                lengths=[2, 3],
                log_ratio=[[0.5, 0.2], [0.0, 0.0, 0.0]],
                fields={"entropy_bt": [[0.1, 2.0], [0.3, 0.2, 0.1]]},
                settings={"fraction": 0.4},
                advantage=[0.70710628, -0.70710628],
                loss=-0.03131106,
                grad=[[0.0, -0.17273231], [0.14142126, 0.0, 0.0]],
                why="two of five tokens are kept (H of 2.0 and 0.3); the denominator stays 5; e^0.2 = 1.2214 is free",
            )
        ],
        notes=["The denominator counts all tokens, so gradients are about five times smaller than a mean of the kept."],
        recommended={"group": 8, "temperature": 1.0},
    ),
    base="dapo",
    keeps=(*CLIPS, *GROUP, "overlong_buffer", "overlong_penalty", "dynamic_sampling", "max_rounds"),
)


def d3s(
    base: Method,
    sequences: PositiveShare = 0.5,
    tokens: PositiveShare = 0.4,
    over: Literal["batch", "sequence"] = "batch",
) -> Method:
    """Compose D3S with constant shares.

    GRPO's clipped loss, averaged over the kept tokens: of the `sequences` share of completions with the largest
    variance of A over the whole rollout, the `tokens` share with the largest |A|·H.
    """
    chosen = TopTokens(fraction=tokens, score="advantage_entropy", over=over)
    return base.with_parts(
        token_weight=(VarianceSubset(fraction=sequences), chosen),
        aggregate=WeightedMean(),
    )


entry(
    "d3s",
    d3s,
    Card(
        title="Dynamic Dual-Level Down-Sampling",
        papers=[
            Paper(
                "Learning More with Less: A Dynamic Dual-Level Down-Sampling Framework for Efficient Policy "
                "Optimization",
                "2509.22115",
                2025,
            )
        ],
        summary="Train on the completions whose advantages vary most, and of these on the tokens with large |A|·H.",
        formula=(
            "L = -1/#K Σ_{(i,t)∈K} min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  K = top `tokens` by |A_i|·H_t of the "
            "completions in S,  S = argmax_{|S| = sequences·B} Var(A_S)"
        ),
        defaults={
            "sequences": "our choice: with `tokens` a fifth of all tokens, the share the paper reports using",
            "tokens": "our choice: with `sequences` a fifth of all tokens, the share the paper reports using",
            "over": "the batch: the paper does not say batch or completion",
            **PPO_CLIP,
        },
        differs=[
            "Both shares are constant; the paper raises them linearly from small to large during training, with "
            "numbers that were not available.",
        ],
        reduces=[
            Reduction("grpo", ["equal_lengths"], settings={"sequences": 1.0, "tokens": 1.0}, why="all is kept"),
            Reduction(
                "forking_tokens",
                ["mixed_groups", "two_completions"],
                settings={"sequences": 1.0, "tokens": 0.5},
                other={"fraction": 0.5, "clip_high": 0.2},
                scale=None,
                why="with two completions per mixed group every |A| is the same; the denominators differ",
            ),
        ],
        needs=["at least two completions per prompt", "entropies of the sampler"],
        confidence="partly",
        uncertain="The schedule of the two shares, and whether tokens are ranked per batch or per completion.",
        source="a note on the paper and its reviews; no code was available",
        golden=[
            Golden(
                rewards=[1, 0, 1, 1],
                lengths=[2, 2, 1, 1],
                groups=[0, 0, 1, 1],
                fields={"entropy_bt": [[0.1, 0.9], [0.5, 0.3], [3.0], [4.0]]},
                settings={"tokens": 0.5},
                advantage=[0.70710578, -0.70710578, 0.0, 0.0],
                loss=0.0,
                grad=[[0.0, -0.35355289], [0.35355289, 0.0], [0.0], [0.0]],
                why="±0.7071 have the largest variance; of their 4 tokens the two of 0.9 and 0.5 nats; mean over 2",
            )
        ],
        notes=["Advantages are not normalised anew after the choice: that the subset varies more is the point."],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)


def s_grpo_memory(
    base: Method,
    head: Annotated[int, Field(ge=0)] = 50,
    keep: Annotated[float, Field(ge=0, le=1)] = 0.5,
    limit: Annotated[int, Field(ge=1)] | None = 100,
) -> Method:
    """Compose Stochastic GRPO.

    GRPO's loss over the first `head` tokens of a completion and later ones kept with probability `keep`, at most
    `limit`; the mean of a completion counts its kept tokens.
    """
    return base.with_parts(
        filter=(TokenSubset(head=head, keep=keep, limit=limit),),
    )


entry(
    "s_grpo_memory",
    s_grpo_memory,
    Card(
        title="Stochastic GRPO",
        papers=[MEMORY_PAPER],
        summary="GRPO on a sample of the tokens: the first ones always, later ones by chance, so that memory is small.",
        formula=(
            "L = -1/B Σ_i 1/|K_i| Σ_{t∈K_i} min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  "
            "K_i: t ≤ head, or with probability `keep`; at most `limit` tokens"
        ),
        defaults={
            "head": "our choice, of the size recalled from the paper (50 to 100)",
            "keep": "recalled from the paper: about 0.5",
            "limit": "our choice, of the size recalled from the paper (50 to 100)",
            **PPO_CLIP,
        },
        differs=["Chance is a hash of the old log-probs: the same rollout always gives the same sample."],
        reduces=[
            Reduction("grpo", settings={"keep": 1.0, "limit": None}, why="all tokens are kept"),
            Reduction(
                "dapo", ["equal_lengths", "mixed_groups"], other={"clip_high": 0.2}, why="short completions are kept"
            ),
        ],
        needs=["at least two completions per prompt"],
        confidence="abstract-only",
        uncertain="The numbers of head, keep and limit, and whether the mean is per completion (as here) or per batch.",
        source="the paper's abstract",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[3, 2],
                settings={"head": 2, "keep": 0.0},
                advantage=[[0.70710578, 0.70710578, 0.0], [-0.70710578, -0.70710578]],
                loss=0.0,
                grad=[[-0.176776445, -0.176776445, 0.0], [0.176776445, 0.176776445]],
                why="two tokens of each completion are kept: A/(2·2)",
            ),
            Golden(
                rewards=[1, 0],
                lengths=[3, 2],
                settings={"limit": 1},
                grad=[[-0.35355289, 0.0, 0.0], [0.35355289, 0.0]],
                why="one token of each completion: A/2",
            ),
        ],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)
