"""Base classes of data parts, and the run as they see it where prompts are chosen and completions collected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from grouprl.algorithms.part import Part, RunFacts

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from grouprl.algorithms.warmup_examples import Lesson, Shown
    from grouprl.core.batch import Batch
    from grouprl.core.json_types import State
    from grouprl.policy.language.causal_lm import CausalPolicy
    from grouprl.protocols import EntropyScaling, Spaces
    from grouprl.records.examples import Example, Prompt
    from grouprl.records.prompt_history import PromptHistory
    from grouprl.records.requests import RolloutRequest
    from grouprl.records.rollout import Rollout
    from grouprl.records.samples import ScoredSamples
    from grouprl.records.text_samples import TextSamples
    from grouprl.records.token_policy import TokenPolicy
    from grouprl.tasks.task import Task

Together = Literal["sum", "mean", "least", "most"]
"""The way in which several notes of one metric in a step become one value."""


class TextContext(Protocol):
    """The texts and tokens of a run of a language model, for data parts that need them (`Part.needs_text`)."""

    @property
    def policy(self) -> CausalPolicy:
        """The language model that is trained."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a plain text."""

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each row of token ids."""

    def act(self, beginnings: Sequence[Sequence[int]], seeds: Sequence[int]) -> Rollout:
        """Sample one completion or turn after each of these rows of token ids, one seed each; nothing is played or
        scored.
        """

    def sample_texts(self, requests: Sequence[RolloutRequest]) -> TextSamples:
        """Sample a completion to each of `requests` outside the environment, unscored: reward 0, no upper limit of
        tokens."""

    def rows_of_texts(self, requests: Sequence[RolloutRequest], texts: Sequence[str]) -> TextSamples:
        """Return one row per request with `texts` as completions, scored, of source 'demonstration', log-probs
        foreign."""

    def with_prompts(self, samples: TextSamples, prompts: Sequence[Prompt]) -> TextSamples:
        """Return the rows shown under other prompts, [B], instead of their own; log-probs foreign."""


class RunContext(Protocol):
    """The run as a data part sees it, for every kind of policy.

    All randomness comes from `rng`; memory that outlives a step belongs in `state_of`.
    """

    task: Task
    prompt_history: PromptHistory

    @property
    def text(self) -> TextContext:
        """Return the run's access to texts and tokens.

        Raises:
            InputError: its policy is not a language model.
        """

    @property
    def spaces(self) -> Spaces | None:
        """Observation and action spaces of the run's environments; None: they show and read text."""

    def opponent(self, initial: float, mean: Literal["geometric", "arithmetic"] = "geometric") -> object:
        """Return a policy for `acting`: its logits are `initial` parts of the frozen reference's, the others the
        policy's; by the arithmetic mean its probabilities are.

        Raises:
            InputError: the run keeps no reference that could sample.
        """

    def judged_together(self, samples: ScoredSamples) -> ScoredSamples:
        """Return rows with new scores if the reward judges groups, which have changed; otherwise the same rows.

        Raises:
            InputError: the rows are episodes.
        """

    def reference_logp(self, samples: ScoredSamples) -> Tensor:
        """Return the log-prob of every action of rows under the frozen reference, [B,T] on the CPU, as `ref_bt` has it.

        A part that calls it declares that it reads `ref_bt`, so that the run keeps a reference.
        """

    @property
    def step(self) -> int:
        """Number of this step, from 0."""

    @property
    def steps(self) -> int:
        """The number of steps of the run."""

    @property
    def group_size(self) -> int:
        """Completions per prompt that the run asks for (`batch.group_size`)."""

    @property
    def prompts(self) -> int:
        """Prompts per rollout that the run asks for (`batch.prompts`)."""

    @property
    def examples(self) -> int | None:
        """The number of training prompts; None if they never end."""

    @property
    def max_new_tokens(self) -> int:
        """Token budget of a completion."""

    @property
    def temperature(self) -> float:
        """Sampling temperature of the run."""

    @property
    def last_entropy(self) -> float | None:
        """Mean token entropy of the completions of the previous step, in nats; None in the first step."""

    def rng(self, part: Part) -> np.random.Generator:
        """Return the random generator of `part` in this step."""

    def state_of(self, part: Part) -> State:
        """Return what `part` remembers: numbers, strings, lists, dicts, tensors; saved with every checkpoint."""

    def cache_of(self, part: Part) -> State:
        """Return what `part` keeps in memory alone, such as a model whose weights are in its store."""

    def renew_reference(self) -> None:
        """Make the policy as it is now the reference of KL terms; do nothing if no reference is kept."""

    def note(self, name: str, value: float, together: Together = "sum") -> None:
        """Log a metric of this step; `together` says how several notes of one name are combined (one per refill
        round).
        """

    def take(self, count: int) -> list[RolloutRequest]:
        """Return the next `count` prompts in the order of the stream."""

    def request(self, index: int) -> RolloutRequest:
        """Return training prompt number `index` under a new ordinal."""

    def sample(
        self, requests: Sequence[RolloutRequest], *, greedy: bool = False, count_failures: bool = True
    ) -> ScoredSamples:
        """Sample and score the completions that `requests` ask for."""

    def acting(self, policy: object) -> AbstractContextManager[None]:
        """Let another policy sample inside a block."""

    def compare(self, samples: ScoredSamples, pairs: Sequence[tuple[int, int]]) -> list[float | None]:
        """Return the chance that the first row of each pair is preferred, by the run's judge; None: it abstains.

        Raises:
            InputError: neither reward nor task compares completions.
        """

    def batch(self, samples: ScoredSamples) -> Batch:
        """Return rows as a Batch, with the history of their prompts."""


class DataPart(Part):
    """Base of the parts that decide what is collected. The methods of a part depend on its kind."""

    fills: ClassVar[tuple[str, ...]] = ()
    """Names of the Batch fields that rows have because of this part ('keys.budget', 'past.baseline' …)."""
    teaches: ClassVar[bool] = False
    """Whether the part has `lessons`."""
    reads_old: ClassVar[bool] = False
    """Whether `fill` reads log-probs of the policy before the update."""
    async_safe: ClassVar[bool] = False
    """Whether the part may choose for a step before the results of the preceding steps have arrived
    (`run.async_steps`): the history that it reads is then that much older, but just as valid.
    """

    def supplies(self) -> tuple[str, ...]:
        """Return the names of the Batch fields that rows have because of these settings: `fills` with the settings
        inserted.
        """
        return tuple(self._filled(name) for name in self.fills)

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions the part samples besides those of batch.prompts and batch.group_size; '' if none,
        "no completions, but …" if it adds rows without sampling.
        """
        return ""

    def second_models(self) -> int:
        """Return how many copies of the policy, with weights of their own, the part keeps in memory."""
        return 0

    def reference_acts(self) -> bool:
        """Return whether the part samples from the frozen reference, alone or in a mixture: ranks hold a whole copy."""
        return False

    def shown(self, example: Example, task: Task, run: RunFacts) -> list[Prompt]:
        """Return the other prompts that may stand for a prompt because of this part: with hints, budgets …"""
        return []

    def behind(self, task: Task, run: RunFacts) -> int:
        """Return by how many tokens at most the part exceeds the completion limit after a prompt."""
        return 0

    def letters(self) -> str:
        """Return the characters besides the task's that the policy reads and writes because of this part."""
        return ""

    def lessons(self, one: Shown, other: Shown, policy: TokenPolicy) -> list[Lesson]:
        """Return examples for the warm-up, made from two episodes of one prompt that the environment played itself."""
        return []

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Return the batch of the rows to train on with the fields that only this part computes (`value_bt` …)."""
        return batch

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Learn from the rows of a finished step: all that were collected, and the prepared batch of
        those trained on.
        """


class Curriculum(DataPart):
    """Base of curricula, which choose the prompts to sample."""

    def choose(self, count: int, context: RunContext) -> list[RolloutRequest]:
        """Return `count` prompts."""
        raise NotImplementedError


class Allocation(DataPart):
    """Base of allocations, which choose how many completions each prompt gets; 0 takes it out of the step."""

    def allot(self, requests: Sequence[RolloutRequest], context: RunContext) -> list[RolloutRequest]:
        """Return the requests with their numbers of completions."""
        raise NotImplementedError


class SamplingRule(DataPart):
    """Base of sampling rules, which choose how tokens are sampled, prompt by prompt."""

    mixes: ClassVar[bool] = False
    """Whether another policy samples, which `actor` returns; old log-probs are then computed by the policy."""

    def adjust(self, requests: Sequence[RolloutRequest], context: RunContext) -> list[RolloutRequest]:
        """Return the requests with their temperatures and token budgets."""
        return list(requests)

    def scaling(self, context: RunContext) -> EntropyScaling | None:
        """Return how the temperature follows the entropy token by token in this step, or None."""
        return None

    def actor(self, context: RunContext) -> object:
        """Return the policy that samples in this step, where the rule `mixes`."""
        raise NotImplementedError


class Augmentation(DataPart):
    """Base: rows that are added, or take the place of others, once the completions are scored."""

    takes: ClassVar[str] = "augment"
    """The fate of sampled rows that the part does not return: a word of `train.account`."""

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows, with some added or replaced."""
        raise NotImplementedError

    def scores_samples(self) -> bool:
        """Return whether what the part samples is scored by the task, which a task with stored rows cannot do."""
        return True


class Buffer(DataPart):
    """Base of buffers, which choose the stored rows that join the new ones."""

    takes: ClassVar[str] = "buffer"
    """The fate of new rows that the part does not return: a word of `train.account`."""

    def fresh(self, context: RunContext) -> int:
        """Return how many new prompts this step samples."""
        return context.prompts

    def mix(self, samples: ScoredSamples | None, context: RunContext) -> ScoredSamples | None:
        """Return the new rows (None: none were asked for) and stored ones; None if there are no rows."""
        raise NotImplementedError


class Pretraining(DataPart):
    """Base of parts that act once, between the warm-up and the first step, in `count` pieces; a checkpoint may come
    between.
    """

    def count(self, context: RunContext) -> int:
        """Return the number of pieces."""
        raise NotImplementedError

    def piece(self, number: int, context: RunContext) -> dict[str, float]:
        """Do piece `number` (from 0) and return its metrics."""
        raise NotImplementedError


def alphabet_of(task: Task, parts: Iterator[Part]) -> str:
    """Return the characters of a task and those that `parts` add to what the policy reads and writes; "" if unknown."""
    alphabet = task.alphabet
    if not alphabet:
        return ""
    more = "".join(part.letters() for part in data_parts(parts))
    return "".join(dict.fromkeys(alphabet + more))


def data_parts(parts: Iterator[Part]) -> list[DataPart]:
    """Return those of `parts` that decide what is collected."""
    return [part for part in parts if isinstance(part, DataPart)]
