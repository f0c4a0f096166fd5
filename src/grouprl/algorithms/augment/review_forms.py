"""Forms of reviews: the request for one, its reading, and the guidance it gives to the next attempt."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from grouprl.core.answering import Answering
from grouprl.core.errors import InputError, suggest
from grouprl.core.importing import import_object
from grouprl.records.characters import PRINTABLE
from grouprl.records.episode_records import Turn
from grouprl.records.examples import Chat, Message, Prompt

AUTO = "auto"


@dataclass(frozen=True)
class Review:
    """A review: the turn (from 0) to try again from, or None if the episode is good as it is; and the advice."""

    retry: int | None
    advice: str = ""


@runtime_checkable
class ReviewForm(Protocol, metaclass=Answering):
    """A form of reviewing; a user's class with these methods is named as pkg.module:Class or file.py:Class."""

    tokens: int
    """Budget of a review, its end included."""
    letters: str
    """Characters that its prompts and reviews use besides those of the task."""

    def prompt(self, first: Prompt, turns: Sequence[Turn], reward: float) -> Prompt:
        """Return the prompt that asks for a review of an episode: given its first observation, its turns and its
        reward.
        """
        ...

    def read(self, text: str, turns: int) -> Review | None:
        """Return the content of a review of an episode of so many turns; None if it cannot be read."""
        ...

    def write(self, review: Review) -> str:
        """Return a text that `read` understands, for demonstrations."""
        ...

    def guided(self, first: Prompt, advice: Sequence[str]) -> Prompt:
        """Return the first observation with the advice of earlier reviews, the oldest first."""
        ...


class CompactReview:
    """For small models: the transcript with numbered turns and the reward, answered by "ok", "3" or "3 left".

    The number is the turn to try again from. The next attempt reads the review before its first observation, "3 left|".
    """

    tokens = 12
    letters = "0123456789 .-=?|ok"

    def prompt(self, first: Prompt, turns: Sequence[Turn], reward: float) -> Prompt:
        """Return "FIRST 0 ACTION SEEN 1 ACTION SEEN =REWARD?"."""
        told = "".join(f" {number} {turn.action}{turn.seen}" for number, turn in enumerate(turns))
        return prompt_from(first, lambda text: f"{text}{told} ={reward:g}?")

    def read(self, text: str, turns: int) -> Review | None:
        """Read "ok", or the number of an existing turn and whatever follows."""
        if text.strip() == "ok":
            return Review(None)
        found = re.fullmatch(r"(\d{1,4})(?: .*)?", text.strip(), re.DOTALL)
        return Review(int(found[1]), text.strip()) if found and int(found[1]) < turns else None

    def write(self, review: Review) -> str:
        """Return "ok", or the number and the advice."""
        return "ok" if review.retry is None else f"{review.retry} {review.advice}".strip()

    def guided(self, first: Prompt, advice: Sequence[str]) -> Prompt:
        """Return the first observation with the advice in front."""
        return reworded(first, lambda text: "".join(f"{each}|" for each in advice) + text)


class JsonReview:
    """For models that follow instructions: a JSON object with verdict, diagnosis, retry_from_step and advice."""

    tokens = 256
    letters = PRINTABLE

    def prompt(self, first: Prompt, turns: Sequence[Turn], reward: float) -> Prompt:
        """Return the transcript and the question."""
        told = "\n".join(f"Step {i}: {turn.action}\nResult: {turn.seen}" for i, turn in enumerate(turns))
        return prompt_from(first, lambda text: f"{text}\n\nAn attempt:\n{told}\nReward: {reward:g}\n\n{ASKED}\n")

    def read(self, text: str, turns: int) -> Review | None:
        """Read the object from the first brace to the last; it says "perfect", or names an existing step."""
        found = re.search(r"\{.*\}", text, re.DOTALL)
        try:
            return self._reviewed(json.loads(found[0]), turns) if found else None
        except (ValueError, RecursionError):  # no JSON, or advice with half a character, which no tokenizer can read
            return None

    def _reviewed(self, said: object, turns: int) -> Review | None:
        if not isinstance(said, dict):
            return None
        if said.get("verdict") == "perfect":
            return Review(None)
        step = said.get("retry_from_step")
        if type(step) is not int or not 0 <= step < turns:
            return None
        advice = " ".join(str(said[key]) for key in ("diagnosis", "advice") if said.get(key))
        advice.encode()
        return Review(step, advice)

    def write(self, review: Review) -> str:
        """Return the JSON object."""
        if review.retry is None:
            return json.dumps({"verdict": "perfect"})
        return json.dumps({"verdict": "retry", "retry_from_step": review.retry, "advice": review.advice})

    def guided(self, first: Prompt, advice: Sequence[str]) -> Prompt:
        """Return the first observation with the advice as paragraphs."""
        return reworded(first, lambda text: text + "".join(f"\n\nFrom an earlier attempt: {each}" for each in advice))


ASKED = (
    "Review this attempt. Answer with one JSON object: "
    '{"verdict": "perfect" or "retry", "diagnosis": what went wrong, '
    '"retry_from_step": number of the step from which to try again, "advice": what to do there instead}'
)
FORMS: dict[str, Callable[[], ReviewForm]] = {"compact": CompactReview, "json": JsonReview}


def review_form(name: str, policy: object = None) -> ReviewForm:
    """Return a form by its name or import path; "auto": json where `policy` has a chat template, compact elsewhere.

    Raises:
        InputError: an unknown name, or an object that is not a form.
    """
    if name == AUTO:
        tokenizer = getattr(policy, "tokenizer", None)
        name = "json" if getattr(tokenizer, "chat_template", None) else "compact"
    if name in FORMS:
        return FORMS[name]()
    if ":" not in name:
        raise InputError(f"unknown form of reviews '{name}'", remedy=suggest(name, [*FORMS, AUTO]))
    made = import_object(name, "form of reviews")
    form = made() if callable(made) else made
    if not isinstance(form, ReviewForm):
        wanted = "tokens, letters, prompt, read, write and guided"
        raise InputError(
            f"'{name}' is not a form of reviews",
            f"a form has {wanted} (grouprl.algorithms.augment.review_forms.ReviewForm)",
        )
    return form


def reworded(first: Prompt, change: Callable[[str], str]) -> Prompt:
    """Return a prompt with its text replaced, in chat messages that of the last one."""
    if isinstance(first, str):
        return change(first)
    *before, last = first
    changed = Message(role=last["role"], content=change(str(last["content"])))
    return Chat((*before, changed), getattr(first, "tools", ()))  # type: ignore[return-value]


def prompt_from(first: Prompt, change: Callable[[str], str]) -> Prompt:
    """Return a prompt made of the text of another one, without its other messages and tools."""
    if isinstance(first, str):
        return change(first)
    return (Message(role="user", content=change(str(first[-1]["content"]))),)
