"""A folder between trainers: the process that plays whole episodes writes the rows of called agents there, and the
process that trains a called agent takes them and writes its weights.

Every file is whole or absent. The rows of a step are written once and never changed, so a trainer that was killed
resumes with exactly the rows it had not stored, and no row is trained on twice.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Protocol, TypeVar, cast

import numpy as np
import torch
from pydantic import Field

from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.errors import InputError, RunError
from grouprl.core.json_types import State
from grouprl.core.numbers import Count
from grouprl.protocols import Policy
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.serialize import pack

Seconds = Annotated[float, Field(gt=0)]
Found = TypeVar("Found")
POLL = 0.2
"""Seconds between two looks at the folder."""


@dataclass(frozen=True)
class Exchange:
    """The files of one called agent: `rows-000012.pt` for each step of the caller's, `weights-000013.pt` after it."""

    folder: Path

    @property
    def owner(self) -> Path:
        """File that names the run whose episodes these are."""
        return self.folder / "run"

    def rows(self, step: int) -> Path:
        """Return the file with the rows of the caller's step `step`, from 0."""
        return self.folder / f"rows-{step:06d}.pt"

    @property
    def sent(self) -> int:
        """Return how many steps of the caller have arrived."""
        return len(list(self.folder.glob("rows-*.pt")))

    @property
    def newest(self) -> tuple[int, Path] | None:
        """Return the newest weights and the number of steps they were trained on; None before the first."""
        found = max(self.folder.glob("weights-*.pt"), default=None)
        return None if found is None else (int(found.stem.removeprefix("weights-")), found)

    def keep(self, trained: int, weights: dict[str, torch.Tensor]) -> None:
        """Write the weights after `trained` steps, and keep the previous ones for a process that is
        still reading them.
        """
        write(self.folder / f"weights-{trained:06d}.pt", weights)
        for path in sorted(self.folder.glob("weights-*.pt"))[:-2]:
            path.unlink(missing_ok=True)


def write(path: Path, data: object) -> None:
    """Write plain data so that the file is whole or absent even if the process is killed."""
    made = io.BytesIO()
    torch.save(data, made)
    temporary = path.with_suffix(f".{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(made.getvalue())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read(path: Path) -> State:
    """Read what `write` wrote. Raises RunError on a damaged file."""
    try:
        return torch.load(path, weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise RunError(f"{path} is damaged ({type(error).__name__}). Restore it, or start both runs afresh") from error


def awaited(look: Callable[[], Found | None], seconds: float, what: str) -> Found:
    """Return what `look` finds as soon as it finds something. Raises RunError after `seconds` without."""
    end = time.monotonic() + seconds
    while (found := look()) is None:
        if time.monotonic() > end:
            raise RunError(
                f"{what} within {seconds:g} s. Is the other trainer running? Start it, then continue with --resume"
            )
        time.sleep(POLL)
    return found


class Members(Protocol):
    """Policies of several agents, such as `grouprl.policy.TeamPolicy`."""

    @property
    def members(self) -> Mapping[str, Policy]:
        """The policies, by name."""

    def member(self, number: int, /) -> Policy:
        """Return the policy of an agent by its number."""


def team(policy: object, name: str) -> Members:
    """Return the policies of the agents. Raises InputError if they all share one."""
    if not hasattr(policy, "members"):
        raise InputError(
            f"{name} exchanges the weights of one agent",
            "the agents of this run share theirs",
            "Set model.agents: separate",
        )
    return cast("Members", policy)


@part("augment")
class SendCalled(Augmentation):
    """M-GRPO between trainers, the caller's side: rows of called agents go to a folder, and another process trains on
    them.

    The rows of agent n go to `folder`/agent-n with the outcome of the first agent, whatever their own reward is; the
    first agent's rows stay. Then the newest weights of the called agents are loaded. Rows may be sampled with weights
    that are up to `lag` steps old; a caller further ahead waits, at most `wait` seconds.
    """

    needs_text = True

    own_policies: ClassVar[bool] = True
    takes: ClassVar[str] = "sent"

    folder: str
    lag: Count = 4
    wait: Seconds = 600.0
    says = (
        "rows of called agents go to the folder {folder} and are trained by another process, whose weights come "
        "back, at most {lag} steps late"
    )

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Send the rows of called agents; return the first agent's."""
        policy, held = team(context.text.policy, self.name), context.cache_of(self)
        if held.get("sent") == context.step:
            raise InputError(
                f"{self.name} got a second round of rows in one step",
                "the rows of a step are sent only once",
                "Leave refill out",
            )
        agent_b, held["sent"] = samples.extras["agent_b"], context.step
        told, started = with_outcome(samples), time.monotonic()
        for number in range(1, len(policy.members)):
            exchange = self._open(number, context)
            path = exchange.rows(context.step)
            if not path.exists():  # written before the run was killed: they have been taken already
                own = subset(told, told.valid_b & (agent_b == number))
                write(path, {"rows": pack(own) if len(own) else None, "steps": context.steps})
            self._load(exchange, policy.member(number), context)
        context.note("seconds_exchange", time.monotonic() - started)
        return subset(samples, agent_b == 0)

    def _open(self, number: int, context: RunContext) -> Exchange:
        """Return the agent's folder, which belongs to this run. Raises InputError if it belongs to another."""
        exchange, store = Exchange(Path(self.folder) / f"agent-{number}"), context.state_of(self)
        exchange.folder.mkdir(parents=True, exist_ok=True)
        if "run" not in store:
            store["run"] = name_of(context)
        if not exchange.owner.exists() and not exchange.sent:
            temporary = exchange.owner.with_suffix(f".{os.getpid()}")
            temporary.write_text(store["run"])
            temporary.replace(exchange.owner)
        if not exchange.owner.exists() or exchange.owner.read_text() != store["run"]:
            raise InputError(
                f"{exchange.folder} holds rows of another run",
                "each run exchanges rows through a folder of its own",
                "Name another folder, or remove it and start both runs afresh",
            )
        return exchange

    def _load(self, exchange: Exchange, member: Policy, context: RunContext) -> None:
        """Load the newest weights of a called agent; wait while they are too old."""
        least = context.step + 1 - self.lag

        def look() -> tuple[int, State | None] | None:
            found = exchange.newest
            if found is None or found[0] < least:
                return (0, None) if least <= 0 and found is None else None
            try:
                return found[0], read(found[1])
            except FileNotFoundError:  # newer ones have taken its place
                return None

        trained, weights = awaited(look, self.wait, f"no weights trained on {least} steps came to {exchange.folder}")
        if weights is not None:
            member.load_trainable_state(weights)
        context.note("exchange_lag", context.step + 1 - trained, "most")

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task with a single agent."""
        return (
            [f"{self.name} sends rows of called agents, but the task has one agent. Use a task with several agents"]
            if run.agents < 2
            else []
        )


def with_outcome(samples: ScoredSamples) -> ScoredSamples:
    """Return the rows, each marked right if the first agent of its episode was right."""
    first_b, episode_b = samples.extras["agent_b"] == 0, samples.extras["keys.episode"]
    known, won = np.unique(episode_b[first_b]), np.unique(episode_b[first_b & samples.scores.correct_b])
    correct_b = np.where(np.isin(episode_b, known), np.isin(episode_b, won), samples.scores.correct_b)
    return replace(samples, scores=replace(samples.scores, correct_b=correct_b))


def name_of(context: RunContext) -> str:
    """Return a name of the run: the same for a run that starts again from the same weights and prompts."""
    digest = hashlib.sha256(
        f"{context.task.fingerprint()}/{context.steps}/{context.prompts}/{context.group_size}".encode()
    )
    for name, tensor in sorted(context.text.policy.trainable_state().items()):
        digest.update(name.encode())
        digest.update(tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
