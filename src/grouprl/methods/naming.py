"""The method that a specification names: an entry of the catalogue, or a user's code."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType

from grouprl.algorithms.method import Method
from grouprl.algorithms.part import KINDS, Part
from grouprl.core.errors import InputError, raised, suggest
from grouprl.core.plugins import load_file, load_module
from grouprl.methods.card import Card
from grouprl.methods.registry import CATALOGUE, Entry, find, spelled


def read_names(spec: object) -> tuple[str, Entry | None, dict[str, object]]:
    """Split a specification into (display name or '', base entry or None, the other keys)."""
    if not isinstance(spec, Mapping) or not spec:
        raise InputError(f"method: {spec!r}", "a method is a catalogue name or a mapping", "Example: method: grpo")
    rest = {str(k): v for k, v in spec.items()}
    name, base = rest.pop("name", None), rest.pop("base", None)
    for key, value in (("name", name), ("base", base)):
        if value is not None and not isinstance(value, str):
            raise InputError(f"method.{key} = {value!r}", "it must be a string")
    base = spelled(base) if isinstance(base, str) else base
    parts = any(stage in rest for stage in KINDS)
    name = spelled(name) if isinstance(name, str) and base is None and not parts else name
    if base is not None:
        if name in CATALOGUE and name != base:
            raise InputError(
                f"method.name = '{name}' with method.base = '{base}'",
                "a catalogue name means one thing",
                "Give the changed method a name of its own",
            )
        return (name if name != base else "") or "", entry_of(base), rest
    if name is None or (name not in CATALOGUE and ":" not in name and parts):
        return name or "custom", None, rest
    return "", entry_of(name), rest


def entry_of(name: str) -> Entry:
    """Return the entry of a catalogue name or of an import path `module:function` / `file.py:function`."""
    if name.endswith(".py"):
        raise InputError(f"{name} is a file", "a user's method is a function in a file", f"Name it: {name}:FUNCTION")
    if ":" not in name:
        return find(name)
    where, _, attribute = name.rpartition(":")
    module = (load_file if where.endswith(".py") else load_module)(where, _IMPORT_RULE)
    function = getattr(module, attribute, None)
    if not callable(function) or inspect.isclass(function):
        if inspect.isclass(function):
            rule = "a method is a function that returns a Method"
            part = getattr(function, "name", attribute)
            remedy = f"A part is used by its name, in its stage: plugins: [{where}], method: {{base: grpo, …: {part}}}"
            raise InputError(f"{name} is a class", rule, remedy if issubclass(function, Part) else "")
        raise InputError(f"'{where}' has no function '{attribute}'", remedy=suggest(attribute, _functions(module)))
    for found in CATALOGUE.loaded().values():
        if found.function is function:
            return found
    first_line = (function.__doc__ or attribute).strip().splitlines()[0]
    card = Card(title=attribute, summary=first_line, formula="", confidence="partly", uncertain="a method of your own")
    return Entry(name, card, _own(name, function))


def _own(name: str, function: Callable[..., Method]) -> Callable[..., Method]:
    """Return a user's function whose errors are reported with its name."""

    @functools.wraps(function)
    def build(*args: object, **settings: object) -> Method:
        try:
            return function(*args, **settings)
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            rule = "a method is a function that returns a Method with its default settings"
            raise InputError(f"the method '{name}' raised {raised(error)}", rule) from error

    return build


def _functions(module: ModuleType) -> list[str]:
    return [n for n, f in vars(module).items() if callable(f) and getattr(f, "__module__", "") == module.__name__]


_IMPORT_RULE = "a method's import path is module:function or file.py:function"
