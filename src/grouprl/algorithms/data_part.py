"""What a data part works with: the run as it looks from the place where questions are chosen and answers collected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from grouprl.algorithms.lessons import Lesson, Shown
from grouprl.algorithms.part import Part, RunFacts
from grouprl.core.batch import Batch
from grouprl.protocols import EntropyScaling
from grouprl.rollout.history import Ledger
from grouprl.rollout.requests import Ask, Prompt
from grouprl.rollout.sampler import Rollout
from grouprl.rollout.samples import Collected
from grouprl.tasks.task import Question, Task

Together = Literal["sum", "mean", "least", "most"]
"""What several notes of one metric make of a step."""


class Desk(Protocol):
    """The run's side of a data part. Everything random comes from `rng`, everything remembered lies in `store`."""

    task: Task
    ledger: Ledger
    policy: Any
    """The policy that is trained (`grouprl.policy.CausalPolicy`)."""

    @property
    def step(self) -> int:
        """Number of this step, from 0."""

    @property
    def steps(self) -> int:
        """How many steps the run has."""

    @property
    def answers(self) -> int:
        """Answers per question that the run asks for (`batch.group`)."""

    @property
    def prompts(self) -> int:
        """Questions per rollout that the run asks for (`batch.prompts`)."""

    @property
    def questions(self) -> int | None:
        """How many training questions there are; None when they never end."""

    @property
    def max_new_tokens(self) -> int:
        """Token budget of an answer."""

    @property
    def temperature(self) -> float:
        """Sampling temperature of the run."""

    @property
    def last_entropy(self) -> float | None:
        """Mean token entropy of the answers of the previous step, in nats; None in the first step."""

    def rng(self, part: Part) -> np.random.Generator:
        """Return the random generator of `part` in this step."""

    def store(self, part: Part) -> dict[str, Any]:
        """Return what `part` remembers: numbers, strings, lists, dicts, tensors; saved with every checkpoint."""

    def held(self, part: Part) -> dict[str, Any]:
        """Return what `part` keeps in memory alone, such as a model whose weights lie in its store."""

    def renew_reference(self) -> None:
        """Make the policy as it is now the reference of KL terms; nothing where no reference is kept."""

    def note(self, name: str, value: float, together: Together = "sum") -> None:
        """Log a metric of this step; `together` says what several notes of one name make (one per refill round)."""

    def take(self, count: int) -> list[Ask]:
        """Return the next `count` questions in the order of the stream."""

    def ask(self, index: int) -> Ask:
        """Return training question number `index` under a new ordinal."""

    def draw(self, asks: Sequence[Ask], *, greedy: bool = False, count_failures: bool = True) -> Collected:
        """Draw and score the answers that `asks` ask for."""

    def act(self, beginnings: Sequence[Sequence[int]], seeds: Sequence[int]) -> Rollout:
        """Draw one answer or turn behind each of these token ids, one seed each; nothing is acted out or scored."""

    def acting(self, policy: Any) -> AbstractContextManager[None]:
        """Let another policy draw, inside a block, what `draw` and `spoken` are asked for."""

    def spoken(self, asks: Sequence[Ask]) -> Collected:
        """Draw an answer to each of `asks` beside the environment, unscored: reward 0, no upper limit of tokens."""

    def written(self, asks: Sequence[Ask], texts: Sequence[str]) -> Collected:
        """Return one row per ask with `texts` as answers, scored, of source 'demonstration', log-probs foreign."""

    def under(self, collected: Collected, prompts: Sequence[Prompt]) -> Collected:
        """Return the rows shown under other prompts, [B], instead of their own; log-probs foreign."""

    def batch(self, collected: Collected) -> Batch:
        """Lay rows out as a Batch, with the past of their questions."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a plain text."""

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each row of token ids."""


class DataPart(Part):
    """Base of the parts that decide what is collected. Which methods it has says its kind."""

    teaches: ClassVar[bool] = False
    """Whether the part has `lessons`."""
    ahead: ClassVar[bool] = False
    """Whether the part may choose for a step while the results of the steps before it are still on their way
    (`run.async_steps`): what it reads of the past is then that much older, and means the same."""

    def supplies(self) -> tuple[str, ...]:
        """Names of the Batch fields that rows have because of this part ('keys.budget', 'past.baseline' …)."""
        return ()

    def further(self, run: RunFacts) -> str:
        """Say how many answers the part draws besides those of batch.prompts and batch.group; '' if none."""
        return ""

    def shown(self, question: Question, task: Task, run: RunFacts) -> list[Prompt]:
        """Return the other prompts that a question may be asked under because of this part: with hints, budgets …"""
        return []

    def behind(self, task: Task, run: RunFacts) -> int:
        """Most tokens by which this part exceeds the answer limit behind a prompt."""
        return 0

    def letters(self) -> str:
        """Return the characters beside the task's that the policy reads and writes because of this part."""
        return ""

    def lessons(self, one: Shown, other: Shown, policy: Any) -> list[Lesson]:
        """Return what a warm-up shows besides two episodes of one question that the environment acted in itself."""
        return []

    def fill(self, batch: Batch, collected: Collected, desk: Desk) -> Batch:
        """Return the batch of the rows to train on with what only this part can compute (`value_bt` …)."""
        return batch

    def observe(self, collected: Collected, judged: Batch | None, desk: Desk) -> None:
        """See the rows of a finished step: all that were collected, and the judged batch of those trained on."""


class Curriculum(DataPart):
    """Which questions are asked."""

    def choose(self, count: int, desk: Desk) -> list[Ask]:
        """Return `count` questions."""
        raise NotImplementedError


class Allocation(DataPart):
    """How many answers each question gets; none takes it out of the step."""

    def allot(self, asks: Sequence[Ask], desk: Desk) -> list[Ask]:
        """Return the asks with their numbers of answers."""
        raise NotImplementedError


class SamplingRule(DataPart):
    """How tokens are drawn, question by question."""

    def adjust(self, asks: Sequence[Ask], desk: Desk) -> list[Ask]:
        """Return the asks with their temperatures and token budgets."""
        return list(asks)

    def scaling(self, desk: Desk) -> EntropyScaling | None:
        """Return how the temperature follows the entropy token by token in this step, or None."""
        return None


class Exploration(DataPart):
    """What else is drawn or put in place once the answers are scored."""

    takes: ClassVar[str] = "exploration"
    """What becomes of drawn rows that the part does not return: a word of `train.account`."""

    def __call__(self, collected: Collected, desk: Desk) -> Collected:
        """Return the rows with more, fewer or others."""
        raise NotImplementedError


class Replay(DataPart):
    """Which stored rows join the new ones."""

    takes: ClassVar[str] = "replay"
    """What becomes of new rows that the part does not return: a word of `train.account`."""

    def fresh(self, desk: Desk) -> int:
        """How many new questions this step asks."""
        return desk.prompts

    def mix(self, collected: Collected | None, desk: Desk) -> Collected | None:
        """Return the new rows (None: none were asked for) and stored ones; None when there is nothing at all."""
        raise NotImplementedError


class Prelude(DataPart):
    """What happens once, between the warm-up and the first step, in `count` pieces that a checkpoint can part."""

    def count(self, desk: Desk) -> int:
        """How many pieces there are."""
        raise NotImplementedError

    def piece(self, number: int, desk: Desk) -> dict[str, float]:
        """Do piece `number` (from 0); returns its metrics."""
        raise NotImplementedError


def alphabet_of(task: Task, parts: Iterator[Part]) -> str:
    """Return the characters of a task and of what `parts` let the policy read and write; "" when unknown."""
    if not task.alphabet:
        return ""
    more = "".join(part.letters() for part in data_parts(parts))
    return "".join(dict.fromkeys(task.alphabet + more))


def data_parts(parts: Iterator[Part]) -> list[DataPart]:
    """Return those of `parts` that decide what is collected."""
    return [part for part in parts if isinstance(part, DataPart)]
