"""A context without a model: prompts by number, completions that are right with a given probability."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from grouprl.algorithms.part import Part
from grouprl.core.batch import SOURCES, Batch
from grouprl.records.examples import Example, Prompt
from grouprl.records.prompt_history import PromptHistory, Visit
from grouprl.records.requests import RolloutRequest
from grouprl.records.rollout import Rollout
from grouprl.records.samples import ScoredSamples, to_batch
from grouprl.records.scores import Scores
from grouprl.records.text_samples import TextSamples
from grouprl.records.tokens import Tokens
from grouprl.rollout.prompt_stream import PromptStream
from grouprl.tasks.task import Task

RIGHT, WRONG, END = 7, 8, 2


class Numbers(Task):
    """`size` prompts; number i has the level i // per_level and the source 'even' or 'odd'."""

    def __init__(self, size: int | None = 8, per_level: int = 2) -> None:
        self._size, self.per_level = size, per_level

    @property
    def reward(self) -> Any:
        return lambda completion, answer, **_: float(completion == answer)

    def size(self, split: str) -> int | None:
        return self._size

    def example(self, split: str, index: int) -> Example:
        columns = {"answer": "right", "source": ("even", "odd")[index % 2]}
        return Example(f"n/{index}", f"q{index}=", columns, index // self.per_level)

    def solution(self, example: Example) -> str:
        return "right"


class CharacterPolicy:
    """The part of a policy that needs no model: letters as tokens. Tests add what else a data part calls."""

    eos_ids = (END,)
    score_dtype = torch.float64

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def encode_prompts(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        return [self.encode(p if isinstance(p, str) else p[-1]["content"]) for p in prompts]

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return ["".join(chr(i) for i in ids if i > END) for ids in rows]


class FakeContext:
    """A `grouprl.algorithms.data_part.RunContext` whose completions are sampled by coin.

    `rates` gives the chance that a completion to prompt i is right (list, or a function of (i, step)), `lengths` its
    number of tokens (a function of (i, number of the completion)). A correct completion is made of token 7, a wrong one
    of token 8; a text is 'right' or 'wrong'. `sampled` holds what was sampled, call by call.
    """

    def __init__(
        self,
        rates: Sequence[float] | Callable[[int, int], float] = (0.5,) * 8,
        *,
        task: Task | None = None,
        completions: int = 4,
        prompts: int = 4,
        steps: int = 10,
        seed: int = 0,
        max_new_tokens: int = 16,
        lengths: Callable[[int, int], int] | None = None,
        policy: Any = None,
    ) -> None:
        self.rates = rates if callable(rates) else (lambda i, step, r=tuple(rates): r[i])
        self.task = task or Numbers(None if callable(rates) else len(rates))
        self.group_size, self.prompts, self.steps, self.seed, self.step = completions, prompts, steps, seed, 0
        self.max_new_tokens, self.temperature, self.last_entropy = max_new_tokens, 1.0, None
        self.lengths = lengths or (lambda i, number: 2)
        self.policy = policy or CharacterPolicy()
        self.source, self.prompt_history = PromptStream(self.task, seed), PromptHistory()
        self.memory: dict[str, dict[str, Any]] = {}
        self._caches: dict[str, dict[str, Any]] = {}
        self.renewed: list[int] = []
        self.notes: dict[str, float] = defaultdict(float)
        self.sampled: list[TextSamples] = []

    @property
    def text(self) -> FakeContext:
        return self

    @property
    def examples(self) -> int | None:
        return self.source.size

    def rng(self, part: Part) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.step, zlib.crc32(part.name.encode())])

    def state_of(self, part: Part) -> dict[str, Any]:
        return self.memory.setdefault(f"{part.kind}.{part.name}", {})

    def cache_of(self, part: Part) -> dict[str, Any]:
        return self._caches.setdefault(f"{part.kind}.{part.name}", {})

    def renew_reference(self) -> None:
        self.renewed.append(self.step)

    def note(self, name: str, value: float, together: str = "sum") -> None:
        before = self.notes.get(name, value)
        pick = {"sum": self.notes.get(name, 0.0) + value, "least": min(before, value), "most": max(before, value)}
        self.notes[name] = pick.get(together, value)

    def take(self, count: int) -> list[RolloutRequest]:
        return self.source.requests(count, self.group_size)

    def request(self, index: int) -> RolloutRequest:
        return self.source.request(index, self.group_size)

    def sample(
        self, requests: Sequence[RolloutRequest], *, greedy: bool = False, count_failures: bool = True
    ) -> TextSamples:
        """Completions by coin, each with a coin of its own; a greedy one is right where the rate is at least ½."""
        rows = (
            [(a, -1) for a in requests]
            if greedy
            else [(a, a.first + k) for a in requests for k in range(a.completions)]
        )
        right = [self._coin(request, number) for request, number in rows]
        lengths = [min(self.lengths(a.index, n), a.max_new_tokens or self.max_new_tokens) for a, n in rows]
        ids = [(RIGHT if r else WRONG,) * n for r, n in zip(right, lengths, strict=True)]
        self.sampled.append(self.rows(rows, ids, right))
        return self.sampled[-1]

    def rows(
        self, rows: Sequence[tuple[RolloutRequest, int]], ids: Sequence[Sequence[int]], right: Sequence[bool]
    ) -> TextSamples:
        """Lay completions (token ids) to (ask, number of the completion) out as rows; log-probs are -1, entropies ½."""
        correct_b = np.array(right, dtype=bool)
        present_bt = torch.arange(max(map(len, ids)))[None] < torch.tensor([len(x) for x in ids])[:, None]
        shown = [(*self.policy.encode_prompts([a.shown])[0], *a.prefix) for a, _ in rows]
        names = list(dict.fromkeys(name for a, _ in rows for name in a.keys))
        return TextSamples(
            examples=tuple(a.example for a, _ in rows),
            prompts=tuple(a.shown for a, _ in rows),
            group_b=np.array([a.ordinal for a, _ in rows], dtype=np.int64),
            index_b=np.array([a.index for a, _ in rows], dtype=np.int64),
            sample_b=np.array([number for _, number in rows], dtype=np.int64),
            rollout=Rollout(
                Tokens(tuple(shown), tuple(tuple(x) for x in ids)),
                logp_bt=-1.0 * present_bt.double(),
                entropy_bt=0.5 * present_bt.double(),
                truncated_b=torch.zeros(len(rows), dtype=torch.bool),
            ),
            texts=tuple("right" if r else "wrong" for r in right),
            scores=Scores(correct_b.astype(float), {}, correct_b, np.array(["ok"] * len(rows)), []),
            valid_b=np.ones(len(rows), dtype=bool),
            source_b=np.array([a.source for a, _ in rows], dtype=np.int64),
            foreign_b=np.array([a.temperature not in (None, self.temperature) for a, _ in rows], dtype=bool),
            extras={f"keys.{n}": np.array([a.keys.get(n, 0) for a, _ in rows], dtype=np.int64) for n in names},
        )

    def rows_of_texts(self, requests: Sequence[RolloutRequest], texts: Sequence[str]) -> TextSamples:
        ids = [(*self.encode(text), END) for text in texts]
        made = self.rows([(a, a.first) for a in requests], ids, [text == "right" for text in texts])
        return replace(made, texts=tuple(texts), foreign_b=np.ones(len(requests), dtype=bool)).with_source(
            "demonstration"
        )

    def with_prompts(self, samples: TextSamples, prompts: Sequence[Prompt]) -> TextSamples:
        ids = tuple(tuple(x) for x in self.policy.encode_prompts(prompts))
        rollout = replace(samples.rollout, inputs=Tokens(ids, samples.rollout.response_ids))
        foreign_b = np.ones(len(samples), dtype=bool)
        return replace(samples, prompts=tuple(prompts), rollout=rollout, foreign_b=foreign_b)

    def batch(self, samples: ScoredSamples) -> Batch:
        batch = to_batch(samples, max_length=self.max_new_tokens)
        past = {name: torch.from_numpy(x) for name, x in self.prompt_history.past(samples.index_b).items()}
        clock: Mapping[str, Any] = {"step": self.step, "steps": self.steps, "last_entropy": self.last_entropy}
        return batch.replace(past=past, **clock)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.policy.encode(text))

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return self.policy.decode_all(rows)

    def finish(
        self, samples: ScoredSamples, *parts: Any, prepared: Batch | None = None, advantage: float = 0.0
    ) -> None:
        """End a step: write the visits of the rows sampled for it, let `parts` observe it, count on."""
        own = samples.source_b == SOURCES["sampled"]
        for group in dict.fromkeys(samples.group_b[own].tolist()):
            rows = np.flatnonzero(own & (samples.group_b == group))
            self.visit(int(samples.index_b[rows[0]]), samples, rows, advantage)
        for part in parts:
            part.observe(samples, prepared, self)
        self.step += 1

    def visit(self, index: int, samples: ScoredSamples, rows: np.ndarray, advantage: float) -> None:
        reward_b, right_b = samples.scores.reward_b[rows], samples.scores.correct_b[rows]
        lengths = sorted(len(samples.rollout.response_ids[i]) for i in rows[right_b])
        std = float(reward_b.std(ddof=1)) if len(rows) > 1 else 0.0
        visit = Visit(self.step, len(rows), int(right_b.sum()), float(reward_b.mean()), std, advantage, tuple(lengths))
        self.prompt_history.write(index, visit)

    def _coin(self, request: RolloutRequest, number: int) -> bool:
        rate = self.rates(request.index, self.step)
        if number < 0:
            return rate >= 0.5
        return bool(np.random.default_rng([self.seed, request.ordinal, number]).random() < rate)


def seen(context: FakeContext, index: int, right: int, completions: int, **changes: Any) -> None:
    """Write a visit of prompt `index` at this step: `right` of `completions` were right."""
    rate = right / completions
    plain = {"mean": rate, "std": 0.0, "advantage": 0.0, "lengths": (2,) * right}
    context.prompt_history.write(
        index, Visit(step=context.step, completions=completions, right=right, **(plain | changes))
    )


def judged_of(context: FakeContext, rows: ScoredSamples) -> Batch:
    """The prepared batch of rows: advantage = reward - 1/2."""
    batch = context.batch(rows)
    return batch.replace(advantage_bt=batch.broadcast(batch.reward_b - 0.5))
