"""Methods that leave completions or prompts out, or bring old ones back."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.advantage_transform.papers.zero_truncated import ZeroTruncated
from grouprl.algorithms.advantage_transform.stored_advantage import StoredAdvantage
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.allocation.papers.allocation import GreedyFilter
from grouprl.algorithms.buffer.group_replay import RolloutReplay
from grouprl.algorithms.buffer.papers.replay import SampleBuffer
from grouprl.algorithms.curriculum.papers.curriculum import HistoryResampling
from grouprl.algorithms.curriculum.papers.difficulty import DifficultyTargeted
from grouprl.algorithms.filter.papers.difficulty_band import DifficultyBand
from grouprl.algorithms.filter.replay_apart import ReplayApart
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import Clipped
from grouprl.algorithms.refill.papers.refills import RefillDifficultyBand as RefillBand
from grouprl.core.numbers import NonNegative, Positive, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, GROUP, PPO_CLIP, ClipLow

TWO = "at least two completions per prompt"
COMES_AGAIN = "prompts that are sampled more than once (data.prompts where the task never ends)"
GRPO_LOSS = "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  A_i = (R_i - mean_g R)/(std_g R + eps)"
AS_GRPO = "The loss is GRPO's as published, with the mean of completions' means."
DEFAULTS = {
    **PPO_CLIP,
}


def srpo_history(base: Method, readmit_every: Annotated[int, Field(ge=0)] = 0) -> Method:
    """Compose SRPO (Kwai).

    Token mean of GRPO's clip without KL; completions that were cut off get advantage 0; solved prompts leave after each
    epoch.
    """
    history = HistoryResampling(readmit_every=readmit_every)
    return base.with_parts(advantage_transform=(ZeroTruncated(),), aggregate=TokenMean(), curriculum=history)


entry(
    "srpo_history",
    srpo_history,
    Card(
        title="two-Staged history-Resampling Policy Optimization",
        papers=[
            Paper(
                "SRPO: A Cross-Domain Implementation of Large-Scale Reinforcement Learning on LLM", "2504.14286", 2025
            )
        ],
        summary=(
            "GRPO per token; solved prompts leave after each epoch, and completions that were cut off teach nothing."
        ),
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  "
            "A_i = (R_i - mean_g R)/(std_g R + eps)·[not truncated]"
        ),
        defaults={
            "readmit_every": "never: solved prompts do not come back",
            **DEFAULTS,
        },
        differs=[
            "Without the two stages (mathematics, then code).",
            "The penalty on mixed languages belongs to the task.",
        ],
        needs=[TWO, COMES_AGAIN, "which completions were cut off"],
        confidence="partly",
        uncertain="The clip; the rest comes from a survey and the abstract.",
        source="survey notes on the paper and its abstract",
        golden=[
            Golden(
                rewards=[1, 0, 0, 0],
                lengths=[2, 1, 1, 1],
                fields={"truncated_b": [False, True, False, False]},
                advantage=[1.499997, 0.0, -0.499999, -0.499999],
                grad=[[-0.2999994] * 2, [0.0], [0.0999998], [0.0999998]],
                why="the cut completion counts in mean, spread and the five tokens, but gets 0",
            )
        ],
        recommended={"prompts": 256, "group": 32, "learning_rate": 1e-6, "adam betas": "0.9, 0.95"},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)


def online_difficulty(
    base: Method,
    low: Share = 0.2,
    high: Share = 0.8,
    max_rounds: Annotated[int, Field(ge=1)] = 10,
) -> Method:
    """Compose online difficulty filtering: GRPO on groups whose share of correct completions lies in [low, high]."""
    band = DifficultyBand(low=low, high=high)
    return base.with_parts(filter=(band,), refill=RefillBand(low=low, high=high, max_rounds=max_rounds))


entry(
    "online_difficulty",
    online_difficulty,
    Card(
        title="Online Difficulty Filtering",
        papers=[
            Paper("Online Difficulty Filtering for Reasoning Oriented Reinforcement Learning", "2504.03380", 2025),
        ],
        summary="GRPO on prompts of middling difficulty; others are replaced before the update.",
        formula=f"{GRPO_LOSS} over groups with T_low ≤ share of correct completions ≤ T_high",
        defaults={
            "low": "an example of the paper, not verified: 0.2",
            "high": "an example of the paper, not verified: 0.8",
            "max_rounds": "as dapo: 10",
            **DEFAULTS,
        },
        differs=[
            "Groups that are all right or all wrong leave whatever the band.",
            "Refilling stops after max_rounds rounds with the groups found so far.",
            AS_GRPO,
        ],
        reduces=[
            Reduction("grpo", ["mixed_groups"], settings={"low": 0.0, "high": 1.0}, why="every mixed group is kept"),
            Reduction(
                "dapo",
                ["mixed_groups", "equal_lengths"],
                settings={"low": 0.0, "high": 1.0, "clip_high": 0.28},
                why="DAPO's filter is the open band (0, 1)",
            ),
        ],
        needs=[TWO, "raw correctness, or a reward that tells right from wrong"],
        confidence="partly",
        uncertain="The thresholds and the loss around them.",
        source="third-party notes on the paper and its abstract",
        golden=[
            Golden(
                rewards=[1, 1, 0, 0, 1, 1, 1, 1, 1, 0],
                groups=[0, 0, 0, 0, 1, 1, 1, 1, 1, 1],
                advantage=[0.866023904, 0.866023904, -0.866023904, -0.866023904, 0, 0, 0, 0, 0, 0],
                grad=[*[[-0.216505976]] * 2, *[[0.216505976]] * 2, *[[0.0]] * 6],
                why="five of six right is more than 0.8: that prompt leaves the loss and the denominator of 4",
            )
        ],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)


def self_filtered(base: Method, solved: float = 1.0) -> Method:
    """Compose SELF: GRPO on the prompts whose greedy completion earns less than `solved`."""
    return base.with_parts(allocation=GreedyFilter(solved=solved))


entry(
    "self",
    self_filtered,
    Card(
        title="SELF: greedy filtering of solved prompts",
        papers=[
            Paper(
                "The Reasoning Boundary Paradox: How Reinforcement Learning Constrains Language Models",
                "2510.02230",
                2025,
            )
        ],
        summary="GRPO on the prompts whose greedy completion is not right yet; solved ones get no more weight.",
        formula=f"{GRPO_LOSS} over prompts with R(greedy completion) < 1",
        defaults={
            "solved": "the paper: reward 1",
            **DEFAULTS,
        },
        differs=[
            "The batch is what is left; the authors' code pads it by repetition to a multiple of its machines.",
            AS_GRPO,
        ],
        reduces=[Reduction("grpo", ["always"], why="the loss is GRPO's; only prompts are left out")],
        needs=[TWO, "one greedy completion per prompt"],
        source="mail-research/SELF-llm-interference verl/trainer/ppo/ray_trainer.py, slurm/train_max_ppo.sh",
        golden=[
            Golden(
                rewards=[1, 0, 1, 0],
                groups=[0, 0, 1, 1],
                advantage=[0.707105781, -0.707105781] * 2,
                grad=[[-0.176776445], [0.176776445], [-0.176776445], [0.176776445]],
                why="two prompts that were not solved greedily: 0.5/0.707107, every completion weighs 1/4",
            )
        ],
        recommended={"group": 8, "batch": 128, "learning_rate": 1e-6},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)


def dots(
    base: Method,
    clip_low: ClipLow,
    clip_high: Positive,
    target: Annotated[float, Field(ge=0, le=1)] = 0.5,
    temperature: Positive = 1e-3,
    predict: Literal["attention", "ledger"] = "attention",
    reference: Annotated[int, Field(ge=1)] = 256,
    every: Annotated[int, Field(ge=1)] = 2,
    sharpness: Positive = 1.0,
    fresh_share: Annotated[float, Field(ge=0, le=1)] = 0.5,
    capacity: Annotated[int, Field(ge=1)] = 512,
) -> Method:
    """Compose DOTS with rollout replay.

    Half of the groups are new, for prompts that are predicted to be half solved; the others are recent ones. GRPO's
    loss, whose ratio is that to the log-probs under which a completion was sampled.
    """
    return base.with_parts(
        objective=Clipped(clip_low=clip_low, clip_high=clip_high, against="behavior"),
        curriculum=DifficultyTargeted(
            target=target,
            temperature=temperature,
            predict=predict,
            reference=reference,
            every=every,
            sharpness=sharpness,
        ),
        buffer=RolloutReplay(fresh_share=fresh_share, capacity=capacity) if fresh_share < 1 else None,
    )


entry(
    "dots",
    dots,
    Card(
        title="Difficulty-targeted Online Data Selection and Rollout Replay",
        papers=[
            Paper(
                "Improving Data Efficiency for LLM Reinforcement Fine-tuning Through Difficulty-targeted Online Data "
                "Selection and Rollout Replay",
                "2506.05316",
                2025,
            )
        ],
        summary="GRPO on prompts predicted to be half solved, with recent groups replayed under their old log-probs.",
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  ρ_t = π/π_behavior;  "
            "P(prompt) ∝ exp(-|p - 0.5|/τ),  p predicted"
        ),
        defaults={
            "target": "the paper: a pass rate of one half",
            "temperature": "the paper: τ = 0.001",
            "predict": "the paper: attention to a measured reference set; 'prompt history' costs no completions",
            "reference": "the paper: 256 prompts",
            "every": "the paper: every 2 steps",
            "sharpness": "1: plain scaled dot products",
            "fresh_share": "the paper: σ = 0.5 of each batch; 1 replays nothing",
            "capacity": "the paper: a queue of 512 prompts",
            **DEFAULTS,
        },
        differs=[
            "The attention is not trained: the paper projects the embeddings by a small network and calibrates the "
            "prediction; here standardised embeddings are compared as they are.",
            AS_GRPO,
        ],
        reduces=[Reduction("grpo", ["on_policy"], why="nothing is old: π_behavior is π_old is π")],
        needs=[TWO, COMES_AGAIN, "log-probs under the policy that sampled each completion"],
        source="ASTRAL-Group/data-efficient-llm-rl ray_trainer.py, model.py, scripts",
        golden=[
            Golden(
                rewards=[1, 0],
                fields={"behavior_bt": [[-1.1], [-1.5]], "source_b": [3, 3]},
                advantage=[0.707105781, -0.707105781],
                loss=0.192173798,
                grad=[[-0.390736373], [0.582910171]],
                why="ratios e^0.1 and e^0.5 to the log-probs of then; the second is not clipped where A < 0",
            )
        ],
        recommended={"group": 8, "batch": 512, "temperature": 0.6, "learning_rate": 1e-6},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)


def skywork_r1v2(
    base: Method,
    clip_low: ClipLow,
    clip_high: Positive,
    replay_share: NonNegative = 0.25,
    capacity: Annotated[int, Field(ge=1)] = 1024,
) -> Method:
    """Compose the GRPO half of Skywork R1V2.

    PPO's clip against the log-probs at the time of sampling; replayed completions keep the advantage that they had in
    their own group. The paper's MPO half is not part of it.
    """
    return base.with_parts(
        filter=(ReplayApart(),),
        advantage_transform=(StoredAdvantage(),),
        objective=Clipped(clip_low=clip_low, clip_high=clip_high, against="behavior"),
        buffer=SampleBuffer(share=replay_share, capacity=capacity),
    )


entry(
    "skywork_r1v2",
    skywork_r1v2,
    Card(
        title="Selective Sample Buffer (Skywork R1V2)",
        papers=[Paper("Skywork R1V2: Multimodal Hybrid Reinforcement Learning for Reasoning", "2504.16656", 2025)],
        summary="GRPO joined by old completions of large advantage, which keep that advantage and their log-probs.",
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  ρ_t = π/π_behavior,  "
            "A_i = (R_i - mean_g R)/(std_g R + eps), or the stored one;  P(replay) ∝ |A|"
        ),
        defaults={
            "replay_share": "our choice: one old completion for every four new ones; the paper's share was not seen",
            "capacity": "our choice: 1024 completions",
            **DEFAULTS,
        },
        differs=[
            "The GRPO half alone: the paper combines it with MPO (a preference, a quality and a likelihood loss), "
            "whose weights are not known.",
            AS_GRPO,
        ],
        reduces=[Reduction("grpo", ["on_policy", "all_sampled"], why="an empty buffer")],
        needs=[
            TWO,
            "log-probs under the policy that sampled each completion; for replayed completions the advantage they had "
            "(past['advantage'], which the buffer keeps)",
        ],
        confidence="partly",
        uncertain="How the two halves are combined, the priorities' exponent, the clip.",
        source="third-party notes on the paper and its abstract",
        golden=[
            Golden(
                rewards=[1, 0, 1],
                fields={
                    "behavior_bt": [[-1.0], [-1.0], [-1.1]],
                    "source_b": [0, 0, 3],
                    "past.advantage": [0.0, 0.0, 2.0],
                },
                advantage=[0.707105781, -0.707105781, 2.0],
                grad=[[-0.235701927], [0.235701927], [-0.736780612]],
                why="the replayed completion is not a member of the group: 2·e^0.1 over three completions",
            )
        ],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)
