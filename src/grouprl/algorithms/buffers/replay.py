"""Which stored rows join the new ones: whole groups of earlier steps, answers of earlier policies, single answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from grouprl.algorithms.data_part import Desk, Replay
from grouprl.algorithms.exploration.resampling import drawn_rows, groups
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.rollout.samples import Collected, join, subset
from grouprl.rollout.serialize import pack, unpack

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


def own_rows(collected: Collected, judged: Batch) -> tuple[Collected, np.ndarray]:
    """Return the rows drawn for this step under the policy's own log-probs, and which of `collected` they are."""
    where = np.flatnonzero(drawn_rows(collected))
    rows = subset(collected, where)
    if not rows.foreign_b.any():
        return rows, where
    width, old_bt = judged.size[1], judged.need("old_bt", "a replay store")[torch.from_numpy(where)]
    foreign_b, logp_bt = torch.from_numpy(rows.foreign_b), rows.rollout.logp_bt[:, :width].clone()
    logp_bt[foreign_b] = old_bt[foreign_b].to(logp_bt)
    rollout = replace(rows.rollout, logp_bt=logp_bt, entropy_bt=rows.rollout.entropy_bt[:, :width])
    return replace(rows, rollout=rollout, foreign_b=np.zeros(len(rows), dtype=bool)), where


def joined(collected: Collected | None, stored: Sequence[Collected], steps: Sequence[int], desk: Desk) -> Collected:
    """Put stored rows behind the new ones and log their share and their age, `steps` the step each block is from."""
    old = [block.with_source("replay") for block in stored]
    rows = sum(len(block) for block in old)
    whole = rows + (0 if collected is None else len(collected))
    desk.note("replayed_fraction", rows / max(1, whole))
    if rows:
        ages = [(desk.step - step) * len(block) for step, block in zip(steps, old, strict=True)]
        desk.note("replay_age", sum(ages) / rows)
    return join([*([] if collected is None else [collected]), *old])


class GroupReplay(Replay):
    """Base: some of a step's questions are not asked but taken, answers and all, from earlier steps."""

    def stored(self, desk: Desk) -> int:
        """How many questions of this step are stored ones."""
        raise NotImplementedError

    def draw(self, count: int, desk: Desk) -> list[dict[str, Any]]:
        """Choose `count` groups: {'step': number of their step, 'rows': packed rows}."""
        raise NotImplementedError

    def fresh(self, desk: Desk) -> int:
        """How many new questions this step asks."""
        return desk.prompts - self.stored(desk)

    def mix(self, collected: Collected | None, desk: Desk) -> Collected | None:
        """Return the new rows and the stored groups."""
        chosen = self.draw(self.stored(desk), desk)
        if collected is None and not chosen:
            return None
        return joined(collected, [self.reread(e, desk) for e in chosen], [int(e["step"]) for e in chosen], desk)

    def reread(self, entry: dict[str, Any], desk: Desk) -> Collected:
        """Return the rows of a stored group."""
        return unpack(entry["rows"], desk.task)

    def observe(self, collected: Collected, judged: Batch | None, desk: Desk) -> None:
        """Store the groups that were drawn for this step."""
        if judged is None:
            return
        rows, _ = own_rows(collected, judged)
        found = [subset(rows, index) for index in groups(rows, np.ones(len(rows), dtype=bool))]
        self.remember([{"step": desk.step, "rows": pack(g)} for g in found if self.worth(g)], desk)

    def worth(self, group: Collected) -> bool:
        """Whether a group is stored at all."""
        return True

    def remember(self, entries: list[dict[str, Any]], desk: Desk) -> None:
        """Store the groups of a finished step."""
        raise NotImplementedError


@part("replay")
class RolloutReplay(GroupReplay):
    """A share of each step's groups comes from a first-in-first-out buffer (rollout replay, arXiv:2506.05316).

    `fresh_share` of the questions are asked anew, the others' groups are chosen uniformly among the latest group of
    each of the last `capacity` questions. Their log-probs are those of the policy that drew them, and so the
    denominators of the ratios. `mixed_only`: groups whose answers are all right or all wrong are not stored.
    `first_epoch`: a finite set of questions is asked once before anything is replayed. Until the buffer has enough
    groups, new questions take their place.
    """

    fresh_share: Share = 0.5
    capacity: Count = 512
    mixed_only: bool = True
    first_epoch: bool = True

    def stored(self, desk: Desk) -> int:
        """(1 - fresh_share) of the questions, once the buffer has them."""
        if self.first_epoch and desk.questions is not None and desk.step * desk.prompts < desk.questions:
            return 0
        return min(int((1 - self.fresh_share) * desk.prompts), len(self._entries(desk)))

    def draw(self, count: int, desk: Desk) -> list[dict[str, Any]]:
        """Choose uniformly, each group once."""
        entries = self._entries(desk)
        return [entries[i] for i in sorted(desk.rng(self).choice(len(entries), count, replace=False))] if count else []

    def worth(self, group: Collected) -> bool:
        """Groups with right and wrong answers."""
        return not self.mixed_only or len(set(group.scores.correct_b.tolist())) == 2

    def remember(self, entries: list[dict[str, Any]], desk: Desk) -> None:
        """The latest group of each question, the latest `capacity` of them."""
        latest = {_index(entry): entry for entry in entries}
        before = [entry for entry in self._entries(desk) if _index(entry) not in latest]
        desk.store(self)["entries"] = [*before, *latest.values()][-self.capacity :]

    def _entries(self, desk: Desk) -> list[dict[str, Any]]:
        return desk.store(self).get("entries", [])

    def words(self) -> str:
        """Describe."""
        what = "that had right and wrong answers" if self.mixed_only else "asked"
        return (
            f"{self.fresh_share:.0%} of each step's questions are asked anew; the other groups come from the last "
            f"{self.capacity} questions {what}, weighed by the log-probs they were drawn with"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Nothing is replayed."""
        if int((1 - self.fresh_share) * run.prompts) == 0:
            return [
                f"rollout_replay has no effect: {self.fresh_share:g} of {run.prompts} questions leaves none to replay"
            ]
        if self.first_epoch and run.questions is not None and run.steps * run.prompts <= run.questions:
            return [f"rollout_replay has no effect: the run ends within its first pass of {run.questions} questions"]
        return []


def _index(entry: dict[str, Any]) -> int:
    return int(entry["rows"]["index_b"][0])


@part("replay")
class PolicyReplay(GroupReplay):
    """Each group of a step comes with probability p from one of the last N policies (Mix-PPG of ReMix).

    The stored log-probs are `behavior_bt`; `old_bt` is the current policy's, computed anew. From step `reincarnation`
    on (None: never) nothing is replayed any more, and at that step the reference becomes the current policy.
    """

    probability: Share = 0.4
    policies: Count = 2
    reincarnation: Count | None = 50

    def stored(self, desk: Desk) -> int:
        """Binomial(prompts, p), once there is something to replay."""
        if self.reincarnation is not None and desk.step >= self.reincarnation:
            return 0
        wanted = int(desk.rng(self).binomial(desk.prompts, self.probability))
        return min(wanted, sum(map(len, self._policies(desk))))

    def fresh(self, desk: Desk) -> int:
        """How many new questions this step asks; renews the reference when its step has come."""
        if desk.step == self.reincarnation:
            desk.renew_reference()
            desk.store(self)["policies"] = []
        return super().fresh(desk)

    def draw(self, count: int, desk: Desk) -> list[dict[str, Any]]:
        """Choose a policy uniformly, then one of its groups that was not chosen yet."""
        rng, left = desk.rng(self), [list(entries) for entries in self._policies(desk)]
        rng.binomial(desk.prompts, self.probability)  # the draw of `stored`
        chosen = []
        for _ in range(count):
            left = [entries for entries in left if entries]
            entries = left[rng.integers(len(left))]
            chosen.append(entries.pop(rng.integers(len(entries))))
        return chosen

    def reread(self, entry: dict[str, Any], desk: Desk) -> Collected:
        """The rows with log-probs that the trainer computes anew beside the stored ones."""
        rows = super().reread(entry, desk)
        return replace(rows, foreign_b=np.ones(len(rows), dtype=bool))

    def remember(self, entries: list[dict[str, Any]], desk: Desk) -> None:
        """The groups of the last `policies` steps."""
        if self.reincarnation is None or desk.step < self.reincarnation:
            desk.store(self)["policies"] = [*self._policies(desk), entries][-self.policies :]

    def _policies(self, desk: Desk) -> list[list[dict[str, Any]]]:
        return desk.store(self).get("policies", [])

    def words(self) -> str:
        """Describe."""
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
        """Nothing is replayed, or the reincarnation never comes."""
        found = ["policy_replay replays nothing: its probability is 0"] if self.probability == 0 else []
        if self.reincarnation is not None and self.reincarnation >= run.steps:
            found.append(
                f"policy_replay.reincarnation = {self.reincarnation} never comes: the run has {run.steps} steps"
            )
        return found


@part("replay")
class SampleBuffer(Replay):
    """Single answers with an advantage are stored with it and drawn again in proportion to |A| (Skywork R1V2's SSB).

    `share` replayed answers for each new one join the step, chosen without repetition among the last `capacity`
    stored; each has the advantage it got in its own group as `past.advantage` (see `stored_advantage`) and should not
    count in group statistics (see `replay_apart`).
    """

    share: Annotated[float, Field(ge=0)] = 0.25
    capacity: Count = 1024

    def supplies(self) -> tuple[str, ...]:
        """Batch fields."""
        return ("past.advantage",)

    def mix(self, collected: Collected | None, desk: Desk) -> Collected | None:
        """Return the new rows and the replayed ones."""
        if collected is None:
            return None
        new = collected.with_extras(past__advantage=np.zeros(len(collected)))
        store = desk.store(self)
        count = min(round(self.share * len(new)), len(store["steps"]) if store else 0)
        if not count:
            return joined(new, [], [], desk)
        weight_n = store["size"].numpy()
        rows = np.sort(desk.rng(self).choice(len(weight_n), count, replace=False, p=weight_n / weight_n.sum()))
        old = subset(unpack(store["rows"], desk.task), rows)
        return joined(new, [subset(old, np.array([i])) for i in range(count)], store["steps"][rows].tolist(), desk)

    def observe(self, collected: Collected, judged: Batch | None, desk: Desk) -> None:
        """Store the new answers whose advantage is not zero."""
        if judged is None:
            return
        rows, where = own_rows(collected, judged)
        adv_b = answer_advantage(judged)[torch.from_numpy(where)].double()
        alive_b = (adv_b != 0).numpy()
        if not alive_b.any():
            return
        adv_n, store = adv_b.numpy()[alive_b], desk.store(self)
        new = subset(rows, alive_b).with_extras(past__advantage=adv_n)
        whole = join([unpack(store["rows"], desk.task), new]) if store else new
        steps = torch.full((len(new),), desk.step)
        keep = np.arange(len(whole))[-self.capacity :]
        store["steps"] = torch.cat([store["steps"], steps] if store else [steps])[keep]
        store["rows"] = pack(subset(whole, keep))
        store["size"] = torch.from_numpy(np.abs(whole.extras["past.advantage"][keep]))

    def words(self) -> str:
        """Describe."""
        return (
            f"{self.share:g} stored answers join for each new one, drawn in proportion to |advantage| from the last "
            f"{self.capacity} that had one"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Nothing is replayed."""
        if round(self.share * run.prompts * run.group_size) == 0:
            return [f"sample_buffer has no effect: {self.share:g} of the new answers is less than one"]
        return []


def answer_advantage(judged: Batch) -> Tensor:
    """[B] mean advantage over each row's active tokens; 0 where a row has none."""
    active_bt = judged.active_bt
    adv_bt = torch.where(active_bt, judged.need("advantage_bt", "a replay store"), 0)
    return adv_bt.sum(1) / active_bt.sum(1).clamp(min=1)
