"""Engines that sample from a policy: that of this process, or one that a configuration names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from grouprl.config.sections import Sampling
from grouprl.core.errors import GrouprlError, InputError, suggest
from grouprl.core.importing import import_object
from grouprl.processes.current_ranks import current_ranks
from grouprl.protocols import Policy, RunEngine, RunSampler, Trainable

if TYPE_CHECKING:
    from grouprl.rollout.local.sampler import MakeEngine

LOCAL = "local"
"""The name of the engine of this process."""
VLLM = "vllm"
"""The name of the engine of vLLM's servers."""
SGLANG = "sglang"
"""The name of the engine of SGLang's servers."""
IN_FILES = {VLLM: "grouprl.rollout.vllm.engine:VllmEngine", SGLANG: "grouprl.rollout.sglang.engine:SglangEngine"}
"""Engines of this package that are imported when a run names them."""
ENGINES: dict[str, Callable[..., object]] = {}
"""By name: functions or classes that make an engine from a policy and the engine's settings."""
PARTS_OF_ENGINE = ("exact", "sample", "session", "version", "publish")
M = TypeVar("M", bound=Callable[..., object])


def register_engine(name: str) -> Callable[[M], M]:
    """Register the decorated class or function (policy, **settings) -> engine as `sampling.engine: name`.

    Raises:
        InputError: the name is taken.
    """

    def register(make: M) -> M:
        known = ENGINES.get(name)
        if known is not None and known.__qualname__ != make.__qualname__:
            raise InputError(f"the engine '{name}' is already registered", "each name can only stand for one engine")
        ENGINES[name] = make
        return make

    return register


@register_engine(LOCAL)
def local_engine(policy: Any) -> RunEngine:
    """Return the engine that samples from `policy` in this process, with the policy's own weights.

    A policy with a method `make_sampler` makes its own; otherwise a policy over arrays gets an `ArraySampler` and a
    language model a `LocalSampler`.
    """
    if callable(make := getattr(policy, "make_sampler", None)):
        found: RunEngine = make()
        return found
    if _over_arrays(policy):
        from grouprl.rollout.local.array_sampler import ArraySampler

        return ArraySampler(policy)
    if current_ranks() is not None:
        from grouprl.rollout.sharded.rank_sampler import RankSampler

        return RankSampler(policy)
    from grouprl.rollout.local.sampler import LocalSampler

    return LocalSampler(policy)


def has_sampler(policy: object) -> bool:
    """Return whether `local_engine` has a sampler for a policy that is not a language model."""
    return callable(getattr(policy, "make_sampler", None)) or _over_arrays(policy)


def _over_arrays(policy: object) -> bool:
    from grouprl.policy.vectors.array_policy import ArrayPolicy

    return isinstance(policy, ArrayPolicy)


@dataclass(frozen=True)
class ChosenEngine:
    """The engine that a configuration names; calling it with the policy makes the engine."""

    name: str
    make: Callable[..., Any]
    settings: Mapping[str, object]

    @property
    def exact(self) -> bool:
        """True if its log-probs are known to be the trainer's: its class says `exact = True`."""
        return getattr(self.make, "exact", False) is True

    def __call__(self, policy: object) -> RunEngine:
        """Return the engine for `policy`; for a policy on several ranks, an engine on rank 0, with a full copy of the
        weights there unless the engine says that it takes them in parts.

        Raises:
            InputError: making the engine fails, or the result lacks attributes of an engine.
        """
        if current_ranks() is not None and self.make is not local_engine:
            from grouprl.policy.sharded.sharded_policy import ShardedPolicy

            if isinstance(policy, ShardedPolicy) and not getattr(self.make, "takes_parts", False):
                from grouprl.rollout.sharded.leader_engine import LeaderEngine

                return LeaderEngine(policy, self._made)
        return self._made(policy)

    def _made(self, policy: object) -> RunEngine:
        try:
            found = self.make(policy, **self.settings)
        except GrouprlError:
            raise
        except Exception as error:
            raise InputError(f"the engine '{self.name}' could not be made: {type(error).__name__}: {error}") from error
        lacking = [name for name in PARTS_OF_ENGINE if not hasattr(found, name)]
        if lacking:
            raise InputError(
                f"the engine '{self.name}' has no {', '.join(lacking)}",
                f"an engine needs {', '.join(PARTS_OF_ENGINE)} (grouprl.protocols.Engine)",
                "See docs/extend/engine.md",
            )
        made: RunEngine = found
        return made

    def attach(self, policy: object, attachment: object) -> RunSampler:
        """Return a sampler of `policy` that shares the servers of another process's engine, which provided
        `attachment`.
        """
        found: RunSampler = self.make.attach(policy, attachment, **self.settings)  # type: ignore[attr-defined]
        return found


def chosen_engine(name: str, settings: Mapping[str, object]) -> ChosenEngine:
    """Return the maker of the engine that a configuration names: a registered one, or your own as `pkg.module:name`.

    Raises:
        InputError: an unknown engine, one that cannot be called with a policy, or an unknown setting.
    """
    known = sorted({*ENGINES, *IN_FILES})
    if name not in known and ":" not in name:
        raise InputError(
            f"sampling.engine = {name!r}",
            f"engines are {', '.join(known)}, or your own as pkg.module:Class or file.py:Class",
            suggest(name, known),
        )
    make = ENGINES[name] if name in ENGINES else import_object(IN_FILES.get(name, name), "engine")
    if not callable(make):
        raise InputError(
            f"the engine '{name}' is {type(make).__name__}", "it must be callable with the policy: see docs/extend"
        )
    _check_settings(name, make, settings)
    return ChosenEngine(name, make, settings)


def configured_engine(sampling: Sampling, name: str | None = None) -> ChosenEngine:
    """Return the maker of the engine of a run's settings; `name` chooses another one with its own settings.

    Raises:
        InputError: as `chosen_engine` does.
    """
    if name is None or name == sampling.engine:
        return chosen_engine(sampling.engine, sampling.arguments)
    return chosen_engine(name, {})


@contextmanager
def opened_engine(make: MakeEngine, policy: Trainable) -> Iterator[RunEngine]:
    """Yield an engine for a policy that no longer changes, with its weights published, and close it at the end."""
    engine = make(policy)
    try:
        engine.publish(0, cast("Policy", policy))
        yield engine
    finally:
        close_engine(engine)


def close_engine(sampler: object) -> None:
    """Call the engine's method `close`, if it has one, to end what it runs; it may be called twice."""
    if callable(close := getattr(sampler, "close", None)):
        close()


def rest_engine(sampler: object) -> None:
    """Call the engine's method `rest`, if it has one, to free memory until the next weights or request."""
    if callable(rest := getattr(sampler, "rest", None)):
        rest()


def engine_metrics(sampler: object) -> dict[str, float]:
    """Return what an engine measured at its last exchange of weights; empty if it measures nothing."""
    return dict(measured()) if callable(measured := getattr(sampler, "metrics", None)) else {}


def tell_engine(sampler: object, say: Callable[[str], None]) -> None:
    """Let an engine with the attribute `say` show its messages to the user."""
    if hasattr(sampler, "say"):
        sampler.say = say


def _check_settings(name: str, make: Callable[..., object], settings: Mapping[str, object]) -> None:
    try:
        inspect.signature(make).bind(None, **settings)
    except TypeError as error:
        raise InputError(
            f"the engine '{name}' with sampling.engine_settings {dict(settings)}",
            f"it must accept the policy and these settings: {error}",
        ) from None
    except ValueError:  # a builtin without a signature checks its arguments when called
        return
