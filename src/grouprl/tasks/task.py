"""The interface of tasks: numbered prompts, a reward, and (for a warm-up) imperfect demonstrations."""

from __future__ import annotations

import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, get_args

from grouprl.core.errors import InputError, suggest
from grouprl.core.hashing import content_number, digest
from grouprl.core.json_types import JsonObject
from grouprl.protocols import Spaces
from grouprl.records.drawing import PlaneDrawing
from grouprl.records.examples import Example, Message, Split
from grouprl.rewards import KnownExample, Reward
from grouprl.tasks.table import Table

IN_FOLDERS = re.compile(r"^(\w+:)?/(?:[^\n]*/)?(?=[^\n/]+$)")
"""The folders of an absolute path, also of a path after the name of a task."""


class Task(ABC):
    """Prompts with a reward. Subclasses provide at least `example`, `size` and `reward`; the rest has defaults.

    A class attribute can replace any property shown here (`name = "mine"`).
    """

    registered_as: ClassVar[str] = ""

    @property
    def name(self) -> str:
        """The name in messages and prompt ids: the registered one, otherwise the class's in lower case."""
        return self.registered_as or type(self).__name__.lower()

    @property
    def description(self) -> str:
        """One sentence: the first line of the class's docstring."""
        return (type(self).__doc__ or self.name).strip().splitlines()[0]

    @property
    def max_new_tokens(self) -> int:
        """A sensible budget for a completion, in tokens of a character tokenizer."""
        return 256

    @property
    def alphabet(self) -> str:
        """The characters of prompts and completions; "" if unknown."""
        return ""

    @property
    @abstractmethod
    def reward(self) -> Reward:
        """The function that scores a completion (`grouprl.rewards`)."""

    @abstractmethod
    def example(self, split: Split, index: int) -> Example:
        """Return prompt number `index` (from 0) of a split; always the same one.

        Raises:
            InputError: on an unknown split or an index beyond the size.
        """

    @abstractmethod
    def size(self, split: Split) -> int | None:
        """Return how many prompts a split has; None if it is endless."""

    def demonstration(self, example: Example, seed: int) -> str | None:
        """Return an example completion, imperfect on purpose, determined by (prompt, seed); None if the task has
        none."""
        return None

    def solution(self, example: Example) -> str | None:
        """Return a correct completion in full; None if the task has none."""
        return None

    @property
    def max_turns(self) -> int:
        """The largest number of turns of an episode; 1 for single-turn tasks."""
        return 1

    @property
    def reward_is(self) -> str:
        """The measure that rewards are, in words for a reader, such as 'minus the length'; '' for none."""
        return ""

    @property
    def doubt(self) -> tuple[str, str]:
        """The reason why success is hard to reach with the task's options, and the remedy; ('', '') for none."""
        return "", ""

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end a completion, or a turn, like an end token; they remain part of it."""
        return ()

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of the agents in observations, in a fixed order; the episode's reward is the first agent's."""
        return ("",)

    def agent_of(self, example: Example) -> int:
        """Return the number of the agent that completes a prompt, of a task without turns; the first."""
        return 0

    @property
    def spaces(self) -> Spaces | None:
        """The spaces of observations and actions, for policies over arrays; None: text."""
        return None

    @property
    def actions_per_step(self) -> int | None:
        """Number of actions that each environment takes in a step of training before it continues in the next; None:
        episodes are played to their end.
        """
        return None

    def environment(self) -> Any:
        """Return a fresh `grouprl.envs.Environment` for one episode; None for single-turn tasks.

        `max_new_tokens` is then the budget of one turn.
        """
        return None

    @property
    def needs_clock(self) -> bool:
        """True if an environment may never return, because it runs code from outside this package."""
        return False

    @property
    def started_gb(self) -> float:
        """Memory in GiB of the processes that the environments of one worker start themselves, such as a browser; 0:
        they start none.
        """
        return 0.0

    def final_answer(self, example: Example, text: str) -> str | None:
        """Return the final answer of a completion, for comparing completions with each other; None if there is none.

        The content of the last \\boxed{}, `<answer>` or `####`, otherwise the last line, without surrounding spaces.
        """
        return final_answer(text)

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms of answers that `form_of` distinguishes, plainest first: ("direct", "short", "code", "long")."""
        return ()

    def form_of(self, example: Example, text: str) -> str | None:
        """Return the form of a text, one of `forms`; None if it has none of them."""
        return None

    def hints(self, example: Example) -> tuple[str, ...]:
        """Return hints, each more detailed than the one before; () if the task has none.

        By default the first quarter, half and three quarters of the correct completion.
        """
        right = self.solution(example)
        if not right:
            return ()
        cuts = [math.ceil(len(right) * quarter / 4) for quarter in (1, 2, 3)]
        return tuple(dict.fromkeys(right[:cut] for cut in cuts if cut < len(right)))

    def with_hint(self, example: Example, hint: str) -> str | tuple[Message, ...]:
        """Return the example's prompt with a hint: as a separate paragraph, unless a task has its own form."""
        return with_paragraph(example.prompt, f"Hint: {hint}")

    def with_examples(self, example: Example, examples: Sequence[tuple[str, str]]) -> str | tuple[Message, ...]:
        """Return the example's prompt after solved examples, pairs of (prompt, completion)."""
        solved = "\n\n".join(f"{prompt}\n{completion}" for prompt, completion in examples)
        prompt = example.prompt
        if isinstance(prompt, str):
            return f"{solved}\n\n{prompt}"
        *before, last = prompt
        return (*before, Message(role=last["role"], content=f"Solved examples:\n\n{solved}\n\n{last['content']}"))

    def with_budget(self, example: Example, tokens: int) -> str | tuple[Message, ...]:
        """Return the example's prompt with a request for about this many tokens."""
        return with_paragraph(example.prompt, f"Answer the question within {tokens} tokens.")

    def with_verdict(self, example: Example, completion: str) -> str | tuple[Message, ...]:
        """Return a prompt that asks whether a completion to the prompt is right, Yes or No."""
        paragraph = f"{completion}\n\nIs this solution correct? Answer Yes or No."
        return with_paragraph(example.prompt, f"Solution: {paragraph}")

    @property
    def verdicts(self) -> tuple[str, str]:
        """The completions to `with_verdict` for a right and for a wrong solution; their first tokens differ."""
        return ("Yes", "No")

    @property
    def thought_end(self) -> str:
        """The text with which a completion ends its thought and begins its answer."""
        return "</think>"

    @property
    def ellipsis(self) -> str:
        """The text before `thought_end` if a thought is cut short."""
        return "..."

    @property
    def plan_end(self) -> str:
        """The text with which a completion ends its plan."""
        return "</plan>"

    def variants(self, example: Example) -> tuple[Example, ...]:
        """Return the example in different wordings, the original first (`columns` fit each variant's completion)."""
        return (example,)

    @property
    def tells_vectors(self) -> bool:
        """True if the policy is told its strategy by a vector, of which there is a continuum, not by a number."""
        return False

    @property
    def cases(self) -> int:
        """The number of settings of an environment that prompts differ by; 1 if they differ by nothing of the kind."""
        return 1

    def drawing(self, prompt: str, completion: str) -> PlaneDrawing | None:
        """Return a picture in the plane of what was done with a prompt, for the page of a run; None: there is none."""
        return None

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return completions that are known to be right or wrong, to test the reward before a run."""
        return ()

    def fingerprint(self) -> str:
        """Return a hash of the task's name and options, so that a resumed run can refuse a different task.

        The folders of files do not count, only their names.
        """
        return digest({"task": self.name, "options": _without_folders(self.options())})

    def options(self) -> JsonObject:
        """Return the options that the fingerprint covers."""
        return {}

    def tables(self) -> Sequence[Table]:
        """Return the rows read from data; a resumed run that refuses different data reports which of them differ."""
        return ()


def _without_folders(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(each) for each in value]
    return IN_FOLDERS.sub(r"\1", value) if isinstance(value, str) else value


def without_folder(path: str) -> str:
    """Return an absolute path without its folders, so that names, ids and seeds do not depend on the place of files."""
    return path.rstrip(os.sep).rpartition(os.sep)[2] if os.path.isabs(path) else path  # a path for each row is slow


def final_answer(text: str) -> str | None:
    """Return the content of the last \\boxed{}, `<answer>` or `####`, or the last line; None for an empty text."""
    for pattern in (r"\\boxed\{([^{}]*)\}", r"<answer>((?:(?!</?answer>).)*)</answer>", r"####\s*(.+)"):
        found = re.findall(pattern, text, flags=re.DOTALL if "answer" in pattern else 0)
        if found:
            return str(found[-1]).strip() or None
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else None


def with_paragraph(prompt: str | tuple[Message, ...], paragraph: str) -> str | tuple[Message, ...]:
    """Return a prompt with a paragraph added to its last message, or after a plain text."""
    if isinstance(prompt, str):
        return f"{prompt}\n{paragraph}\n"
    *before, last = prompt
    return (*before, Message(role=last["role"], content=f"{last['content']}\n\n{paragraph}"))


def split_of(content: str) -> Split:
    """Return the split of a content, which does not depend on the seed: one in ten is held out."""
    return "eval" if content_number(content) % 10 == 0 else "train"


def check_request(task: str, split: str, index: int, size: int | None) -> None:
    """Check the arguments of `Task.example`.

    Raises:
        InputError: on an unknown split, a negative index, or an index beyond the size.
    """
    if split not in get_args(Split):
        raise InputError(f"Task '{task}' has no split '{split}'", remedy=suggest(str(split), get_args(Split)))
    if index < 0 or (size is not None and index >= size):
        upper = "any number from 0" if size is None else f"0..{size - 1}" if size else "nothing: the split is empty"
        raise InputError(f"Prompt {index} of task '{task}', split '{split}'", f"the index can be {upper}")


def with_system(text: str, system: str | None) -> tuple[Message, ...]:
    """Return a text as chat messages: the system message, if there is one, and the user's."""
    user = Message(role="user", content=text)
    return (user,) if system is None else (Message(role="system", content=system), user)
