"""Learning to use tools: groups of steps that failed (THOR), exploration in the thought alone (FunRL)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.advantage_transform.papers.thought_entropy import ThoughtEntropy
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.augment.papers.failed_steps import FailedSteps
from grouprl.algorithms.filter.filter import MixedGroups
from grouprl.algorithms.method import Method
from grouprl.algorithms.regularize.papers.good_tokens import GoodTokensNLL
from grouprl.core.numbers import Count, NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, KL, KL_NEED, PPO_CLIP, DualClip

TWO = "at least two completions per prompt"


def thor(
    base: Method,
    most: Count = 1,
    step_completions: Annotated[int, Field(ge=2)] | None = None,
    nll: NonNegative = 0.01,
    clip_high: Positive = 0.28,
    dual_clip: DualClip = 3.0,
) -> Method:
    """Compose THOR: train on episodes and on failed steps, each judged in groups of its kind."""
    return base.with_parts(
        filter=(MixedGroups(by="reward"),),
        aggregate=TokenMean(),
        regularize=(GoodTokensNLL(coef=nll),) if nll > 0 else (),
        augment=(FailedSteps(most=most, completions=step_completions),),
    )


entry(
    "thor",
    thor,
    Card(
        title="THOR: hierarchical optimisation of episodes and of steps that failed",
        papers=[
            Paper(
                "THOR: Tool-Integrated Hierarchical Optimization via RL for Mathematical Reasoning", "2509.13761", 2025
            )
        ],
        summary="Groups of whole episodes and groups of single failed steps in one loss; likelihood of good tokens.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε_low, 1+ε_high) A_i), at most c|A| for A < 0,  "
            "- α·mean_{A>0} log π(y_t);  A_i = (R_i - mean_g R)/(std_g R + eps), R of a step = [valid]; groups of "
            "equal rewards are left out"
        ),
        defaults={
            "most": "our choice: one failed step per prompt",
            "step_completions": "the authors' script: 16; here as many as the run has per prompt",
            "nll": "the authors' script: α = 0.01",
            "clip_low": "the authors' script: 0.2",
            "clip_high": "the authors' script: 0.28",
            "dual_clip": "the authors' script: c = 3",
        },
        differs=[
            "A failed step is sampled again from the beginning of its turn; the authors also go back into the "
            "reasoning "
            "before it, by a number of tokens.",
            "A step is valid where the environment says so: for the authors, where its code runs.",
            "The authors' filters of rows by code and length are left out.",
        ],
        reduces=[
            Reduction(
                "dapo",
                ["mixed_groups"],
                settings={"nll": 0.0, "dual_clip": None},
                why="where no step failed the loss is that of DAPO",
            ),
        ],
        needs=[TWO, "an environment that is acted in over turns and says which actions are valid"],
        source="the authors' repository: dp_actor.py, ray_trainer.py, vllm_rollout_spmd.py, run_code_grpo.sh",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 2],
                advantage=[0.70710578, -0.70710578],
                loss=0.24570193,
                grad=[[-0.24570193], [0.23570193, 0.23570193]],
                why="three tokens: -.7071/3 + 2·.7071/3; the one good token adds .01·1 to the loss, -.01 to its slope",
            ),
            Golden(
                rewards=[1, 1, 1, 0],
                groups=[0, 0, 1, 1],
                settings={"nll": 0.0},
                advantage=[0.0, 0.0, 0.70710578, -0.70710578],
                grad=[[0.0], [0.0], [-0.35355289], [0.35355289]],
                why="the first group is all right and leaves the loss; the second, of steps, is judged by itself",
            ),
            Golden(
                rewards=[0.5, 0.1],
                fields={"correct_b": [False, False]},
                settings={"nll": 0.0, "scale": "none"},
                advantage=[0.2, -0.2],
                grad=[[-0.1], [0.1]],
                why="nobody is right, yet the rewards differ: ±0.2 over two tokens",
            ),
        ],
        notes=[
            "Changed after 0.1: groups with graded rewards of which none is right stay; only equal rewards are left "
            "out."
        ],
        recommended={"group": 16, "turns": 5},
    ),
    base="grpo",
    keeps=("clip_low", "scale", "eps"),
)


def funrl(
    base: Method,
    alpha: NonNegative = 0.4,
    kappa: Annotated[float, Field(gt=1)] = 2.0,
) -> Method:
    """Compose GRPO with an entropy bonus on the tokens of the thought."""
    return base.with_parts(
        advantage_transform=(ThoughtEntropy(alpha=alpha, kappa=kappa),),
    )


entry(
    "funrl",
    funrl,
    Card(
        title="FunRL: entropy bonus in the thought, none in the call",
        papers=[Paper("Exploring Superior Function Calls via Reinforcement Learning", "2508.05118", 2025)],
        summary="GRPO that explores in the thought before a call, where tokens are uncertain, and not in the call.",
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t) + β·KL,  A_t = A_i + min(α H_t, |A_i|/κ) "
            "in the thought, A_i after it"
        ),
        defaults={
            "alpha": "0.4, of the entropy shaping it follows; the paper's value was not seen",
            "kappa": "2, of the entropy shaping it follows; the paper's value was not seen",
            **PPO_CLIP,
            "kl_coef": "off, so that no reference is needed",
        },
        differs=[
            "A thought is what stands before the task's sign that ends it; a completion without the sign has none.",
            "The reward, format and equality of syntax trees, is the task's (grouprl has tool calls as a reward).",
        ],
        reduces=[Reduction("grpo", settings={"alpha": 0.0}, why="no bonus")],
        needs=[TWO, "completions that think first, up to a sign that ends the thought", KL_NEED],
        confidence="abstract-only",
        uncertain="The form of the entropy term and its constants.",
        source="the paper's abstract; the form is that of entropy-shaped advantages, which it follows",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 3],
                fields={
                    "entropy_bt": [[0.5, 2.0], [0.5, 2.0, 1.0]],
                    "marks.thought": [[True, False], [True, True, False]],
                },
                advantage=[[0.90710578, 0.70710578], [-0.50710578, -0.35355289, -0.70710578]],
                loss=-0.14225882,
                grad=[[-0.22677645, -0.17677645], [0.08451763, 0.05892548, 0.11785096]],
                why=".4·.5 = .2; .4·2 is capped at .7071/2; after the thought nothing is added",
            )
        ],
    ),
    base="grpo",
    keeps=(*CLIPS, *KL, "scale", "eps"),
)
