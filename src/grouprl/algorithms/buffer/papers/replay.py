"""Choosing stored rows that join the new ones: completions of earlier policies, single completions."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.buffer.group_replay import GroupReplay
from grouprl.algorithms.buffer.replayed_rows import joined, own_rows
from grouprl.algorithms.data_part import Buffer, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.json_types import State
from grouprl.core.numbers import Count, Share
from grouprl.records.joining import join
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.serialize import pack, unpack


@part("buffer")
class PolicyReplay(GroupReplay):
    """Each group of a step comes with probability p from one of the last N policies (Mix-PPG of ReMix).

    The stored log-probs are `behavior_bt`; `old_bt` is the current policy's, computed anew. From step `reincarnation`
    on (None: never) nothing is replayed any more, and at that step the reference becomes the current policy.
    """

    probability: Share = 0.4
    policies: Count = 2
    reincarnation: Count | None = 50

    def stored(self, context: RunContext) -> int:
        """Return Binomial(prompts, p), once something is stored to replay."""
        if self.reincarnation is not None and context.step >= self.reincarnation:
            return 0
        wanted = int(context.rng(self).binomial(context.prompts, self.probability))
        return min(wanted, sum(map(len, self._policies(context))))

    def fresh(self, context: RunContext) -> int:
        """Return how many new prompts this step samples; renew the reference at the step `reincarnation`."""
        if context.step == self.reincarnation:
            context.renew_reference()
            context.state_of(self)["policies"] = []
        return super().fresh(context)

    def sample(self, count: int, context: RunContext) -> list[State]:
        """Choose a policy uniformly, then one of its groups that was not chosen yet."""
        rng, left = context.rng(self), [list(entries) for entries in self._policies(context)]
        rng.binomial(context.prompts, self.probability)  # the sample of `stored`
        chosen = []
        for _ in range(count):
            left = [entries for entries in left if entries]
            entries = left[rng.integers(len(left))]
            chosen.append(entries.pop(rng.integers(len(entries))))
        return chosen

    def reread(self, entry: State, context: RunContext) -> ScoredSamples:
        """Return the rows; their log-probs are computed anew by the trainer besides the stored ones."""
        rows = super().reread(entry, context)
        return replace(rows, foreign_b=np.ones(len(rows), dtype=bool))

    def remember(self, entries: list[State], context: RunContext) -> None:
        """Store the groups of the last `policies` steps."""
        if self.reincarnation is None or context.step < self.reincarnation:
            context.state_of(self)["policies"] = [*self._policies(context), entries][-self.policies :]

    def _policies(self, context: RunContext) -> list[list[dict[str, object]]]:
        return context.state_of(self).get("policies", [])

    @override
    def words(self) -> str:
        until = (
            ""
            if self.reincarnation is None
            else f"; at step {self.reincarnation} this ends and the reference becomes the policy"
        )
        return (
            f"each group is replayed with probability {self.probability:g} from one of the last {self.policies} "
            f"policies{until}"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Say that nothing is replayed if `probability` is 0, and that `reincarnation` comes after the last step."""
        found = ["policy_replay replays nothing: its probability is 0"] if self.probability == 0 else []
        if self.reincarnation is not None and self.reincarnation >= run.steps:
            found.append(
                f"policy_replay.reincarnation = {self.reincarnation} never comes: the run has {run.steps} steps"
            )
        return found


@part("buffer")
class SampleBuffer(Buffer):
    """Single completions with an advantage are stored with it and sampled again in proportion to |A| (Skywork R1V2's
    SSB).

    `share` replayed completions for each new one join the step, chosen without repetition among the last `capacity`
    stored; each has the advantage it got in its own group as `past.advantage` (see `stored_advantage`) and should not
    count in group statistics (see `replay_apart`).
    """

    share: Annotated[float, Field(ge=0)] = 0.25
    capacity: Count = 1024
    says = (
        "{share:g} stored completions join for each new one, sampled in proportion to |advantage| from the last "
        "{capacity} that had one"
    )
    fills = ("past.advantage",)

    def mix(self, samples: ScoredSamples | None, context: RunContext) -> ScoredSamples | None:
        """Return the new rows and the replayed ones."""
        if samples is None:
            return None
        new = samples.with_extras(past__advantage=np.zeros(len(samples)))
        store = context.state_of(self)
        count = min(round(self.share * len(new)), len(store["steps"]) if store else 0)
        if not count:
            return joined(new, [], [], context)
        weight_n = store["size"].numpy()
        rows = np.sort(context.rng(self).choice(len(weight_n), count, replace=False, p=weight_n / weight_n.sum()))
        old = subset(unpack(store["rows"], context.task), rows)
        return joined(new, [subset(old, np.array([i])) for i in range(count)], store["steps"][rows].tolist(), context)

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Store the new completions whose advantage is not zero."""
        if prepared is None:
            return
        rows, where = own_rows(samples, prepared)
        adv_b = completion_advantage(prepared)[torch.from_numpy(where)].double()
        alive_b = (adv_b != 0).numpy()
        if not alive_b.any():
            return
        adv_n, store = adv_b.numpy()[alive_b], context.state_of(self)
        new = subset(rows, alive_b).with_extras(past__advantage=adv_n)
        whole = join([unpack(store["rows"], context.task), new]) if store else new
        steps = torch.full((len(new),), context.step)
        keep = np.arange(len(whole))[-self.capacity :]
        store["steps"] = torch.cat([store["steps"], steps] if store else [steps])[keep]
        store["rows"] = pack(subset(whole, keep))
        store["size"] = torch.from_numpy(np.abs(whole.extras["past.advantage"][keep]))

    def idle(self, run: RunFacts) -> list[str]:
        """Say that nothing is replayed if `share` is less than one completion."""
        if round(self.share * run.prompts * run.group_size) == 0:
            return [f"sample_buffer has no effect: {self.share:g} of the new completions is less than one"]
        return []


def completion_advantage(prepared: Batch) -> Tensor:
    """Return [B] mean advantage over each row's active tokens; 0 where a row has none."""
    active_bt = prepared.active_bt
    adv_bt = torch.where(active_bt, prepared.need("advantage_bt", "a replay store"), 0)
    return adv_bt.sum(1) / active_bt.sum(1).clamp(min=1)
