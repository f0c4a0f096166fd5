"""Checks of parts written by users: each member is compared with what `grouprl plan` expects of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Protocol

from grouprl.core.errors import InputError, raised, shortened

COUPLES = ("sequence", "group", "batch")
LOSS_KINDS = ("objective", "token_gate", "regularize", "score")
"""Kinds of parts that see the policy's current outputs."""


class Named(Protocol):
    """Names of a part that messages use."""

    kind: str
    name: str


def _text(value: object) -> bool:
    return isinstance(value, str)


def _texts(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(each, str) for each in value)


def _count(value: object) -> bool:
    return isinstance(value, int)


def _list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


MEMBERS: dict[str, tuple[str, Callable[[object], bool]]] = {
    **dict.fromkeys(("words", "formula", "code", "extra_samples", "letters"), ("a text", _text)),
    **dict.fromkeys(("needs", "supplies"), ('names of batch fields, as in ("old_bt",)', _texts)),
    "outputs": ('names of outputs of the policy, as in ("entropy",)', _texts),
    **dict.fromkeys(("idle", "refuse"), ("a list of sentences, [] where there is nothing to say", _texts)),
    "behind": ("a whole number", _count),
    "shown": ("a list of prompts", _list),
}
"""Expected value of each member of a part, and the test of it."""


def place_of(cls: type) -> str:
    """Return where a class is written, in brackets, as messages show it; '' if unknown."""
    try:
        file, line = inspect.getsourcefile(cls), inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):  # typed in, or made by type(): no file has it
        return ""
    return f" ({PurePath(file).name}:{line})" if file else ""


def check_members(cls: type, kind: str) -> None:
    """Raise InputError if a user's class has something that a part cannot have.

    Raises:
        InputError: naming the class and the member.
    """
    where = f"{cls.__name__}, to be a part of kind {kind}{place_of(cls)}"
    if "__init__" in vars(cls):
        rule = "it is made from the annotated fields of the class, which are the settings"
        raise InputError(f"{where}, has an __init__", rule, "Annotate settings in the class, or write __post_init__")
    for name in ("reads", "fills"):
        if isinstance(given := getattr(cls, name, ()), str):
            raise InputError(
                f"{where}: {name} = '{given}'", "it must be a tuple of names", f'Write {name} = ("{given}",)'
            )
    for name in ("says", "equation"):
        if not isinstance(given := getattr(cls, name, ""), str | property):
            raise InputError(f"{where}: {name} = {shortened(given)}", "it must be a text")
    idle_at = getattr(cls, "idle_at", None)
    if idle_at is not None and (not isinstance(idle_at, tuple) or len(idle_at) != 3):
        raise InputError(
            f"{where}: idle_at = {shortened(idle_at)}",
            "it must be a setting, the value at which the part has no effect, and a sentence that says so",
            'Write idle_at = ("coef", 0, "{name} has no effect: its coefficient is 0")',
        )
    couples = getattr(cls, "couples", COUPLES[0])
    if isinstance(couples, str) and couples not in COUPLES:
        raise InputError(f"{where}: couples = '{couples}'", f"it must be one of {', '.join(COUPLES)}")


def check_outputs(made: type, kind: str) -> None:
    """Refuse a part of a loss that marks outputs of the policy as wanted by an attribute of its own, not by `asks`.

    Raises:
        InputError: naming the class, the attribute and how `asks` is written.
    """
    settings = getattr(made, "__dataclass_fields__", {})
    for name in ("entropy", "cross"):
        given = getattr(made, name, None)
        if kind not in LOSS_KINDS or name in settings or given is None or given is False or inspect.isfunction(given):
            continue
        where = f"{made.__name__}, to be a part of kind {kind}{place_of(made)}: {name} = {shortened(given)}"
        output = name if name == "entropy" else f"cross@{given if isinstance(given, float | int) else 1}"
        raise InputError(
            where, "a part names the policy's outputs that it reads in asks", f'Write asks = ("{output}",)'
        )


def guard(made: type) -> None:
    """Make each member of a part's class report errors and wrong return values with the part's name."""
    for name, (rule, fits) in MEMBERS.items():
        if hasattr(made, name):
            setattr(made, name, _guarded(getattr(made, name), name, rule, fits))


def _guarded(member: Callable[..., object], name: str, rule: str, fits: Callable[[object], bool]) -> object:
    @functools.wraps(member)
    def within(self: Named, *args: object) -> object:
        where = f"the {self.kind} part '{self.name}'"
        try:
            value = member(self, *args)
        except InputError:
            raise
        except NotImplementedError as error:
            raise InputError(f"{where}: {error}{place_of(type(self))}", f"{name} returns {rule}") from error
        except Exception as error:
            raise InputError(f"{where}: {name} raised {raised(error)}", f"it returns {rule}") from error
        if not fits(value):
            said = f"{where}: {name} returned {shortened(value)}{place_of(type(self))}"
            raise InputError(said, f"it returns {rule}")
        return value

    return within
