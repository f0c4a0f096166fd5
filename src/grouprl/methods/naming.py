"""Which method a specification names: an entry of the catalogue, or code of the user's."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from grouprl.algorithms.method import Method
from grouprl.algorithms.part import KINDS
from grouprl.core.errors import InputError, suggest
from grouprl.methods.card import Card
from grouprl.methods.registry import CATALOGUE, Entry, find


def read_names(spec: Any) -> tuple[str, Entry | None, dict[str, Any]]:
    """Split a specification into (display name or '', base entry or None, the other keys)."""
    if not isinstance(spec, Mapping) or not spec:
        raise InputError(f"method: {spec!r}", "a method is a catalogue name or a mapping", "Example: method: grpo")
    rest = {str(k): v for k, v in spec.items()}
    name, base = rest.pop("name", None), rest.pop("base", None)
    for key, value in (("name", name), ("base", base)):
        if value is not None and not isinstance(value, str):
            raise InputError(f"method.{key} = {value!r}", "it must be a string")
    if base is not None:
        if name in CATALOGUE and name != base:
            raise InputError(
                f"method.name = '{name}' with method.base = '{base}'",
                "a catalogue name means one thing",
                "Give the changed method a name of its own",
            )
        return (name if name != base else "") or "", _base(base), rest
    if name is None or (name not in CATALOGUE and ":" not in name and any(stage in rest for stage in KINDS)):
        return name or "custom", None, rest
    return "", _base(name), rest


def _base(name: str) -> Entry:
    """Return the entry of a catalogue name or of an import path `module:function` / `file.py:function`."""
    if ":" not in name:
        return find(name)
    where, _, attribute = name.rpartition(":")
    module = _load_file(where) if where.endswith(".py") else _load_module(where)
    function = getattr(module, attribute, None)
    if not callable(function) or inspect.isclass(function):
        raise InputError(f"'{where}' has no function '{attribute}'", remedy=suggest(attribute, _functions(module)))
    for found in CATALOGUE.values():
        if found.function is function:
            return found
    first_line = (function.__doc__ or attribute).strip().splitlines()[0]
    card = Card(title=attribute, summary=first_line, formula="", confidence="partly", uncertain="a method of your own")
    return Entry(name, card, _own(name, function))


def _own(name: str, function: Callable[..., Method]) -> Callable[..., Method]:
    """Return a user's function, with what it raises in words."""

    @functools.wraps(function)
    def build(*args: Any, **settings: Any) -> Method:
        try:
            return function(*args, **settings)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"the method '{name}' raised {type(error).__name__}: {error}") from error

    return build


def _functions(module: ModuleType) -> list[str]:
    return [n for n, f in vars(module).items() if callable(f) and getattr(f, "__module__", "") == module.__name__]


_IMPORT_RULE = "a method's import path is module:function or file.py:function"


def _load_module(where: str) -> ModuleType:
    if not all(name.isidentifier() for name in where.split(".")):
        raise InputError(f"'{where}' is not a module's name", _IMPORT_RULE)
    with _importing(where):
        return importlib.import_module(where)


def _load_file(where: str) -> ModuleType:
    path = Path(where).expanduser().resolve()
    module_name = f"grouprl_user_{path.stem}_{zlib.crc32(str(path).encode())}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    if not path.is_file():
        raise InputError(f"there is no file '{path}'", _IMPORT_RULE)
    made = importlib.util.spec_from_file_location(module_name, path)
    if made is None or made.loader is None:
        raise InputError(f"'{path}' cannot be imported", "it must be a Python file")
    module = sys.modules[module_name] = importlib.util.module_from_spec(made)
    try:
        with _importing(where):
            made.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


@contextmanager
def _importing(where: str) -> Iterator[None]:
    """Say in words what went wrong when a user's code was imported."""
    try:
        yield
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"cannot import '{where}': {reason}", _IMPORT_RULE) from error
