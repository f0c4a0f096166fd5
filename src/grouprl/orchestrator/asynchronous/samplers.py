"""The sampler processes: each unit of prompts goes to the one with the fewest units in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from grouprl.orchestrator.asynchronous.sampler_process import SamplerProcess, Told
from grouprl.records.requests import RolloutRequest


class Samplers:
    """`count` samplers of the same policy; `hello` is their setup, `fd` the descriptor of the weights' memory."""

    def __init__(self, hello: dict[str, object], fd: int, count: int) -> None:
        self._each: list[SamplerProcess] = []
        self._holder: dict[int, int] = {}
        """By unit in flight: the index of its sampler."""
        try:
            for _ in range(count):
                self._each.append(SamplerProcess(hello, fd))
        except BaseException:
            self.close()
            raise

    def request(self, number: int, requests: Sequence[RolloutRequest]) -> None:
        """Request the completions of unit `number`."""
        busy = Counter(self._holder.values())
        self._holder[number] = min(range(len(self._each)), key=lambda index: busy[index])
        self._each[self._holder[number]].request(number, requests)

    def receive(self, number: int, waiting_for: str, say: Callable[[str], None]) -> Told:
        """Return the next message of the process that samples unit `number`; see `SamplerProcess.receive`."""
        return self._noted(self._each[self._holder[number]].receive(waiting_for, say))

    def received(self) -> list[tuple[str, object]]:
        """Return the messages that have already arrived."""
        return [self._noted(message) for each in self._each for message in each.received()]

    def close(self) -> None:
        """End the processes and everything they started."""
        for each in self._each:
            each.close()
        self._each.clear()

    def _noted(self, message: Told) -> Told:
        kind, content = message
        if kind == "sampled":
            del self._holder[content[0]]
        return message
