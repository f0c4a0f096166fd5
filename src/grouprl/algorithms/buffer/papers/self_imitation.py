"""Stored successes that are learned from once more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.augment.resampling import groups
from grouprl.algorithms.buffer.papers.replay import completion_advantage
from grouprl.algorithms.buffer.replayed_rows import joined, own_rows
from grouprl.algorithms.data_part import Buffer, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.json_types import State
from grouprl.core.numbers import Count
from grouprl.records.joining import join
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.serialize import pack, unpack


@part("buffer")
class SelfImitation(Buffer):
    """SPEAR: good completions are gathered, and learned from once more when there are many (arXiv:2509.22601).

    Completions with a positive mean advantage are kept for `tolerate` steps, as are the mean rewards of the last
    `baselines` groups. When more than 1.5 · `size` kept completions have a reward above the 50th percentile of those
    means (the mean of the middle two of an even number), these get the advantage R - percentile (`past.advantage`), a
    random set of them joins the step (the largest power of two that is at most `size`), and the buffer is emptied. With
    a `scale` other than "none" the advantage is divided by the 50th percentile of the groups' standard deviations +
    `eps`.
    """

    size: Count = 2048
    tolerate: Count = 5
    baselines: Count = 10240
    scale: Literal["none", "sample_std", "population_std", "leave_one_out_std"] = "none"
    eps: Annotated[float, Field(ge=0)] = 1e-6
    fills = ("past.advantage",)

    def mix(self, samples: ScoredSamples | None, context: RunContext) -> ScoredSamples | None:
        """Return the new rows, and the stored ones when there are enough."""
        if samples is None:
            return None
        new = samples.with_extras(past__advantage=np.zeros(len(samples)))
        chosen, steps = self._released(context)
        return joined(new, chosen, steps, context)

    def _released(self, context: RunContext) -> tuple[list[ScoredSamples], list[int]]:
        """Return the rows above the current baseline with their new advantages, and their steps; none if there are too
        few.
        """
        store = context.state_of(self)
        if "rows" not in store:
            return [], []
        whole = unpack(store["rows"], context.task)
        adv_n = whole.scores.reward_b - middle(store["means"])
        good = np.flatnonzero(adv_n > 0)
        if self.scale != "none":
            divisor = middle(store["spreads"]) + self.eps
            adv_n = adv_n / (divisor if divisor > 0 else 1.0)
        if len(good) <= 1.5 * self.size:
            return [], []
        count = 1 << (min(len(good), self.size).bit_length() - 1)
        rows = np.sort(context.rng(self).choice(good, count, replace=False))
        steps = store["steps"][rows].tolist()
        del store["rows"], store["steps"]
        told = subset(whole, rows).with_extras(past__advantage=adv_n[rows])
        return [subset(told, np.array([i])) for i in range(count)], steps

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Keep the good completions of the step and the mean rewards of its groups; remove entries that are too old."""
        if prepared is None:
            return
        rows, where = own_rows(samples, prepared)
        if not len(rows):
            return
        store = context.state_of(self)
        found = [rows.scores.reward_b[i] for i in groups(rows, np.ones(len(rows), dtype=bool))]
        degree = 0 if self.scale == "population_std" else 1
        self._append(store, "means", [x.mean() for x in found])
        self._append(store, "spreads", [x.std(ddof=degree) if len(x) > 1 else 0.0 for x in found])
        good_b = (completion_advantage(prepared)[torch.from_numpy(where)] > 0).numpy()
        self._keep(subset(rows, good_b), context, store)

    def _append(self, store: State, name: str, numbers: list[float]) -> None:
        store[name] = torch.cat([store.get(name, torch.zeros(0)), torch.tensor(numbers)])[-self.baselines :]

    def _keep(self, new: ScoredSamples, context: RunContext, store: State) -> None:
        parts = [new.with_extras(past__advantage=np.zeros(len(new)))] if len(new) else []
        steps = np.full(len(new), context.step)
        if "rows" in store:
            young = np.flatnonzero(store["steps"].numpy() > context.step - self.tolerate)
            steps = np.concatenate([store["steps"].numpy()[young], steps])
            parts = [*_nonempty(subset(unpack(store["rows"], context.task), young)), *parts]
        if parts:
            store["rows"], store["steps"] = pack(join(parts)), torch.from_numpy(steps)
        else:
            store.pop("rows", None)

    @override
    def words(self) -> str:
        return (
            f"completions with a positive advantage are kept for {self.tolerate} steps; when more than "
            f"{int(1.5 * self.size)} of them beat the median of the last {self.baselines} group means, up to "
            f"{self.size} are learned from once more with their distance to it as advantage"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if the buffer can never fill."""
        most = self.tolerate * run.prompts * run.group_size
        if most > 1.5 * self.size:
            return []
        return [
            f"self_imitation has no effect: {self.tolerate} steps hold at most {most} completions, and more than "
            f"{1.5 * self.size:g} good ones are needed. Lower size"
        ]


def middle(value_n: Tensor) -> float:
    """Return the 50th percentile of N values: the middle one, or the mean of the middle two."""
    return float(np.percentile(value_n.numpy(), 50))


def _nonempty(samples: ScoredSamples) -> Sequence[ScoredSamples]:
    return [samples] if len(samples) else []
