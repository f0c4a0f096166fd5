"""One prompt in several wordings: the completions to all of them are compared together."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.advantage.papers.shared_variants import SharedVariants
from grouprl.algorithms.allocation.variants import Variants
from grouprl.algorithms.augment.papers.cross_pairs import CrossPairs
from grouprl.algorithms.method import Method
from grouprl.core.numbers import NonNegative
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, GROUP, PPO_CLIP, Spread

TWO = "at least two completions per prompt"
Forms = Annotated[int, Field(ge=1)]
GRPO_LOSS = "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i)"


def eis_grpo(base: Method, variants: Forms = 2) -> Method:
    """Compose EIS-GRPO: GRPO over the union of the completions to all equivalent forms of a prompt."""
    return base.with_parts(allocation=Variants(limit=variants))


entry(
    "eis_grpo",
    eis_grpo,
    Card(
        title="Equivalent Initial State GRPO",
        papers=[
            Paper(
                "J4R: Learning to Judge with Equivalent Initial State Group Relative Policy Optimization",
                "2505.13346",
                2025,
            )
        ],
        summary="GRPO whose group are the completions to all equivalent forms of a prompt, so that bias costs.",
        formula=f"{GRPO_LOSS},  A_i = (R_i - mean_g R)/(std_g R + eps),  g: all equivalent forms of the prompt",
        defaults={
            "variants": "the paper: both orders of the two responses to judge",
            **PPO_CLIP,
        },
        differs=[
            "The equivalent forms are the task's (Task.variants); a task without them makes this GRPO.",
        ],
        reduces=[Reduction("grpo", ["always"], why="one form of the prompt")],
        needs=[TWO, "a task that can word a prompt in several ways"],
        confidence="partly",
        uncertain="Clip and aggregation of the paper.",
        source="a third-party note on the paper and its abstract",
        golden=[
            Golden(
                rewards=[1, 1, 1, 1, 0, 0, 0, 0],
                fields={"keys.variant": [0, 0, 0, 0, 1, 1, 1, 1]},
                advantage=[0.935412597] * 4 + [-0.935412597] * 4,
                grad=[[-0.116926575]] * 4 + [[0.116926575]] * 4,
                why="a judge that always says 'first' is right in one order only: ±0.5/0.53452; two groups give 0",
            )
        ],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)


def share_grpo(
    base: Method,
    variants: Forms = 2,
    local_weight: NonNegative = 1.0,
    scale: Spread = "sample_std",
    eps: NonNegative = 1e-6,
) -> Method:
    """Compose Share-GRPO.

    Each completion is a row under every variant's prompt, with log-probs of that prompt; all get their advantage among
    all variants' completions, and rows under the completion's own prompt add that among its variant's, as in the paper.
    """
    shared = SharedVariants(local_weight=local_weight, scale=scale, eps=eps)
    return base.with_parts(advantage=shared, allocation=Variants(limit=variants), augment=(CrossPairs(),))


entry(
    "share_grpo",
    share_grpo,
    Card(
        title="Share-GRPO (R1-ShareVL)",
        papers=[
            Paper(
                "R1-ShareVL: Incentivizing Reasoning Capability of Multimodal Large Language Models via Share-GRPO",
                "2505.16673",
                2025,
            )
        ],
        summary="Completions are shared among variants of their prompt and compared with all of them and "
        "with their own variant's.",
        formula=(
            f"{GRPO_LOSS} over each completion paired with each variant's prompt,  A = norm_g(R) + w·[own prompt]·"
            "norm_{g,variant}(R),  norm(R) = (R - mean)/(std + eps) over own rows"
        ),
        defaults={
            "variants": "R1-ShareVL: M = 2",
            "local_weight": "R1-ShareVL: the two advantages are added",
            "scale": "R1-ShareVL: sample (n-1)",
            **PPO_CLIP,
        },
        differs=[
            "The loss around the advantage is GRPO's as published, with the mean of completions' means.",
            "The variants are the task's (Task.variants); R1-ShareVL rewrites texts and turns or blurs images.",
        ],
        reduces=[
            Reduction(
                "grpo", ["all_sampled"], settings={"local_weight": 0.0}, why="no pairing, no judgement by variant"
            ),
        ],
        needs=[
            TWO,
            "a task that can word a prompt in several ways",
        ],
        source="HJYao00/R1-ShareVL",
        golden=[
            Golden(
                rewards=[1, 0, 1, 1, 1, 0, 1, 1],
                fields={"keys.variant": [0, 0, 1, 1, 1, 1, 0, 0], "keys.own": [1, 1, 1, 1, 0, 0, 0, 0]},
                advantage=[
                    *(1.207104781, -2.207102781, 0.499999, 0.499999),
                    *(0.499999, -1.499997, 0.499999, 0.499999),
                ],
                grad=[[-0.150888098], [0.275887848], *[[-0.062499875]] * 3, [0.187499625], *[[-0.062499875]] * 2],
                why="mean 3/4, std 1/2; variant 0 adds ±0.70711 to its own rows, variant 1 is all right and adds 0",
            )
        ],
        recommended={"variants": 2, "completions per variant": 6, "kl_coef": 0.0},
        notes=["With one variant A is twice GRPO's; local_weight 0 gives GRPO's own."],
    ),
    base="grpo",
    keeps=CLIPS,
)
