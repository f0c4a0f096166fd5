"""Trial of the user's reward on completions of real prompts before a run: one that always fails teaches nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from grouprl.config.sections import Reward as Settings
from grouprl.core.errors import GrouprlError, InputError
from grouprl.evaluation.sample_and_score import example_text
from grouprl.orchestrator.reward import close_reward
from grouprl.records.examples import Example
from grouprl.records.scores import Problem, Scores
from grouprl.rewards.catalogue.worker_choice import in_workers
from grouprl.rewards.contract import reward_name
from grouprl.rewards.scoring import score
from grouprl.rewards.validation import plain_rewards
from grouprl.tasks import Task

PROMPTS = 4
"""Largest number of prompts tried until the reward scores one of them: single rows may be bad, but not all."""
LONGEST_REFERENCE = 1000
LINE = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass
class RewardTrial:
    """The result of a reward's trial: the reasons why the run cannot work, and notes."""

    refusals: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    graded: bool = False
    """Whether some score was neither 0 nor 1, so that completions are not simply right or wrong."""
    components: tuple[str, ...] | None = None
    """The components of the scores; None if nothing was scored."""


def try_reward(settings: Settings, reward: Callable[..., object], task: Task) -> RewardTrial:
    """Score completions of a few real prompts, in a worker with the run's limits, until one gets a number.

    Rewards of this package and judges are not tried, nor is any with `reward.self_test` off.
    """
    wanted = settings.self_test and settings.judge is None
    if not wanted or not any(_is_own(plain) for plain in plain_rewards(reward)):
        return RewardTrial()
    examples = list(_examples(task))
    if not examples:
        return RewardTrial()
    workers = settings.workers if settings.workers in (0, "auto") else 1
    try:
        scorer, _ = in_workers(
            reward, 1 if workers == "auto" else workers, timeout=settings.timeout, memory_gb=settings.memory_gb
        )
    except InputError:  # it cannot be pickled, or fails on its own examples: the run reports that if it matters
        if settings.workers != "auto":
            return RewardTrial()
        scorer = reward
    try:
        return _tried(scorer, reward_name(reward), examples, task, settings.correct_at)
    finally:
        close_reward(scorer)


def components_of(reward: Callable[..., object], task: Task) -> tuple[str, ...] | None:
    """Return the components of a reward of this package on completions of a few prompts; None if none was scored, or
    it is the user's, which is tried in a worker alone.
    """
    if any(_is_own(plain) for plain in plain_rewards(reward)):
        return None
    found = [_scores(reward, task, example, 1.0) for example in _examples(task)]
    scored = [scores for scores in found if scores.ok_b.any()]
    return tuple(dict.fromkeys(name for scores in scored for name in scores.components)) if scored else None


def _is_own(plain: object) -> bool:
    """Return whether a reward is the user's, not one of this package."""
    while isinstance(plain, partial):
        plain = plain.func
    module = getattr(plain, "__module__", None) or type(plain).__module__
    return not module.startswith("grouprl.")


def _examples(task: Task) -> Iterator[Example]:
    size = task.size("train")
    for index in range(PROMPTS if size is None else min(PROMPTS, size)):
        try:
            yield task.example("train", index)
        except GrouprlError:  # reported by the check that reads prompts
            return


def completions_of(task: Task, example: Example) -> list[str]:
    """Return plausible completions of a prompt: the known solution or the columns' values, a number, and nothing.

    The empty completion appears twice, as equal completions are common in a group.
    """
    try:
        known = task.solution(example)
    except Exception:  # a bad row; the rewards are tried on it nevertheless
        known = None
    texts = [] if known is None else [known]
    texts += [str(value) for value in example.columns.values() if isinstance(value, str | int | float)][:3]
    usable = [text for text in texts if len(text) <= LONGEST_REFERENCE]
    return [*dict.fromkeys([*usable, "0", example_text(example)[-LONGEST_REFERENCE:]]), "", ""]


def _tried(
    scorer: Callable[..., object], name: str, examples: list[Example], task: Task, correct_at: float
) -> RewardTrial:
    problems: list[Problem] = []
    tried = 0
    for example in examples:
        scores = _scores(scorer, task, example, correct_at)
        if scores.ok_b.any():
            notes = _notes(name, [*problems, *scores.problems])
            return RewardTrial(notes=notes, graded=scores.graded, components=tuple(scores.components))
        problems += [problem for problem in scores.problems if problem.status != "not_applicable"]
        tried += len(scores.status_b)
        if problems and all(problem.status == "timeout" for problem in problems):
            break  # each further one would run into the time limit, too
    if not problems:
        return RewardTrial(
            notes=[f"the reward '{name}' returned None (does not apply) for all {tried} completions that were tried"]
        )
    first = next((each for each in problems if each.completion), problems[0])
    return RewardTrial(
        refusals=[
            f"the reward '{name}' failed on all of {tried} completions that were tried: {_said(first)}. A run would "
            "lose every sample. Fix it (grouprl check-reward tries many more completions), or set reward.self_test "
            "to false if it succeeds on what the policy will write"
        ]
    )


def _scores(scorer: Callable[..., object], task: Task, example: Example, correct_at: float) -> Scores:
    texts = completions_of(task, example)
    ids = [example.id] * len(texts)
    return score(scorer, texts, [example.columns] * len(texts), ids=ids, correct_at=correct_at)


def _notes(name: str, problems: list[Problem]) -> list[str]:
    """Say, once for each kind of failure, that it would lose a sample."""
    kinds = {(each.what, each.completion == ""): each for each in problems if each.status != "not_applicable"}
    said = [
        f"the reward '{name}' fails on {'an empty completion' if not each.completion else 'a completion'}: "
        f"{_said(each)}. Samples on which it fails are lost (reward.on_error)"
        for each in kinds.values()
    ]
    return said[:3]


def _said(problem: Problem) -> str:
    """Say what went wrong, on which input, and in which line if that is known."""
    found = LINE.findall(problem.trace)
    line = f", {found[-1][0]}, line {found[-1][1]}" if found else ""
    return f"{problem.what} (prompt {problem.sample_id}, completion {problem.completion!r}{line})"
