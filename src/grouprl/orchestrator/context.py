"""The run's side of the data parts: see `grouprl.algorithms.data_part.RunContext` for the meaning of each name."""

from __future__ import annotations

import math
import statistics
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from grouprl.algorithms.data_part import Together, data_parts
from grouprl.algorithms.method import Method
from grouprl.algorithms.part import Part
from grouprl.algorithms.stage_checks import METRICS, call
from grouprl.config.run import Config
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.json_types import State
from grouprl.orchestrator.accounting import Round, SampledCounts, StepRollout
from grouprl.orchestrator.text_context import SessionTexts
from grouprl.policy.language.blended_policy import BlendedPolicy, Mean
from grouprl.protocols import PolicyInputs, SampleSource, Spaces
from grouprl.records.prompt_history import PromptHistory
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, to_batch
from grouprl.records.text_samples import as_text
from grouprl.rewards.judging.comparing import ComparedPair, comparing, judges_groups
from grouprl.rewards.validation import VerdictReward
from grouprl.rollout.prompt_stream import PromptStream
from grouprl.rollout.quarantine import OFFERS
from grouprl.rollout.row_source import ScoringSource
from grouprl.tasks.task import Task

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy

_TOGETHER: dict[Together, Callable[[Sequence[float]], float]] = {
    "sum": math.fsum,
    "mean": statistics.fmean,
    "least": min,
    "most": max,
}


class SessionContext:
    """The prompts, completions and memory of one run.

    `clock` returns the number of the current step; `renew_reference` makes the current policy the reference of KL
    terms; `initial_policy` returns this reference as a policy to sample from, `reference_logp` the log-probs of rows
    under it.
    """

    def __init__(
        self,
        config: Config,
        method: Method,
        task: Task,
        source: PromptStream,
        row_source: ScoringSource,
        clock: Callable[[], int],
        renew_reference: Callable[[], None],
        initial_policy: Callable[[], CausalPolicy],
        reference_logp: Callable[[PolicyInputs], torch.Tensor],
    ) -> None:
        self.config, self.method, self.task = config, method, task
        self.source, self.row_source, self._clock = source, row_source, clock
        self.renew_reference, self._initial_policy = renew_reference, initial_policy
        self._reference_logp = reference_logp
        self.say: Callable[[str], None] = lambda sentence: None
        """Shows a sentence to the user."""
        self.prompt_history = PromptHistory()
        self.memory: dict[str, State] = {}
        self._caches: dict[str, State] = {}
        self.last_entropy: float | None = None
        self.sample_source: SampleSource[Round, StepRollout]
        """The source of the rows of a step; set when the run is assembled."""
        self._chosen_for: int | None = None
        self._notes: dict[str, tuple[Together, list[float]]] = {}
        self._counts = SampledCounts()
        reads_past = any(name.startswith("past.") for name in method.needs())
        self.keeps_history = reads_past or bool(data_parts(method.parts()))
        """Whether visits of prompts are recorded, because some part reads them."""

    @property
    def step(self) -> int:
        """The number of this step, from 0; while prompts are chosen ahead, the step that they are chosen for."""
        return self._clock() if self._chosen_for is None else self._chosen_for

    @contextmanager
    def at(self, step: int) -> Iterator[None]:
        """Choose prompts for a later step within the block."""
        self._chosen_for = step
        try:
            yield
        finally:
            self._chosen_for = None

    @property
    def steps(self) -> int:
        """The number of steps of the run."""
        return self.config.steps

    @property
    def group_size(self) -> int:
        """The number of completions per prompt, as configured."""
        return self.config.batch.group_size

    @property
    def prompts(self) -> int:
        """The number of prompts per rollout, as configured."""
        return self.config.batch.prompts

    @property
    def examples(self) -> int | None:
        """The number of training prompts; None if they never end."""
        return self.source.size

    @property
    def max_new_tokens(self) -> int:
        """The token budget of a completion."""
        return self.row_source.settings.max_new_tokens

    @property
    def temperature(self) -> float:
        """The sampling temperature of the run."""
        return self.config.sampling.temperature

    def rng(self, part: Part) -> np.random.Generator:
        """Return the random generator of `part` in this step."""
        return np.random.default_rng([self.config.seed, self.step, zlib.crc32(part.name.encode())])

    def state_of(self, part: Part) -> State:
        """Return the state that `part` stores in checkpoints."""
        return self.memory.setdefault(f"{part.kind}.{part.name}", {})

    def cache_of(self, part: Part) -> State:
        """Return the data that `part` keeps in memory only."""
        return self._caches.setdefault(f"{part.kind}.{part.name}", {})

    def note(self, name: str, value: float, together: Together = "sum") -> None:
        """Log `value` as the metric `name` of this step, together with what was noted under that name before."""
        if not math.isfinite(value):
            raise InputError(
                f"{value} is noted as the metric '{name}'", METRICS, "Note nothing in a step without a value"
            )
        self._notes.setdefault(name, (together, []))[1].append(float(value))

    def read_notes(self) -> dict[str, float]:
        """Return the notes of this step and forget them."""
        for name, value in self.read_reward().items():
            self.note(name, value)
        taken, self._notes = self._notes, {}
        return {name: _TOGETHER[together](values) for name, (together, values) in taken.items()}

    def read_reward(self) -> Mapping[str, float]:
        """Return metrics of what the reward did since the last call, such as a judge's costs, and forget them."""
        reward = self.row_source.reward
        return reward.notes() if isinstance(reward, VerdictReward) else {}

    def read_sampled_counts(self) -> SampledCounts:
        """Return the counts of samples since the last call, and reset them."""
        taken, self._counts = self._counts, SampledCounts()
        return taken

    def take(self, count: int) -> list[RolloutRequest]:
        """Return the next `count` prompts in the order of the stream."""
        return self.source.requests(count, self.group_size)

    def request(self, index: int) -> RolloutRequest:
        """Return training prompt number `index` under a new ordinal."""
        return self.source.request(index, self.group_size)

    def set_aside(self, samples: ScoredSamples) -> None:
        """Quarantine the prompts whose environment hung or ended its process, and release those that succeeded."""
        lost_b, aside = samples.scores.gone_b, self.source.aside
        if not lost_b.any() and not len(aside):
            return
        lost = set(samples.index_b[lost_b].tolist())
        names = dict(zip(samples.index_b.tolist(), (example.id for example in samples.examples), strict=True))
        # Reversed, so that the first problem of a prompt is the one that stays.
        whats = {p.sample_id.rpartition("#")[0]: p.what for p in reversed(samples.scores.problems)}
        for index in dict.fromkeys(samples.index_b.tolist()):
            if index not in lost:
                if aside.came_through(index) is not None:
                    self.say(f"the prompt {names[index]} succeeded when it was sampled again")
                continue
            own = aside.failed(index, names[index], whats.get(names[index], ""), self.source.position)
            self.note("prompts_set_aside", 1.0)
            later = (
                "it is not sampled again" if own.times >= OFFERS else ("it is set aside and will be sampled once more")
            )
            self.say(f"the completions of the prompt {names[index]} are lost: {own.what}; {later}")

    def sample(
        self, requests: Sequence[RolloutRequest], *, greedy: bool = False, count_failures: bool = True
    ) -> ScoredSamples:
        """Sample and score the completions that `requests` ask for, by the method's sampling rule."""
        rule = None if greedy else self.method.sampling
        scaling = None if rule is None else call(rule, rule.scaling, self)
        mixing = rule if rule is not None and rule.mixes else None
        with nullcontext() if mixing is None else self.acting(call(mixing, mixing.actor, self)):
            samples = self.row_source.rows(requests, greedy=greedy, scaling=scaling, count_failures=count_failures)
        if mixing is not None:
            samples = replace(samples, foreign_b=np.ones(len(samples), dtype=bool))
        if self.row_source.samples:
            self._counts.add(samples)
        return samples

    @contextmanager
    def acting(self, policy: object) -> Iterator[None]:
        """Sample with another policy within the block."""
        with self.row_source.acting(policy):
            yield

    def opponent(self, initial: float, mean: Mean = "geometric") -> object:
        """Return a policy for `acting`, mixed of the frozen reference and the policy."""
        if initial == 0:
            return self.text.policy
        frozen = self._initial_policy()
        return frozen if initial == 1 else BlendedPolicy(self.text.policy, frozen, initial, mean)

    def reference_logp(self, samples: ScoredSamples) -> torch.Tensor:
        """Return the log-probs of rows under the frozen reference, [B,T]."""
        return self._reference_logp(samples.inputs)

    @property
    def text(self) -> SessionTexts:
        """The run's access to texts and tokens; InputError if its policy is not a language model."""
        return SessionTexts(self.row_source, self._counts)

    @property
    def spaces(self) -> Spaces | None:
        """The spaces of the run's environments; None: text."""
        return self.row_source.spaces_of(self.task)

    def judged_together(self, samples: ScoredSamples) -> ScoredSamples:
        """Return rows with new scores if the reward judges groups, which have changed; otherwise the same rows.

        Raises:
            InputError: the rows are episodes.
        """
        if not judges_groups(self.row_source.reward):
            return samples
        return self.row_source.judged_together(as_text(samples))

    def compare(self, samples: ScoredSamples, pairs: Sequence[tuple[int, int]]) -> list[float | None]:
        """Return the chance that the first row of each pair is preferred by the reward; None: it abstains.

        Raises:
            InputError: the reward compares nothing.
        """
        judge = comparing(self.row_source.reward)
        if judge is None:
            raise InputError(
                "the run's reward scores single completions",
                "a method with by: judge needs one that compares two",
                "Set reward.judge.compare, choose a task that compares (duels), or set by: reward",
            )
        rows = as_text(samples)
        return judge.compare(
            [ComparedPair(rows.prompts[i], rows.texts[i], rows.texts[j], rows.examples[i].columns) for i, j in pairs]
        )

    def batch(self, samples: ScoredSamples) -> Batch:
        """Lay rows out as a Batch, with the history of their prompts and the run's clock."""
        batch = to_batch(samples, max_length=self.max_new_tokens * self.task.max_turns)
        past = {
            name: torch.from_numpy(x).to(batch.dtype) for name, x in self.prompt_history.past(samples.index_b).items()
        }
        clock = {"step": self.step, "steps": self.steps, "last_entropy": self.last_entropy}
        return batch.replace(past=past | dict(batch.past), **clock)

    def observe(self, samples: ScoredSamples, prepared: Batch | None) -> None:
        """Show a finished step to every data part."""
        for part in data_parts(self.method.parts()):
            call(part, part.observe, samples, prepared, self)

    def state(self) -> State:
        """Return the state of the run's data parts for a checkpoint: plain containers and tensors."""
        state = {"ledger": self.prompt_history.state(), "memory": self.memory, "last_entropy": self.last_entropy}
        return {**state, **self.sample_source.state()}

    def restore(self, state: State) -> None:
        """Continue from `state`."""
        self.prompt_history.restore(state["ledger"])
        self.memory, self.last_entropy = state["memory"], state["last_entropy"]
        self.sample_source.restore(state)
