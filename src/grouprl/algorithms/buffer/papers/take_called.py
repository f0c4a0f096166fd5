"""Training a called agent on the rows that another trainer's episodes left for it (M-GRPO)."""

from __future__ import annotations

import errno
import fcntl
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from grouprl.algorithms.data_part import Buffer, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.errors import InputError
from grouprl.core.numbers import Count
from grouprl.records.samples import ScoredSamples
from grouprl.records.serialize import unpack

if TYPE_CHECKING:
    from grouprl.core.batch import Batch
from grouprl.algorithms.augment.papers.exchange import Exchange, Seconds, awaited, read, team

UNLOCKED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Error numbers of file systems without locks, on which two processes taking the same rows would not be noticed."""


@part("buffer")
class TakeCalled(Buffer):
    """M-GRPO between trainers, the called agent's side: a step trains on the rows that a step of the caller's left.

    They come in order, with the log-probs of the weights that sampled them; if there are none, the part waits, at most
    `wait` seconds. After a step the weights of agent `agent` are written for the caller. Once the caller has ended, the
    remaining steps do nothing.
    """

    needs_text = True

    own_policies: ClassVar[bool] = True

    folder: str
    agent: Count = 1
    wait: Seconds = 600.0
    says = "train agent {agent} on the rows that another process leaves in {folder}, and sample none"

    def fresh(self, context: RunContext) -> int:
        """Return 0: the caller samples."""
        return 0

    def mix(self, samples: ScoredSamples | None, context: RunContext) -> ScoredSamples | None:
        """Return the rows of the caller's next step; None if the caller has ended or called no agent."""
        exchange, store = self._open(context), context.state_of(self)
        taken, started = store.get("taken", 0), time.monotonic()
        self._publish(exchange, context, taken)
        if taken == store.get("steps"):
            return None
        path = exchange.rows(taken)
        data = awaited(lambda: read(path) if path.exists() else None, self.wait, f"no rows came to {path}")
        context.note("seconds_exchange", time.monotonic() - started)
        store["taken"], store["steps"] = taken + 1, data["steps"]
        return None if data["rows"] is None else unpack(data["rows"], context.task).with_source("replay")

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Write the weights for the caller."""
        self._publish(self._open(context), context, context.state_of(self)["taken"])

    def _publish(self, exchange: Exchange, context: RunContext, taken: int) -> None:
        """Write the weights after `taken` steps, unless that has been done."""
        held = context.cache_of(self)
        if held.get("published") != taken:
            exchange.keep(taken, team(context.text.policy, self.name).member(self.agent).trainable_state())
            held["published"] = taken

    def _open(self, context: RunContext) -> Exchange:
        """Return the agent's folder, locked for this process. Raises InputError if it belongs to another run."""
        exchange, held, store = (
            Exchange(Path(self.folder) / f"agent-{self.agent}"),
            context.cache_of(self),
            context.state_of(self),
        )
        if "lock" not in held:
            exchange.folder.mkdir(parents=True, exist_ok=True)
            held["lock"] = (exchange.folder / "lock").open("w")
            try:
                fcntl.flock(held["lock"], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    f"another process is taking the rows of agent {self.agent} from {self.folder}",
                    "a row is trained on only once",
                    "Wait for it, or end it",
                ) from error
            except OSError as error:
                if error.errno not in UNLOCKED:
                    raise
        known = store.setdefault("run", "")
        if exchange.owner.exists():
            store["run"] = name = exchange.owner.read_text()
            if known not in ("", name):
                raise InputError(
                    f"{exchange.folder} holds rows of another run than the one that this trainer began with",
                    remedy="Restore the folder, or start both runs afresh",
                )
        return exchange

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task without the agent."""
        if self.agent >= run.agents:
            return [f"{self.name} has no rows to take: the task has no agent {self.agent}"]
        return []
