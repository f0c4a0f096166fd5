"""Levels that are played again by their regret: GROOVE's curriculum."""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.curriculum.papers.level_replay import LevelReplay, Score
from grouprl.algorithms.method import Method
from grouprl.core.numbers import Count, Positive, Share
from grouprl.methods.card import Card, Paper
from grouprl.methods.prompts.curricula import AS_GRPO, DEFAULTS, GRPO_LOSS, ONE_OF_FOUR, SAME_LOSS
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS


def groove(
    base: Method,
    replay: Share = 0.5,
    capacity: Count = 4000,
    score: Score = "regret",
    best: str = "#best",
    order: Literal["top", "softmax"] = "top",
    temperature: Positive = 0.1,
) -> Method:
    """Compose GROOVE's curriculum: GRPO on new levels and on those in which an antagonist is paid more."""
    levels = LevelReplay(replay=replay, capacity=capacity, score=score, best=best, order=order, temperature=temperature)
    return base.with_parts(curriculum=levels)


entry(
    "groove",
    groove,
    Card(
        title="GROOVE's curriculum: levels replayed by regret",
        papers=[
            Paper(
                "Discovering General Reinforcement Learning Algorithms with Adversarial Environment Design",
                "2310.02782",
                2023,
            )
        ],
        summary="GRPO on new prompts and on stored ones on which an antagonist is paid the most more than the policy.",
        formula=f"with chance p a stored prompt, highest s = R_antagonist - mean R first, else a new one;  {GRPO_LOSS}",
        defaults={
            **DEFAULTS,
            "replay": "the code: 0.5",
            "capacity": "the code: 4000 levels",
            "score": "the paper's algorithmic regret",
            "best": "our choice: the component #best, which is not paid",
            "order": "the code's default: the levels with the highest scores",
            "temperature": "our choice for order softmax: 0.1",
        },
        differs=[
            AS_GRPO,
            "One policy is trained on the levels; the paper trains a learned optimiser on many agents' lifetimes.",
            "The antagonist's reward is a component of each rollout's score (the best that is known, or another "
            "method's); the paper trains an A2C agent on each level.",
            "A score is that of the level's last group; the paper's comes at the end of an agent's lifetime.",
        ],
        reduces=[SAME_LOSS],
        needs=[
            "at least two completions per prompt",
            "prompts that are sampled more than once (data.prompts where the task never ends)",
            "a component #best of the reward, what an antagonist is paid, or another score",
        ],
        notes=[
            "On small grids it is behind prompts in turn, by regret and by spread, eight seeds of 40 steps each: the "
            "largest regret is that of levels which are not solved at all, whose groups have no gradient "
            "(docs/control.md).",
        ],
        source="EmptyJackson/groove environments/level_sampler.py, experiments/parse_args.py",
        golden=[ONE_OF_FOUR],
        recommended={"group": 8},
    ),
    base="grpo",
    keeps=CLIPS,
)
