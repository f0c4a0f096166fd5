"""Methods whose steps hold rows besides the groups: completions at another temperature, verdicts on completions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.advantage_transform.advantage_transform import FixedAdvantage
from grouprl.algorithms.aggregate.by_source import BySource
from grouprl.algorithms.augment.papers.extra import TemperedExtras, VerificationRows
from grouprl.algorithms.filter.source_apart import SourceApart
from grouprl.algorithms.method import Method
from grouprl.algorithms.regularize.papers.verdict import SourceLikelihood
from grouprl.algorithms.token_weight.token_weight import WithoutPolicyLoss
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, GROUP, KL, KL_NEED, PPO_CLIP

TWO = "at least two completions per prompt"
GRPO_LOSS = "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i)"
DEFAULTS = {
    **PPO_CLIP,
}


def aepo(
    base: Method,
    target_entropy: Positive = 0.5,
    hot: Positive = 1.2,
    cool: Positive = 0.8,
    share: Annotated[float, Field(gt=0, le=1)] = 0.25,
    most: Annotated[int, Field(ge=1)] = 60,
    place: Literal["replace", "append"] = "replace",
) -> Method:
    """Compose AEPO.

    GRPO, and good completions sampled at 1.2 times the temperature (0.8 times above the target entropy) with advantage
    1, as in the paper. They do not count in group statistics.
    """
    extras = TemperedExtras(target=target_entropy, hot=hot, cool=cool, share=share, most=most, place=place)
    return base.with_parts(
        filter=(SourceApart(source="extra"),), advantage_transform=(FixedAdvantage(source="extra"),), augment=(extras,)
    )


entry(
    "aepo",
    aepo,
    Card(
        title="Arbitrary Entropy Policy Optimization",
        papers=[
            Paper(
                "Arbitrary Entropy Policy Optimization: Entropy Is Controllable in Reinforcement Fine-tuning",
                "2510.08141",
                2025,
            )
        ],
        summary=(
            "Holds the entropy near a target by learning from good completions sampled hotter or cooler than "
            "the policy."
        ),
        formula=(
            f"{GRPO_LOSS},  A_i = (R_i - mean_g R)/(std_g R + eps);  extras: A = 1, good completions sampled at "
            "temperature "
            "hot while H ≤ target, else at cool"
        ),
        defaults={
            "target_entropy": "the paper: 0.5 nats (0.75 was its best)",
            "hot": "the paper: 1.2",
            "cool": "the paper: 0.8",
            "share": "the paper: a quarter of the prompts",
            "most": "the paper: at most 60, half of what there is above the target",
            "place": "the paper: extras replace the first ordinary completions",
            "kl_coef": "off, as in the paper's scripts",
            **DEFAULTS,
        },
        differs=[
            "Replaced completions leave the loss but count in their groups' statistics, as the authors replace "
            "them after "
            "the advantages are computed.",
            "Nothing is added in the first step: there is no entropy of an earlier one.",
            "H is the mean token entropy of the completions sampled in the step before; the authors' is that of their "
            "last update.",
            "Good extras are those with a standardised advantage above 0.05 among the extras of their prompt, in the "
            "order in which they were sampled; prompts for them are chosen at random.",
            "An extra weighs as any completion: the paper's α is the share of extras in the step. Their old log-probs "
            "are the policy's at the run's own temperature, without correction for the other, as in the authors' code.",
        ],
        reduces=[Reduction("grpo", ["all_sampled"], why="no extras")],
        needs=[TWO, "prompts with both right and wrong completions, or there is no good extra", KL_NEED],
        source="597358816/AEPO verl/trainer/ray_trainer.py, verl/trainer/config.py, examples/qwen-math-7b-AEPO.sh",
        golden=[
            Golden(
                rewards=[1, 0, 1],
                fields={"source_b": [0, 0, 6]},
                advantage=[0.70710578, -0.70710578, 1.0],
                loss=-0.33333333,
                grad=[[-0.235701927], [0.235701927], [-0.333333333]],
                why="two sampled completions judged among themselves, the extra with advantage 1; each weighs 1/3",
            )
        ],
        recommended={"group": 5, "learning_rate": 1e-6},
        notes=[
            "Raising completions that were sampled hotter, so are less likely, raises the entropy; cooler ones "
            "lower it."
        ],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP, *KL),
)


def rl_v(base: Method, verify_coef: NonNegative = 1.0, balance: bool = True) -> Method:
    """Compose RL^V with GRPO.

    The policy loss of GRPO on completions, plus λ times the mean negative log-likelihood of one-token verdicts on them,
    each with its own average; the paper's λ is about 1.
    """
    return base.with_parts(
        filter=(SourceApart(source="verification"),),
        token_weight=(WithoutPolicyLoss(source="verification"),),
        aggregate=BySource(source="verification", inside="token_mean", outside="sequence_mean"),
        regularize=(SourceLikelihood(coef=verify_coef),),
        augment=(VerificationRows(balance=balance),),
    )


entry(
    "rl_v",
    rl_v,
    Card(
        title="RL^V",
        papers=[
            Paper(
                "Putting the Value Back in RL: Better Test-Time Scaling by Unifying LLM Reasoners With Verifiers",
                "2505.04842",
                2025,
            )
        ],
        summary=(
            "GRPO whose policy also learns to say whether its completions are right, from the completions of the step."
        ),
        formula=(
            f"{GRPO_LOSS} - λ·1/V Σ_v log π(z_v | prompt, completion, 'is it right?'),  "
            "A_i = (R_i - mean_g R)/(std_g R + eps),  z = Yes if right, else No"
        ),
        defaults={
            "verify_coef": "1, the usual weight; the paper's ablation was not seen",
            "balance": "customary advice: as many Yes as No in each group",
            **DEFAULTS,
        },
        differs=[
            "Balanced verdicts: where all completions of a prompt are right, or all wrong, nothing is asked "
            "about them.",
            "The policy gradient is GRPO's; the paper also has leave-one-out PPO and VinePPO.",
        ],
        reduces=[Reduction("grpo", ["all_sampled"], why="no verdicts")],
        needs=[TWO, "verdicts that begin with different tokens (Task.verdicts)"],
        confidence="partly",
        uncertain="The weight λ and whether verdicts are balanced.",
        source="a summary of the paper and its abstract",
        golden=[
            Golden(
                rewards=[1, 0, 1, 0],
                lengths=[1, 2, 1, 1],
                fields={"source_b": [0, 0, 5, 5]},
                settings={"verify_coef": 0.5},
                advantage=[0.70710578, -0.70710578, 0.0, 0.0],
                loss=0.5,
                grad=[[-0.35355289], [0.176776445, 0.176776445], [-0.25], [-0.25]],
                why="the two completions weigh 1/2 each; two verdicts at log-prob -1 cost 0.5·1, and weigh 0.5/2 each",
            )
        ],
        recommended={"verify_coef": 1.0},
        notes=[
            "grouprl.evaluation.verification has the inference side: scores of completions and votes weighted by them.",
            "A policy that has never written a verdict loses its completions at λ = 1: a verdict of 10 nats has a "
            "gradient hundreds of times as long as that of the completions (grad_norm of the first step; "
            "source_likelihood_loss is the verdicts' nats times λ). Teach it the verdicts first, or lower verify_coef; "
            "on a task of four letters 0.3 taught both, on one of six 0.01.",
        ],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)
