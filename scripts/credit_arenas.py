"""Where finer credit is compared with GRPO: tasks of many turns, and which methods meet in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from claims import Setup
from effects import Arena, Settings, merged

SMALL: Settings = {
    "batch": {"prompts": 16, "group_size": 8, "minibatches": 2},
    "warmup": {"batch": 64, "lr": 3e-3},
    "data": {"prompts": None},
    "eval": {"final_prompts": 128, "samples": 2, "k": [1]},
}


def arena(words: str, task: Mapping[str, Any], warmup: int, steps: int, **more: Any) -> Arena:
    """Return an arena of the common size."""
    own = {"task": task, "warmup": {"steps": warmup}, "steps": steps, **more}
    return Arena(words, merged(SMALL, own))


KEYS: Mapping[str, Any] = {"name": "keys"}
ARENAS: dict[str, Arena] = {
    "keys": arena(
        "fetch a key in a grid and reach the door, rewarded at the door alone: where single moves decide, and the same "
        "cell is reached in many episodes of a group",
        KEYS,
        400,
        60,
        optim={"lr": 7e-4},
    ),
    "far keys": arena(
        "the same in larger grids with more walls, on 200 prompts that are sampled more than once: many "
        "groups fail altogether",
        {**KEYS, "size": 4, "walls": 2},
        400,
        40,
        optim={"lr": 7e-4},
        data={"prompts": 200},
    ),
    "followed keys": arena(
        "the same beside an expert, who makes the move where one does not lead on: every move that does is rewarded, "
        "and only a way without help is right",
        {**KEYS, "reward": "expert"},
        300,
        60,
        optim={"lr": 7e-4},
    ),
    "adventure": arena(
        "find a thing in a world of rooms that is seen room by room, and bring it home, rewarded for both: the longest "
        "episodes",
        {"name": "adventure"},
        300,
        40,
    ),
    "guess": arena(
        "find a hidden number by bisection, rewarded when it is found: what a guess tells is known at once. Chance "
        "decides much of the reward; 7,680 episodes are too few even for GRPO (the recipe `guess` learns in 51,200)",
        {"name": "guess", "noise": 0.3},
        700,
        60,
    ),
    "words": arena(
        "find one of twelve hidden words by hints for every guess, rewarded more the fewer they are: one may try again",
        {"name": "wordle", "words": 12},
        500,
        60,
        optim={"lr": 7e-4},
    ),
    "calculator": arena(
        "work out 6*43+31 with a tool that does one operation per call, rewarded for the answer, on 400 prompts",
        {"name": "calculator"},
        300,
        60,
        optim={"lr": 5e-4},
        data={"prompts": 400},
    ),
    "paid calls": arena(
        "the same, where a call that leads on is rewarded too",
        {"name": "calculator", "call_reward": 0.25},
        300,
        60,
        optim={"lr": 5e-4},
    ),
    "shortlist": arena(
        "recommend what a person likes and has not seen, one thing a turn, each rewarded if it is a hit",
        {"name": "shortlist"},
        300,
        60,
        optim={"lr": 7e-4},
    ),
    "diagnose": arena(
        "ask a patient for the findings that matter, then diagnose: a question earns what it reveals, and some "
        "take ten times as long to answer",
        {"name": "diagnose"},
        300,
        60,
        optim={"lr": 5e-4},
    ),
    "call": arena(
        "think of the requested fields, then write them as the JSON object that a function takes: one turn, whose "
        "thought and call are told apart",
        {"name": "schema", "facts": 2},
        400,
        30,
        optim={"lr": 5e-4},
    ),
}
"""Tasks of many turns, as the recipes of these names warm a model up for them."""
BOTH: Mapping[str, int] = {"eval/pass@1": 1, "whole/pass@1": 1}
"""What is compared, and whether more or less of it is claimed."""


@dataclass(frozen=True)
class Contest:
    """A method and its rivals in an arena; `words` say what is finer in it, `changes` are settings of its runs."""

    arena: str
    method: Setup
    words: str
    rivals: tuple[str, ...] = ("grpo",)
    changes: tuple[str, ...] = ()
    note: str = ""
    measures: Mapping[str, int] = field(default_factory=lambda: BOTH)

    @property
    def name(self) -> str:
        """The method's catalogue name."""
        return self.method if isinstance(self.method, str) else str(self.method["name"])


PROGRESS = "moves are rewarded by the progress that they make"
CRITIC = ("ppo", "grpo")
"""Rivals of methods that have a critic."""
CALLS = {**BOTH, "train/turns_mean": -1}
CONTESTS: tuple[Contest, ...] = (
    Contest("keys", "gigpo", "moves from the same cell are compared"),
    Contest("keys", "salt", "moves that good and bad episodes share are left alone"),
    Contest("keys", "empg", "sure moves count more, unsure ones less"),
    Contest(
        "keys",
        {"name": "intellect2", "max_rounds": 1},
        "no loss grows without bound where a wrong move became likelier",
        note="without sampling prompts again until all have right and wrong completions, which takes three times "
        "as many episodes.",
    ),
    Contest(
        "keys",
        "arpo_branch",
        "episodes branch where a move is unsure",
        changes=("batch.group_size=4",),
        note="four episodes from the beginning and four branches, as many as GRPO has.",
    ),
    Contest(
        "keys",
        {"name": "scaling_inter", "turns": (5, 7, 9), "every": 20},
        "episodes may grow longer as training goes on",
        note="at most 5, 7 and 9 turns, 20 steps each, as the task has 9; `whole/pass@1` is that of shorter episodes.",
    ),
    Contest("keys", "dmpo", "of two episodes the better becomes likelier, early moves most"),
    Contest("keys", "sdpo_segment", "of two episodes the better becomes likelier from where they part"),
    Contest("keys", "st_ppo", "one ratio per turn, smaller steps where the clip leaves much out", CRITIC),
    Contest(
        "keys",
        "spa_rl",
        PROGRESS,
        CRITIC,
        note="with the authors' β = 0.5 for every valid move nine moves to nowhere earn more than the door, and "
        "that is what is learnt. What it learns is measured with the state at the turn's last token, the paper's; its "
        "comparisons with rivals and β = 0.02 are older and have the state behind the environment's answer "
        "(progress_at: observation). With the paper's state the policy unlearns at any β: the frozen estimate knows "
        "too little (10 to 38 % of the variance of outcomes, 51 to 57 % behind the answer), and what it pays rises "
        "while the outcome falls.",
    ),
    Contest("keys", {"name": "spa_rl", "beta": 0.02}, PROGRESS, CRITIC),
    Contest(
        "keys",
        {"name": "text2grad", "feedback": "grouprl.envs.builtin.key_door:critique"},
        "a critic names the moves that lead on and those that do not",
        CRITIC,
        note="the critic is `grouprl.envs.builtin.key_door:critique`, a rule that knows the way; nothing else is "
        "rewarded.",
    ),
    Contest("far keys", "arpo_replay", "a stored success joins a group that failed"),
    Contest(
        "far keys",
        {"name": "spear", "size": 64, "bonus_until": 30, "replay_rise": 30},
        "good episodes are learnt from once more",
        note="a store of 64 episodes for a batch of 128; the bonus for turns fades and replay rises over 30 steps.",
    ),
    Contest("far keys", "otc", "fewer calls for the same completions, here moves", measures=CALLS),
    Contest("followed keys", "ui_s1", "moves are compared with the moves of the same number"),
    Contest("followed keys", "multi_turn_ppo", "a critic, and rewards at the ends of their turns"),
    Contest("adventure", "gigpo", "actions in the same state are compared"),
    Contest("adventure", "salt", "actions that good and bad episodes share are left alone"),
    Contest("guess", "gigpo", "guesses at the same range are compared"),
    Contest("guess", "igpo", "a guess is rewarded by how much likelier it makes the number"),
    Contest("words", "ufo", "later successes count less, repeated guesses cost"),
    Contest(
        "calculator",
        "thor",
        "failed calls are sampled again, as groups of their own",
        note="samples eight single turns more for every prompt with a failed call.",
    ),
    Contest("calculator", "llds", "good calls do not become less likely"),
    Contest("paid calls", "mt_grpo", "the first call is credited with its own reward"),
    Contest("paid calls", {"name": "g_ra", "outcome": "correct"}, "calls earn only where the answer is right"),
    Contest("shortlist", "rank_grpo", "each place is credited with the hits from it on"),
    Contest("words", "igpo", "a guess is rewarded by how much likelier it makes the word"),
    Contest("diagnose", "promed", "questions are credited with what they reveal"),
    Contest(
        "diagnose",
        "duration_aware",
        "turns weigh as much as they take time",
        CRITIC,
        note="episodes are sampled to their end, so that slow actions are as frequent as fast ones: the bias that the "
        "method undoes does not arise, and the weights are all that differs from PPO.",
    ),
    Contest(
        "call",
        "funrl",
        "unsure thoughts are explored, calls are not",
        note="one turn: the thought and the call are parts of one completion.",
    ),
)
