"""Tasks that generate their prompts: typed options, difficulty levels, splits with disjoint contents."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, model_validator

from grouprl.core.errors import InputError
from grouprl.core.hashing import generator
from grouprl.core.json_types import JsonObject
from grouprl.records.examples import Columns, Example, Split
from grouprl.rewards import KnownExample
from grouprl.tasks.options import OptionTask
from grouprl.tasks.task import check_request, split_of

MAX_SAMPLES = 5000


def too_few(task: str, split: Split) -> InputError:
    """Return the error for a task with too few different prompts to separate its splits."""
    return InputError(
        f"Task '{task}' found no prompt for the split '{split}' in {MAX_SAMPLES} samples",
        "one prompt in ten is held out, so there must be a few dozen different ones",
        "Make the prompts larger.",
    )


class GeneratedTask(OptionTask):
    """An endless task whose options are the fields of the class.

    Prompts are sampled until the hash of the content assigns one to the requested split, so for every seed the contents
    of held-out and training prompts are disjoint. A subclass writes `generate`, `demonstrate`, `solve` and `reward`,
    and lists in `levels` the option values of `level` 1, 2, ….
    """

    levels: ClassVar[tuple[Mapping[str, object], ...]] = ()

    seed: int = Field(0, description="which stream of prompts is sampled")
    level: int | None = Field(None, ge=1, description="difficulty from 1; sets the options that `levels` lists")

    ellipsis: ClassVar[str] = ""
    """The empty text."""

    @abstractmethod
    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a prompt and its columns."""

    @abstractmethod
    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Return an imperfect completion."""

    @abstractmethod
    def solve(self, example: Example) -> str:
        """Return a correct completion in the form of the best demonstrations."""

    def content(self, prompt: str) -> str:
        """Return the content that decides the split: the prompt, or the part that equivalent prompts share."""
        return prompt

    @model_validator(mode="before")
    @classmethod
    def _expand_level(cls, options: Any) -> object:
        level = options.get("level") if isinstance(options, dict) else None
        if not isinstance(level, int) or level < 1:
            return options
        if level > len(cls.levels):
            raise ValueError(f"level is {level}, but the levels are 1..{len(cls.levels)}")
        sizes = cls.levels[level - 1]
        if clash := sorted(set(sizes) & set(options)):
            raise ValueError(f"level {level} already sets {', '.join(clash)}; set only one of them")
        return {**options, **sizes}

    def example(self, split: Split, index: int) -> Example:
        """Return prompt `index` (any number from 0) of a split.

        Raises:
            InputError: on an unknown split, a negative index, or options that leave a split without prompts.
        """
        check_request(self.name, split, index, None)
        rng = generator(self.seed, self.name, split, index)
        for _ in range(MAX_SAMPLES):
            prompt, columns = self.generate(rng)
            if split_of(self.content(prompt)) == split:
                return Example(f"{self.name}/{split}/{index}", prompt, columns, self._level_number())
        raise too_few(self.name, split)

    def size(self, split: Split) -> None:
        """Return None: both splits are endless."""
        check_request(self.name, split, 0, None)

    def demonstration(self, example: Example, seed: int) -> str:
        """Return an imperfect completion, determined by (prompt.id, seed)."""
        return self.demonstrate(example, generator(seed, "demonstration", example.id))

    def solution(self, example: Example) -> str:
        """Return a correct completion."""
        return self.solve(example)

    def with_hint(self, example: Example, hint: str) -> str:
        """Return the hint, the sign that ends prompts, and the prompt: "121=47+85="."""
        return f"{hint}{str(example.prompt)[-1]}{example.prompt}"

    def with_examples(self, example: Example, examples: Sequence[tuple[str, str]]) -> str:
        """Return solved prompts and the prompt, one after the other, each completion with the sign that ends
        prompts."""
        mark = str(example.prompt)[-1]
        return "".join(f"{prompt}{completion}{mark}" for prompt, completion in examples) + str(example.prompt)

    def with_budget(self, example: Example, tokens: int) -> str:
        """Return the number in the task's own characters, the sign that ends prompts, and the prompt: "12=47+85="."""
        return f"{self._number(tokens)}{str(example.prompt)[-1]}{example.prompt}"

    def with_verdict(self, example: Example, completion: str) -> str:
        """Return the prompt, the completion, and the sign that ends prompts twice: "47+85=|022=="."""
        return f"{example.prompt}{completion}{str(example.prompt)[-1] * 2}"

    @property
    def verdicts(self) -> tuple[str, str]:
        """The digits 1 and 0, or the letters that replace them."""
        return self._number(1), self._number(0)

    @property
    def thought_end(self) -> str:
        """The bar; in an alphabet without a bar, the sign that ends prompts."""
        return next((sign for sign in "|>=" if sign in self.alphabet), "|")

    @property
    def plan_end(self) -> str:
        """The sign that also ends a thought."""
        return self.thought_end

    def _number(self, value: int) -> str:
        """Return a number in digits, or in the first signs of an alphabet without digits."""
        letters = "0" not in self.alphabet and len(self.alphabet) >= 10
        signs = self.alphabet[:10] if letters else "0123456789"
        return "".join(signs[int(digit)] for digit in str(value))

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return the correct completion of a few prompts, and wrong ones made from it."""
        examples = []
        for index in range(4):
            example = self.example("train", index)
            right = self.solve(example)
            examples += [KnownExample(right, example.columns, True), KnownExample(right + "1", example.columns, False)]
        return (*examples, KnownExample("", example.columns, False))

    def options(self) -> JsonObject:
        """Return every option with its value; the level is included through the options that it sets."""
        return {name: value for name, value in super().options().items() if name != "level"}

    def _level_number(self) -> int:
        if self.level is not None:
            return self.level
        for number, sizes in enumerate(self.levels, start=1):
            if all(getattr(self, name) == value for name, value in sizes.items()):
                return number
        return 0
