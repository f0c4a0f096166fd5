"""Practice without training: groups of completions of a frozen model become lessons in words (Training-Free GRPO)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from grouprl.core.errors import InputError
from grouprl.evaluation.pass_at_k import Estimate, interval
from grouprl.lessons.library import Change, LessonLibrary
from grouprl.lessons.questions import (
    Messages,
    comparison_request,
    merging_request,
    proposal_request,
    read_changes,
    read_lesson,
    summary_request,
)
from grouprl.records.examples import Example
from grouprl.rewards import Reward, score
from grouprl.rewards.judging.judge import side_by_side
from grouprl.rewards.judging.judge_client import JudgeClient, NoAnswer, check_url

T = TypeVar("T")
R = TypeVar("R")
AGAIN = "{what}. Reply with the JSON alone."


@dataclass(frozen=True)
class AttemptedPrompt:
    """The completions of one prompt that were scored, and which of them are right."""

    example: Example
    texts: tuple[str, ...]
    right: tuple[bool, ...]

    @property
    def mixed(self) -> bool:
        """True if some completions are right and some wrong, so that they can be told apart."""
        return 0 < sum(self.right) < len(self.right)


@dataclass(frozen=True)
class BatchReport:
    """The results of a batch: the `share` of completions that were right before its lessons, and counts."""

    prompts: int
    share: float
    mixed: int
    """Groups with right and wrong completions, which alone are talked about."""
    proposed: int
    """Groups that led to a proposal."""
    unanswered: int
    """Requests without a usable reply."""


@dataclass(frozen=True)
class Practice:
    """Practice of a frozen model behind an OpenAI-compatible endpoint (Training-Free GRPO).

    For each prompt, `group` completions are sampled with the library in the prompt, and scored. For each group with
    right and wrong ones, the model summarises every attempt, compares them and states at most one lesson, then says how
    that changes the library; all proposals of the batch are merged into one plan, which is applied. No weight changes.

    Differs: the wording of the requests is ours; the task's reward decides which attempts are right (the paper also
    works without it); the same model answers all requests.

    Args:
        client: the endpoint, with `who` "the model".
        reward: scores a completion.
        group: completions of a prompt.
        temperature: at which they are sampled.
        tokens: largest number of tokens of a reply.
        at_once: requests at the same time.

    Raises:
        InputError: the address is not one of an endpoint, or a group has fewer than two completions.
    """

    client: JudgeClient
    reward: Reward
    group: int = 5
    temperature: float = 0.7
    tokens: int = 2048
    at_once: int = 4

    def __post_init__(self) -> None:
        check_url(self.client.url, "--url")
        if self.group < 2:
            raise InputError(f"a group of {self.group}", "a comparison needs two completions or more", "5 is usual")

    def batch(self, examples: Sequence[Example], library: LessonLibrary) -> tuple[LessonLibrary, BatchReport]:
        """Practise on some prompts; return the library with what they taught, and what happened."""
        asked = [example for example in examples for _ in range(self.group)]
        replies = self._each(lambda example: self._say(library.shown(example.prompt), self.temperature), asked)
        groups = self._scored(examples, replies)
        mixed = [each for each in groups if each.mixed]
        proposals = self._each(lambda each: self._proposal(each, library), mixed)
        made = [each for each in proposals if each]
        plan = self._merged(made, library) if made else []
        right = [right for each in groups for right in each.right]
        unanswered = sum(each is None for each in (*replies, *proposals)) + (plan is None)
        share = float(np.mean(right)) if right else 0.0
        return library.changed(plan or []), BatchReport(len(groups), share, len(mixed), len(made), unanswered)

    def solved(self, examples: Sequence[Example], library: LessonLibrary, samples: int = 1) -> Estimate:
        """Return the share of right completions with the library in the prompt, with its 95 % interval.

        Raises:
            InputError: no prompt got `samples` completions that could be scored.
        """
        asked = [example for example in examples for _ in range(samples)]
        replies = self._each(lambda example: self._say(library.shown(example.prompt), self.temperature), asked)
        groups = [each for each in self._scored(examples, replies) if len(each.right) == samples]
        if not groups:
            raise InputError("no prompt was answered", "an evaluation needs answers", "Look at the endpoint's log")
        return interval(np.array([np.mean(each.right) for each in groups]), samples)

    def _scored(self, examples: Sequence[Example], replies: Sequence[str | None]) -> list[AttemptedPrompt]:
        """Return the attempts at each prompt, [examples × completions] replies; those without a score left out."""
        size, found = len(replies) // max(1, len(examples)), []
        for number, example in enumerate(examples):
            texts = [text for text in replies[number * size : (number + 1) * size] if text is not None]
            scores = score(self.reward, texts, [example.columns] * len(texts), ids=[example.id] * len(texts))
            scored = [i for i in range(len(texts)) if scores.status_b[i] == "ok"]
            right = tuple(bool(scores.correct_b[i]) for i in scored)
            found.append(AttemptedPrompt(example, tuple(texts[i] for i in scored), right))
        return found

    def _proposal(self, attempts: AttemptedPrompt, library: LessonLibrary) -> list[Change]:
        """Return the changes that a group proposes, [] for none."""
        problem = str(attempts.example.prompt)
        pairs = zip(attempts.texts, attempts.right, strict=True)
        summaries = [(self._say(summary_request(problem, text, right), 0.0), right) for text, right in pairs]
        lesson = self._read(comparison_request(problem, summaries, library), read_lesson)
        return [] if lesson is None else self._read(proposal_request(lesson, library), read_changes)

    def _merged(self, proposals: Sequence[Sequence[Change]], library: LessonLibrary) -> list[Change] | None:
        """Return the plan for all proposals; None if the model gives none."""
        try:
            return self._read(merging_request(proposals, library), read_changes)
        except NoAnswer:
            return None

    def _each(self, ask: Callable[[T], R], asked: Sequence[T]) -> list[R | None]:
        """Return the reply to each request, several at the same time; None where there was no usable one."""

        def tried(one: T) -> R | None:
            try:
                return ask(one)
            except NoAnswer:
                return None

        return side_by_side(tried, asked, self.at_once)

    def _say(self, messages: Sequence[object], temperature: float) -> str:
        settings = {"temperature": temperature, "max_tokens": self.tokens}
        return self.client.tried(lambda _: self.client.complete(messages, settings))  # type: ignore[arg-type]

    def _read(self, messages: Messages, read: Callable[[str], R]) -> R:
        """Return what `read` makes of the reply; where it cannot, the model is told why and asked again."""
        settings = {"temperature": 0.0, "max_tokens": self.tokens}

        def attempt(complaint: str) -> R:
            again = [{"role": "user", "content": AGAIN.format(what=complaint[:300])}] if complaint else []
            return read(self.client.complete([*messages, *again], settings))

        return self.client.tried(attempt)
