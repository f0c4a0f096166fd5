"""Import of an object by its path, from a module or a file, with readable errors."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from grouprl.core.errors import InputError, raised, suggest
from grouprl.core.timeout import imported_in_time


@dataclass(frozen=True)
class Origin:
    """The origin of an imported object: its module, the dotted name in it, and the object itself."""

    module: str
    name: str
    found: object


@dataclass(frozen=True)
class Source:
    """The text of a module that was imported from a file by its path."""

    path: str
    text: bytes


ORIGINS: dict[int, Origin] = {}
"""Origins by the `id` of the object that `import_object` returned; objects are kept, so that an id is not reused."""


SOURCES: dict[str, Source] = {}
"""Sources by the name that `import_object` gave the module of a file."""
_EXECUTED: list[str] = []
"""The files whose code is being executed to import them."""


def import_object(path: str, what: str) -> object:
    """Import "pkg.module:name" or "path/to/file.py:name"; `what` names the thing in messages ("reward").

    Modules are looked for in the working directory too.

    Raises:
        InputError: the module or the name does not exist, or the module fails while being imported.
    """
    location, _, name = path.rpartition(":")
    if not location or not name:
        raise InputError(
            f"The {what} '{path}' is not an import path",
            "it must have the form pkg.module:name or path/to/file.py:name",
        )
    module = _module_from_file(Path(location), what) if location.endswith(".py") else _module(location, what)
    found: object = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [n for n in vars(found) if not n.startswith("_")] if hasattr(found, "__dict__") else []
            remedy = suggest(part, public) if public else "It defines no names."
            raise InputError(f"There is no '{part}' in {location} (for the {what} '{path}')", remedy=remedy)
        found = getattr(found, part)
    if callable(found) or type(found).__module__ != "builtins":  # equal numbers may be one object
        ORIGINS[id(found)] = Origin(module.__name__, name, found)
    return found


def own_is_named(given: str, kind: str) -> str:
    """Return a remedy for an unknown name `given`: how to name a `kind` ("Class", "function") of the user's own."""
    return f"Add a name from the file: {given}:{kind}" if given.endswith(".py") else f"Your own: pkg.module:{kind}."


def module_from_source(name: str, source: Source) -> ModuleType:
    """Return the module `name` with this source, executing it unless it is imported already.

    Raises:
        Exception: whatever the module's code raises.
    """
    if SOURCES.get(name) == source and name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = source.path
    sys.modules[name] = module  # dataclasses and pickle look their module up by name
    _EXECUTED.append(source.path)
    try:
        exec(compile(source.text, source.path, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        _EXECUTED.pop()
    SOURCES[name] = source
    return module


def refuse_within_import(call: str) -> None:
    """Refuse a call that starts runs, such as `grouprl.train`, from a file that a run imports.

    Raises:
        InputError: a file is being imported.
    """
    if _EXECUTED:
        raise InputError(
            f"{_EXECUTED[-1]} calls {call} as it is imported",
            "the processes of a run import the files that its settings name",
            'Put the call below `if __name__ == "__main__":`',
        )


def import_from_beside(path: Path) -> None:
    """Append the folder of a Python file to `sys.path`, so that the file can import the modules next to it.

    The folder stays there, because functions may import when they are called.
    """
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)


@contextmanager
def working_directory_importable() -> Iterator[None]:
    """Also look for modules in the working directory during the block, as a script in that folder would."""
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


def _one(what: str) -> str:
    return f"an {what}" if what[0] in "aeiou" else f"a {what}"


def _module(name: str, what: str) -> ModuleType:
    with working_directory_importable(), imported_in_time(name):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
                raise _broken(name, what, error) from error
            raise InputError(
                f"The module '{name}' of {_one(what)} cannot be found",
                remedy=f"It was looked for in {os.getcwd()} and in the installed packages. For a file, give its path.",
            ) from error
        except (Exception, SystemExit) as error:
            raise _broken(name, what, error) from error


def _module_from_file(path: Path, what: str) -> ModuleType:
    if not path.is_file():
        raise InputError(f"The file '{path}' of {_one(what)} does not exist", remedy=f"Looked for {path.resolve()}.")
    digest = hashlib.blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()
    import_from_beside(path)
    with imported_in_time(str(path)):
        try:
            return module_from_source(f"{path.stem}_{digest}", Source(str(path.resolve()), path.read_bytes()))
        except (Exception, SystemExit) as error:
            raise _broken(str(path), what, error) from error


def _broken(where: str, what: str, error: BaseException) -> InputError:
    if isinstance(error, InputError):  # for instance, a part that breaks a rule of parts
        return InputError(f"Importing '{where}' for {_one(what)} failed: {error.what}", error.rule, error.remedy)
    return InputError(f"Importing '{where}' for {_one(what)} failed: {raised(error)}")
