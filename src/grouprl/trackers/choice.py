"""The trackers that a configuration names, and their opening."""

from __future__ import annotations

import importlib
import inspect
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from grouprl.core.errors import InputError, MissingExtra, suggest
from grouprl.core.importing import import_object
from grouprl.core.json_types import JsonObject
from grouprl.trackers.tracker import TrackedRun, Tracker


class Known(NamedTuple):
    """A tracker that grouprl knows: the place of the function that opens it, and the package it needs."""

    place: str
    package: str


TRACKERS = {
    "tensorboard": Known("grouprl.trackers.tensorboard:open_tensorboard", "tensorboardX"),
    "wandb": Known("grouprl.trackers.weights_and_biases:open_wandb", "wandb"),
    "trackio": Known("grouprl.trackers.in_trackio:open_trackio", "trackio"),
    "mlflow": Known("grouprl.trackers.in_mlflow:open_mlflow", "mlflow"),
}
"""The trackers by the names that `run.trackers` takes."""


@dataclass(frozen=True)
class ChosenTracker:
    """A tracker that a configuration names, with its settings; nothing is opened yet."""

    name: str
    make: Callable[..., Tracker]
    settings: Mapping[str, object]

    def open(self, run: TrackedRun) -> Tracker:
        """Return the tracker of a run: a new run there, or the one that an earlier process began."""
        return self.make(run, **self.settings)

    def command(self, folder: Path) -> str:
        """Return the command that sends a run's records to this tracker, in one line to be copied."""
        values = ((key, each if isinstance(each, str) else json.dumps(each)) for key, each in self.settings.items())
        changes = [word for key, value in values for word in ("--set", f"{key}={value}")]
        return shlex.join(["grouprl", "track", str(folder), self.name, *changes])


def chosen_tracker(given: str | JsonObject) -> ChosenTracker:
    """Return the tracker that an item of `run.trackers` names: a known one, or your own as `pkg.module:function`.

    Raises:
        InputError: an unknown name, or settings that the tracker does not have.
        MissingExtra: its package is not installed.
    """
    settings = dict(given) if isinstance(given, Mapping) else {"name": given}
    name = settings.pop("name", None)
    if not isinstance(name, str) or (name not in TRACKERS and ":" not in name):
        raise InputError(
            f"run.trackers names {name!r}",
            f"trackers are {', '.join(TRACKERS)}, or your own as pkg.module:function or file.py:function",
            suggest(str(name), TRACKERS),
        )
    make = import_object(name, "tracker") if name not in TRACKERS else _known(name)
    if not callable(make):
        raise InputError(f"the tracker '{name}' is {type(make).__name__}", "it must be callable: see docs/trackers.md")
    _check(name, make, settings)
    return ChosenTracker(name, make, settings)


def _known(name: str) -> Callable[..., Tracker]:
    place, package = TRACKERS[name]
    if find_spec(package) is None:
        raise MissingExtra(package, name, f"the tracker {name}")
    module, _, function = place.partition(":")
    made: Callable[..., Tracker] = getattr(importlib.import_module(module), function)
    return made


def _check(name: str, make: Callable[..., Tracker], settings: JsonObject) -> None:
    """Raise InputError for settings that the function does not take or lacks."""
    _, *taken = inspect.signature(make).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in taken):
        return
    known = {each.name for each in taken}
    for key in settings:
        if key not in known:
            rule = f"{name} takes {', '.join(sorted(known)) or 'none'}"
            raise InputError(f"the tracker {name} has no setting '{key}'", rule, suggest(key, known))
    for each in taken:
        if each.default is each.empty and each.name not in settings:
            raise InputError(f"the tracker {name} needs '{each.name}'", "", f"{{name: {name}, {each.name}: …}}")
