"""Code of the user's: modules by name, files by path, and packages that announce themselves as plugins."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from grouprl.core.errors import InputError, raised
from grouprl.core.importing import SOURCES, Source, import_from_beside, module_from_source
from grouprl.core.timeout import imported_in_time

ENTRY_POINTS = "grouprl.plugins"
"""Group of entry points under which an installed package announces modules that register parts, methods, metrics."""
PLUGIN_RULE = "a plugin is the name of a module or the path of a Python file"

_announced: list[str] = []


def load_module(where: str, rule: str) -> ModuleType:
    """Import the module named `where`; raises InputError, which states the `rule`, if that fails."""
    if not all(name.isidentifier() for name in where.split(".")):
        raise InputError(f"'{where}' is not a module's name", rule)
    with _importing(where, rule):
        return importlib.import_module(where)


def load_file(where: str, rule: str) -> ModuleType:
    """Import the Python file `where`, once; raises InputError, which states the `rule`, if that fails."""
    path = Path(where).expanduser().resolve()
    module_name = f"grouprl_user_{path.stem}_{zlib.crc32(str(path).encode())}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    if not path.is_file():
        raise InputError(f"there is no file '{path}'", rule)
    import_from_beside(path)
    with _importing(where, rule):
        return module_from_source(module_name, Source(str(path), path.read_bytes()))


def sources_of_files() -> dict[str, Source]:
    """Return the source of each file that `load_file` imported, by module name.

    Another process needs it to unpickle the parts that the file defines.
    """
    return {name: source for name, source in SOURCES.items() if name.startswith("grouprl_user_")}


def import_sources(sources: Mapping[str, Source]) -> None:
    """Import files that another process imported with `load_file`; raises InputError if one fails."""
    for name, source in sources.items():
        import_from_beside(Path(source.path))
        with _importing(source.path, PLUGIN_RULE):
            module_from_source(name, source)


def load_plugins(plugins: Iterable[str]) -> list[ModuleType]:
    """Import modules and files that register parts, methods or metrics; each is imported once in a process.

    Raises:
        InputError: a module or file cannot be imported.
    """
    return [(load_file if each.endswith(".py") else load_module)(each, PLUGIN_RULE) for each in plugins]


def announced() -> tuple[str, ...]:
    """Return the names under which installed packages announce plugins; imports none of them."""
    return tuple(each.name for each in importlib.metadata.entry_points(group=ENTRY_POINTS))


def load_announced() -> None:
    """Import, once, the modules that installed packages announce as entry points of the group `grouprl.plugins`.

    A module that cannot be imported is skipped with a warning: it must not stop a run that does not use it.
    """
    if _announced:
        return
    _announced.append(ENTRY_POINTS)
    import importlib.metadata  # slow to import, and listings do not need it

    for each in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            with imported_in_time(each.value):
                each.load()
        except Exception as error:
            warnings.warn(f"the plugin {each.name} ({each.value}) is left out: {error!r}", stacklevel=2)
        else:
            _announced.append(each.name)


@contextmanager
def _importing(where: str, rule: str) -> Iterator[None]:
    """Turn an exception of the user's code during its import into an InputError that explains it."""
    with imported_in_time(where):
        try:
            yield
        except InputError as error:  # for instance, a part that breaks a rule of parts
            raise InputError(f"cannot import '{where}': {error.what}", error.rule, error.remedy) from error
        except (Exception, SystemExit) as error:
            raise InputError(f"cannot import '{where}': {raised(error)}", rule) from error
