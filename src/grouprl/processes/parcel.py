"""Sending functions and objects to another process: imported ones are named by their import path, and their code is not
sent.
"""

from __future__ import annotations

import importlib
import io
import os
import pickle
from typing import Any

from grouprl.core.errors import InputError
from grouprl.core.importing import ORIGINS, SOURCES, Source, module_from_source
from grouprl.core.json_types import JsonObject

MAIN = "__main__"


class CannotSend(InputError):
    """Error: an object cannot be sent, because another process could not find it."""


def refuse_system() -> None:
    """Check that processes of this system can be ended together with their children.

    Raises:
        CannotSend: they cannot.
    """
    if os.name != "posix":
        raise CannotSend("This system has no process groups", "workers need them so that their children are stopped")


def pack(sent: object, what: str) -> JsonObject:
    """Return plain data from which `unpack` rebuilds an object in another process; `what` names it in messages.

    Imported objects are sent as their import path, and modules imported from a file also as their text, so that the
    other process has the same code even if the file has changed since. The rest is pickled.

    Raises:
        CannotSend: if part of it is a local function or a lambda, belongs to the main script, or cannot be pickled.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, what)
    try:
        pickler.dump(sent)
    except CannotSend:
        raise
    except Exception as error:  # pickling runs the code of the objects it meets
        raise CannotSend(
            f"The {what} '{_name(sent)}' cannot be sent to a worker process: {error}",
            f"a worker imports the {what}, so it must be found by module and name",
            "Define it at the top of a module and name it as pkg.module:function or file.py:function.",
        ) from error
    sources = {name: (SOURCES[name].path, SOURCES[name].text) for name in pickler.files}
    return {"sources": sources, "pickle": buffer.getvalue()}


def unpack(parcel: JsonObject) -> Any:
    """Return the object that `pack` was given.

    Raises:
        Exception: any error of its modules while they are imported.
    """
    for name, (path, text) in parcel["sources"].items():
        module_from_source(name, Source(path, text))
    return _Unpickler(io.BytesIO(parcel["pickle"])).load()


def _name(sent: object) -> str:
    inner = getattr(sent, "func", sent)  # functools.partial keeps its function in .func
    return getattr(inner, "__name__", type(inner).__name__)


class _Pickler(pickle.Pickler):
    """A pickler that writes imported objects as their import path, and notes the modules imported from files that they
    need.
    """

    def __init__(self, buffer: io.BytesIO, what: str) -> None:
        super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self.what = what
        self.files: list[str] = []

    def persistent_id(self, obj: object) -> tuple[str, str] | None:
        origin = ORIGINS.get(id(obj))
        module = origin.module if origin else getattr(obj, "__module__", None)
        if module in SOURCES and module not in self.files:
            self.files.append(module)
        if module == MAIN:
            raise CannotSend(
                f"The {self.what} uses '{getattr(obj, '__qualname__', type(obj).__qualname__)}' of the main script",
                "a worker process cannot import the main script",
                f"Put the {self.what} into a module of its own.",
            )
        return (origin.module, origin.name) if origin else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, path: tuple[str, str]) -> object:
        found: object = importlib.import_module(path[0])
        for name in path[1].split("."):
            found = getattr(found, name)
        return found
