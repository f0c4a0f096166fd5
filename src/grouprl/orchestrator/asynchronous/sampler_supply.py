"""Completions from sampler processes, which sample while the trainer computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from grouprl.core.json_types import State
from grouprl.core.stopwatch import Stopwatch
from grouprl.orchestrator.asynchronous.samplers import Samplers
from grouprl.orchestrator.asynchronous.supply import Unit
from grouprl.orchestrator.asynchronous.sync import SharedMemorySync
from grouprl.orchestrator.context import SessionContext
from grouprl.orchestrator.make_sharded_policy import model_of_whole_copy
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples
from grouprl.rewards.judging.judge import TrajectoryJudge
from grouprl.rewards.judging.judge_costs import Tally, answer_shares
from grouprl.rewards.judging.measured import paid_reward
from grouprl.rewards.judging.pair_judge import PairJudge

if TYPE_CHECKING:
    from grouprl.protocols import Policy


class SamplerSupply:
    """A `Supply` of `run.samplers` processes, each with a copy of the model that follows the trainer's weights.

    Args:
        context: the run.
        policy: the policy in training.
        version: version of its weights now.
        say: function that shows a sentence to the user.
    """

    def __init__(self, context: SessionContext, policy: Policy, version: int, say: Callable[[str], None]) -> None:
        self.policy, self.say, self.watch = policy, say, Stopwatch()
        self._arrived: dict[int, tuple[ScoredSamples, State]] = {}
        """By unit: its samples, and what their source carried after them."""
        self._rows = context.row_source
        self._asked: dict[int, Sequence[RolloutRequest]] = {}
        self._gap = 0.0
        self._placed, self._note = Counter[str](), context.note
        """Counts of events of the cluster's workers since the last step, if the samplers run on a cluster."""
        self._answers = Tally()
        """Counts of how a judge of pairs answered the samplers since the last step."""
        config = context.config
        self._samplers: Samplers | None = None
        self._closed = False
        self._sync = SharedMemorySync(policy, config.run.async_steps + 2, context.row_source.canary(policy))
        try:
            self.publish(version)
            hello = {**_settings(context, policy), **self._sync.hello()}
            self._samplers = Samplers(hello, self._sync.memory, config.run.samplers)
        except BaseException:
            self.close()
            raise

    def publish(self, version: int) -> None:
        """Offer the current weights to the samplers, which load them when they begin a unit or while they sample."""
        with self.watch("sync"):
            self._sync.publish(version, self.policy)

    def request(self, number: int, requests: Sequence[RolloutRequest]) -> None:
        """Request the completions of unit `number` from the sampler with the fewest units."""
        assert self._samplers is not None
        self._asked[number] = requests
        self._samplers.request(number, requests)

    def take(self, number: int) -> ScoredSamples:
        """Return the completions of a unit, after checking all reports that arrived before them."""
        assert self._samplers is not None
        for message in self._samplers.received():
            self._hear(*message)
        start, requests = perf_counter(), self._asked.pop(number)
        while number not in self._arrived:
            names = ", ".join(request.example.id for request in requests[:3])
            more = f" and {len(requests) - 3} more" if len(requests) > 3 else ""
            self._hear(*self._samplers.receive(number, f"it samples and scores completions to {names}{more}", self.say))
        self.watch.seconds["wait"] += perf_counter() - start
        found, carried = self._arrived.pop(number)
        self._rows.restore(carried)  # a checkpoint continues after the last unit that was taken
        return found

    def metrics(self) -> dict[str, float]:
        """Return the seconds, the events of the cluster's workers, how a judge answered, and the gap of the canary."""
        seconds = {f"seconds_{name}": value for name, value in self.watch.read().items()}
        placed = dict(self._placed)
        self._placed.clear()
        return {**seconds, **placed, **answer_shares(self._answers.read()), "canary_gap": self._gap}

    def state(self, units: Sequence[Unit]) -> State:
        """Return an empty state: units are sampled again after a resume.

        Later weights may sample completions again without exceeding the bound on staleness, while stored completions
        would make every checkpoint as large as a step, and the run would not be repeatable all the same.
        """
        return {}

    def restore(self, units: Sequence[Unit], state: State) -> None:
        """Request `units` anew."""
        for number, requests in units:
            self.request(number, requests)

    def close(self) -> None:
        """End the samplers' processes and release the memory."""
        if self._samplers is not None:
            self._samplers.close()
            self._samplers = None
        if not self._closed:
            self._sync.close()
            self._closed = True

    def _hear(self, kind: str, content: Any) -> None:
        if kind == "report":
            self._gap = self._sync.check(content)
            return
        if kind == "said":
            self.say(content)
            return
        if kind == "placed":
            self._placed.update(content)
            return
        if kind == "judged":
            costs, answers = content
            for name, value in costs.items():
                self._note(name, value)
            self._answers.add(**answers)
            return
        number, sampled, seconds, carried = content
        self._arrived[number] = sampled, carried
        for name, value in seconds.items():
            self.watch.seconds[name] += value


def _settings(context: SessionContext, policy: Policy) -> dict[str, object]:
    """Return the settings of the run that a sampler process works with."""
    reward = paid_reward(context.row_source.reward)
    store = reward.store if isinstance(reward, TrajectoryJudge | PairJudge) else None
    model = model_of_whole_copy(context.config.model, policy)
    return {
        "config": context.config.model_copy(update={"model": model}).model_dump(mode="json"),
        "threads": torch.get_num_threads(),
        "verdicts": None if store is None else store.folder,
        "pace": reward.client.shared_pace if isinstance(reward, TrajectoryJudge | PairJudge) else None,
        "rows": context.row_source.state(),
        "servers": getattr(context.row_source.sampler, "attachment", None),
    }
