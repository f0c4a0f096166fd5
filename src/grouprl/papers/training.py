"""Commands that train a method as typed: found by planning them, so that none is printed which is refused."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import cache

ONCE, FEW = "batch.minibatches=1", "data.prompts=512"
VARIANTS = ((), (ONCE,), (FEW,), (ONCE, FEW), ("task=ponder",))
"""Changes of batch and prompts that some methods need."""
Trial = tuple[str, tuple[str, ...]]
"""A recipe and changes to it."""


def command_of_entry(name: str, settings: Sequence[str] = ()) -> str:
    """Return the command that trains an entry of the catalogue with what its card says it needs, and `settings`.

    The recipe is 'addition' or, if that is refused, one that trains this method, or else the first that can.
    """
    from grouprl.methods import CATALOGUE

    card = CATALOGUE[name].card
    changes = tuple(dict.fromkeys((f"method={name}", *card.run, *settings)))  # a row may repeat the card
    if card.first:  # what it makes is not there yet, so that the plan could not be made
        return f"{card.first} && {_command('train', 'addition', changes)}"
    found = _accepted(_varied(changes))
    if not found and len(changes) == 1:
        found = _accepted(_other_recipes(name))
    return found or _command("plan", "addition", changes)


def plain_command(name: str) -> str:
    """Return the command that trains the recipe 'addition' by an entry as it stands, perhaps with other batches.

    "" if that is refused, or if a part of it has no effect.
    """
    for recipe, changes in _varied((f"method={name}",)):
        if not any(change.startswith("task=") for change in changes) and not any(_outcome(recipe, changes)):
            return _command("train", recipe, changes)
    return ""


@cache
def command_with(*changes: str) -> str:
    """Return the command that trains the recipe 'addition' with `changes`; the `plan` command if that is refused."""
    return _accepted(_varied(changes)) or _command("plan", "addition", changes)


def _varied(changes: Sequence[str]) -> Iterator[Trial]:
    """Yield the recipe 'addition' with `changes` and with those that some methods need; a task of `changes` stays."""
    own_task = any(change.startswith("task") for change in changes)
    yield from (("addition", (*changes, *more)) for more in VARIANTS if not (own_task and more == VARIANTS[-1]))


def _other_recipes(name: str) -> Iterator[Trial]:
    """Yield the recipes that train the method as they are, then all others with it as their method."""
    from grouprl.config.run import recipe_names

    recipes = [each for each in recipe_names() if each != "addition"]
    yield from ((each, ()) for each in recipes if _trained_by(each) == name)
    yield from ((each, (f"method={name}", *more)) for each in recipes for more in VARIANTS[:2])


@cache
def _trained_by(recipe: str) -> str:
    """Return the name of the method that an embedded recipe trains."""
    from grouprl.config.run import load_config

    return load_config(recipe).method_name


def _accepted(trials: Iterator[Trial]) -> str:
    """Return the command of the first trial that is not refused and in which every part has an effect.

    If there is none, the first trial that is not refused; if all are, ''.
    """
    accepted = ""
    for recipe, changes in trials:
        refused, idle = _outcome(recipe, changes)
        if not refused and not idle:
            return _command("train", recipe, changes)
        accepted = accepted or ("" if refused else _command("train", recipe, changes))
    return accepted


def _outcome(recipe: str, changes: Sequence[str]) -> tuple[bool, bool]:
    """Return whether a run is refused, and whether something of it has no effect."""
    from grouprl.config.run import load_config
    from grouprl.core.errors import InputError
    from grouprl.plan.plan import plan

    try:
        found = plan(load_config(recipe, [*changes, "model.device=cpu"]))
    except InputError:  # the recipe is for another kind of policy, or lacks a setting that the change is in
        return True, False
    return bool(found.refusals), bool(found.idle)


def _command(verb: str, recipe: str, changes: Sequence[str]) -> str:
    return shlex.join(["grouprl", verb, recipe, *(word for change in changes for word in ("--set", change))])
