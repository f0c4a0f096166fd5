"""Help for groups: demonstrations and hints for prompts that the policy cannot solve."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.advantage.papers.anchored_relative import AnchoredRelative
from grouprl.algorithms.advantage_transform.papers.novelty import NoveltyBonus
from grouprl.algorithms.augment.demonstrations import DemonstrationRow
from grouprl.algorithms.augment.papers.exemplars import SolvedExemplars
from grouprl.algorithms.augment.papers.hints import GroupHints, RowHint
from grouprl.algorithms.augment.papers.rounds import UncertaintyRounds
from grouprl.algorithms.method import Method
from grouprl.algorithms.reward_transform.papers.demonstration import AsymmetricReward, DemonstrationReward
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, GROUP, KL, KL_NEED, PPO_CLIP

TWO = "at least two completions per prompt"
StartShare = Annotated[float, Field(ge=0, le=1)]
GRPO_LOSS = "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  A_i = (R_i - mean_g R)/(std_g R + eps)"
AS_GRPO = "The loss is GRPO's as published, with the mean of completions' means."
DEFAULTS = {
    **PPO_CLIP,
}


def temp_samp(
    base: Method,
    eps: NonNegative,
    variant: Literal["shaping", "anchor", "downscale"] = "shaping",
    tau: float = 0.8,
    top: Positive = 0.01,
    bottom: Positive = 1.0,
    anchor: NonNegative = 1.2,
    downscale: NonNegative = 0.8,
) -> Method:
    """Compose TempSamp-R1.

    GRPO on groups that hold the annotated solution, after the non-linear shaping of all rewards. `variant` chooses the
    paper's other two remedies: anchoring the solution's advantage, or scaling its reward down.
    """
    base = base.with_parts(augment=(DemonstrationRow(),))
    if variant == "anchor":
        return base.with_parts(advantage=AnchoredRelative(anchor=anchor, eps=eps))
    if variant == "downscale":
        return base.with_parts(reward_transform=(DemonstrationReward(factor=downscale),))
    return base.with_parts(reward_transform=(AsymmetricReward(tau=tau, top=top, bottom=bottom),))


entry(
    "temp_samp",
    temp_samp,
    Card(
        title="TempSamp-R1",
        papers=[
            Paper(
                "TempSamp-R1: Effective Temporal Sampling with Reinforcement Fine-Tuning for Video LLMs",
                "2509.18056",
                2025,
            )
        ],
        summary="One completion of each group is the annotated solution; shaped rewards keep it from dominating.",
        formula=(
            f"{GRPO_LOSS},  R ← τ + a1·ln(R - τ + 1) if R ≥ τ else τ - (e^(a2(τ - R)) - 1)/(e^a2 - 1);  "
            "anchor: A_demonstration = λ·max_sampled A"
        ),
        defaults={
            "variant": "the paper's best: shaping (R1@0.5 of 72.1; anchor 70.7, downscale 70.3)",
            "tau": "the paper: 0.8",
            "top": "the paper: a1 = 0.01",
            "bottom": "the paper: a2 = 1",
            "anchor": "the paper: λ_off = 1.2",
            "downscale": "our choice; the paper's factor was not seen",
            **PPO_CLIP,
            "kl_coef": "off, so that no reference is needed; the paper keeps a KL of a size that we do not know",
        },
        differs=[
            "The KL to the reference is off by default.",
            "The solution takes the place of the group's last completion, which is sampled in vain. Its ratio is "
            "that to the "
            "policy at the start of the update, without correction, as in the paper.",
        ],
        reduces=[
            Reduction("grpo", ["binary_rewards"], why="two values stay two values, and the spread is divided out"),
            Reduction("grpo", ["all_sampled"], settings={"variant": "anchor"}, why="no demonstration"),
            Reduction("grpo", ["all_sampled"], settings={"variant": "downscale"}, why="no demonstration"),
        ],
        needs=[TWO, "rewards in about [0, 1]", "a demonstration per prompt", KL_NEED],
        confidence="partly",
        uncertain="The formulas come from a secondary source; the scale of the downscaled reward and of the KL.",
        source="a third-party page with the paper's formulas",
        golden=[
            Golden(
                rewards=[0.2, 0.5, 0.7, 1.0],
                fields={"source_b": [0, 0, 0, 2]},
                advantage=[-1.373082088, -0.085487583, 0.581642359, 0.876927312],
                grad=[[0.343270522], [0.021371896], [-0.14541059], [-0.219231828]],
                why="rewards become 0.32155, 0.59639, 0.73879, 0.80182",
            ),
            Golden(
                rewards=[0.2, 0.5, 0.7, 1.0],
                fields={"source_b": [0, 0, 0, 2]},
                settings={"variant": "anchor"},
                advantage=[-1.059621675, 0.132452709, 0.927168966, 1.112602759],
                why="judged among the three sampled ones; 1.2·0.92717 for the demonstration",
            ),
            Golden(
                rewards=[0.2, 0.5, 0.7, 1.0],
                fields={"source_b": [0, 0, 0, 2]},
                settings={"variant": "downscale", "downscale": 0.8},
                advantage=[-1.322870656, -0.188981522, 0.566944567, 0.944907611],
                why="the demonstration counts 0.8",
            ),
        ],
        recommended={"group": "3 sampled + 1 annotated", "updates per rollout": 1},
    ),
    base="grpo",
    keeps=(*CLIPS, "alone", *KL),
)


def scaf_grpo(
    base: Method,
    train_on: Literal["hinted", "original", "both"] = "hinted",
    hint_start: StartShare = 0.0,
) -> Method:
    """Compose Scaf-GRPO: GRPO on groups in which one hinted completion may replace a failed one."""
    return base.with_parts(augment=(RowHint(train_on=train_on, start=hint_start),))


entry(
    "scaf_grpo",
    scaf_grpo,
    Card(
        title="Scaffolded GRPO",
        papers=[
            Paper(
                "Scaf-GRPO: Scaffolded Group Relative Policy Optimization for Enhancing LLM Reasoning",
                "2510.19807",
                2025,
            )
        ],
        summary="GRPO in which a hinted completion, with the smallest hint that works, joins groups that all failed.",
        formula=f"{GRPO_LOSS};  all wrong: row 0 ← the completion to the smallest hint that succeeds",
        defaults={
            "train_on": "the release: the whole row with its hinted prompt; its options are 'original' and 'both'",
            "hint_start": "the release: hints from the first step; the paper exempts the first part of the run",
            **DEFAULTS,
        },
        differs=[
            "The ladder is the task's own; the paper has knowledge, planning and solution hints in four parts each.",
            AS_GRPO,
        ],
        reduces=[Reduction("grpo", ["always"], why="the loss is GRPO's, whatever prompt a row has")],
        needs=[TWO, "a task with hints"],
        source="dvlab-research/Scaf-GRPO hint_mix_grpo/trainer/ray_trainer.py and scripts",
        golden=[
            Golden(
                rewards=[1, 0, 0, 0, 0, 0, 0, 0],
                fields={"source_b": [1, 0, 0, 0, 0, 0, 0, 0]},
                advantage=[2.474866734] + [-0.353552391] * 7,
                grad=[[-0.309358342]] + [[0.044194049]] * 7,
                why="one success of eight: mean 1/8, std 0.353553",
            )
        ],
        recommended={"group": 8, "temperature": 1.0, "learning_rate": 1e-6, "batch": 256, "minibatch": 64},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)


def ghpo(
    base: Method,
    levels: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = (0.25, 0.5, 0.75),
    place: Literal["prompt", "completion"] = "prompt",
    hint_start: StartShare = 0.0,
) -> Method:
    """Compose GHPO: GRPO on groups that were sampled again with part of the solution if all completions had failed."""
    return base.with_parts(augment=(GroupHints(levels=levels, place=place, start=hint_start),))


entry(
    "ghpo",
    ghpo,
    Card(
        title="Guided Hybrid Policy Optimization",
        papers=[
            Paper("GHPO: Adaptive Guidance for Stable and Efficient LLM Reinforcement Learning", "2507.10628", 2025)
        ],
        summary="GRPO in which groups that all failed are sampled again with part of the solution in the prompt.",
        formula=f"{GRPO_LOSS};  all wrong: the whole group again under prompt + 25 %, 50 %, 75 % of the solution",
        defaults={
            "levels": "the release: 25, 50 and 75 % of the solution by characters",
            "place": "the release: in the prompt; 'completion' makes completions begin with it, where no hint is read",
            "hint_start": "the release: hints from the first step",
            **DEFAULTS,
        },
        differs=[
            "Dead is a group without a correct completion, as in the release; the words around the hint are the "
            "task's.",
            AS_GRPO,
        ],
        reduces=[Reduction("grpo", ["always"], why="the loss is GRPO's, whatever prompt a row has")],
        needs=[TWO, "a task with reference solutions"],
        source="hkgc-1/GHPO src/ghpo/ghpo_trainer.py and configs",
        golden=[
            Golden(
                rewards=[1.5, 0.5, 0.5, 0.5],
                fields={"source_b": [1, 1, 1, 1]},
                advantage=[1.499997, -0.499999, -0.499999, -0.499999],
                grad=[[-0.37499925], [0.12499975], [0.12499975], [0.12499975]],
                why="accuracy times 1 plus format times 0.5: one right, all well formed",
            )
        ],
        recommended={"group": 8, "temperature": 1.0, "learning_rate": 1e-6, "reward": "accuracy + 0.5·format"},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)


def xrpo(
    base: Method,
    exemplars: Annotated[int, Field(ge=0)] = 2,
    novelty: NonNegative = 2.5,
    novelty_cap: NonNegative = 0.5,
    extra: Positive = 1.0,
    rounds: Annotated[int, Field(ge=1)] = 4,
    level: Annotated[float, Field(gt=0, lt=1)] = 0.05,
    bonus: NonNegative = 0.1,
) -> Method:
    """Compose XRPO.

    Further completions go to the prompts whose mean reward is least certain; the advantages of right, unlikely
    completions are raised by up to a half. A prompt without a right completion is sampled again after similar solved
    ones.
    """
    handing_out = UncertaintyRounds(extra=extra, rounds=rounds, level=level, bonus=bonus)
    novel = (NoveltyBonus(coef=novelty, cap=novelty_cap),) if novelty > 0 else ()
    seeds = (SolvedExemplars(count=exemplars),) if exemplars else ()
    return base.with_parts(advantage_transform=novel, augment=(handing_out, *seeds))


entry(
    "xrpo",
    xrpo,
    Card(
        title="eXplore-eXploit GRPO",
        papers=[
            Paper("XRPO: Pushing the limits of GRPO with Targeted Exploration and Exploitation", "2510.06672", 2025)
        ],
        summary=(
            "GRPO that raises correct completions which were unlikely, and spends completions where they "
            "are most informative."
        ),
        formula=(
            f"{GRPO_LOSS};  right and A > 0: A ← A + min(λ·max(1 - η, 0), κA),  η = exp(s - mean_g s),  "
            "s = mean_t log π_old"
        ),
        defaults={
            "exemplars": "the paper: K = 2 solved prompts before one that all failed; 0 for none",
            "novelty": "the paper: λ = 2.5",
            "novelty_cap": "the paper: κ = 0.5",
            "extra": "not known: as many completions again as batch.group_size samples",
            "rounds": "not known: 4",
            "level": "95 % confidence intervals",
            "bonus": "not known: 0.1",
            **DEFAULTS,
        },
        differs=[
            "Similar prompts share tokens and pairs of tokens; the paper compares embeddings.",
            AS_GRPO,
        ],
        reduces=[Reduction("grpo", ["always"], settings={"novelty": 0.0}, why="no bonus")],
        needs=[TWO, "raw correctness, or a reward that tells right from wrong"],
        confidence="partly",
        uncertain="Clip, aggregation and the bonus of rarely sampled prompts; the formulas come from reviews.",
        source="reviews of the paper and Wodlfvllf/grpo-composer, which departs from it (all samples, |A|)",
        golden=[
            Golden(
                rewards=[1, 1, 0],
                fields={"old_bt": [[-1.0], [-0.2], [-0.6]]},
                log_ratio=[[0.0], [0.8], [0.4]],
                advantage=[0.866023904, 0.577349269, -1.154698538],
                why="η = e^-0.4, e^0.4, 1: 2.5·0.33 exceeds half of A; likely and wrong completions keep theirs",
            ),
            Golden(
                rewards=[1, 1, 0],
                settings={"novelty_cap": 1.0},
                advantage=[0.577349269, 0.577349269, -1.154698538],
                grad=[[-0.192449756], [-0.192449756], [0.384899513]],
                why="equally likely completions get no bonus: GRPO",
            ),
        ],
        notes=["The bonus is for A > 0 alone: under a negative A the cap κA would lower it."],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)
