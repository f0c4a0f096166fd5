"""Python objects in a configuration: each is replaced by the name under which other processes import it.

A run writes its settings to a file, resumes from it, and has processes of its own that score and act. So a function, a
class, a method, a part or a task that Python code passes is replaced by its form in YAML.
"""

from __future__ import annotations

import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from types import ModuleType
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError, shortened
from grouprl.core.importing import SOURCES

if TYPE_CHECKING:
    from grouprl.algorithms.method import Method
    from grouprl.algorithms.part import Part
    from grouprl.tasks import Task

WRITTEN = (str, bool, int, float, type(None))
"""Types that YAML has besides lists and mappings."""
ENVIRONMENTS = {
    "control:": ("gymnasium", "Env"),
    "squad:": ("pettingzoo", "ParallelEnv"),
    "pettingzoo:": ("pettingzoo", "AECEnv"),
}
"""By the prefix of a task, the library and the class of the environments that it acts in."""
RULE = "processes of a run import it by its name, which stands at the top of a file"


def without_objects(data: Mapping[str, object]) -> Mapping[str, object]:
    """Return a configuration with each Python object named as YAML names it; files of own parts become plugins.

    A function as `reward` becomes its `function`; an environment's class or maker as `task` gets its prefix, such as
    `env:`. Other values are left to the check of the configuration.

    Raises:
        InputError: an object has no name in a file: a lambda, a function within another, a cell of a notebook.
    """
    if _is_written(data):
        return data
    naming = Naming()
    found = {key: _placed(naming, key, value) for key, value in data.items()}
    own = found.get("plugins") or []
    if naming.plugins and isinstance(own, list):
        found["plugins"] = [*own, *(each for each in naming.plugins if each not in own)]
    return found


def without_object(key: str, value: object) -> object:
    """Return what a configuration says at `key` of a Python object; other values as they are.

    Raises:
        InputError: it has no name in a file, or is a method with parts of one's own, which `plugins` would import.
    """
    naming = Naming()
    found = _placed(naming, key, value)
    if naming.plugins:
        raise InputError(
            f"{key}: a method with parts of {', '.join(naming.plugins)}",
            "processes that work for it import its parts",
            "Give the function of that file that makes the method, or name the file in plugins",
        )
    return found


def _placed(naming: Naming, key: str, value: object) -> object:
    try:
        return naming.place(key, value)
    except InputError as error:
        raise InputError(f"{key}: {error.what}", error.rule, error.remedy) from None


def reference(found: object) -> str:
    """Return `file.py:name` or `pkg.module:name`, by which other processes import an object.

    Raises:
        InputError: it has no name at the top of a file.
    """
    if inspect.ismethod(found) and isinstance(found.__self__, type):  # each look at a class makes it anew
        return f"{reference(found.__self__)}.{found.__name__}"
    for module in _candidates(found):
        if name := _name_in(module, found):
            return f"{_place(module, found)}:{name}"
    raise InputError(
        f"{shortened(found)} has no name", RULE, "Define it by def or class at the top of a file, and pass it by name"
    )


class Naming:
    """Names the objects of one configuration, and keeps which `plugins` its parts need."""

    def __init__(self) -> None:
        self.plugins: dict[str, None] = {}

    def place(self, key: str, value: object) -> object:
        """Return what stands at a key of the configuration in place of `value`."""
        if key == "task":
            return self._task(value)
        if key == "reward" and not (isinstance(value, Mapping) or _is_written(value)):
            return {"function": self.named(value)}
        return self.named(value)

    def named(self, value: object) -> object:
        """Return a value with every object in it named."""
        if isinstance(value, WRITTEN):
            return value
        if isinstance(value, Mapping):
            return {key: self.named(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.named(each) for each in value]
        if isinstance(value, PurePath):
            return str(value)
        return self._object(value)

    def _object(self, value: object) -> object:
        from grouprl.algorithms.method import Method
        from grouprl.algorithms.part import Part
        from grouprl.methods.compose import Resolved, part_data

        if isinstance(value, Resolved):
            value = value.method
        if isinstance(value, Method):
            return self._method(value)
        if isinstance(value, Part):
            self._needs(value)
            return part_data(value)
        if isinstance(value, type) and issubclass(value, Part):
            self._needs_class(value)
            return value.name
        return reference(value) if callable(value) or _is_global(value) else value

    def _method(self, method: Method) -> object:
        from grouprl.methods.compose import as_written

        for part in method.parts():
            self._needs(part)
        return as_written(method)

    def _needs(self, part: Part) -> None:
        for each in part.whole():
            self._needs_class(type(each))

    def _needs_class(self, kind: type) -> None:
        if not kind.__module__.startswith("grouprl."):
            self.plugins[reference(kind).rpartition(":")[0]] = None

    def _task(self, value: object) -> object:
        """Return the task: a text, or a mapping with a name."""
        from grouprl.tasks import Task

        if isinstance(value, Task):
            return {"name": reference(type(value)), **self._options(value)}
        if isinstance(value, Mapping) and not isinstance(value.get("name"), str):
            return {key: self._task(each) if key == "name" else self.named(each) for key, each in value.items()}
        if not callable(value):
            return self.named(value)
        if isinstance(value, type) and issubclass(value, Task):
            return reference(value)
        return _prefix(value) + reference(value)

    def _options(self, task: Task) -> dict[str, object]:
        """Return the options with which a task was made, which it keeps under their names."""
        wanted = [name for name in inspect.signature(type(task)).parameters if name != "seed"]
        if lost := [name for name in wanted if not hasattr(task, name)]:
            raise InputError(
                f"the task {type(task).__name__} does not say its {lost[0]}",
                "a task is made anew, from its options, in every process of a run",
                f"Give the class with its options: {{'name': {type(task).__name__}, '{lost[0]}': …}}",
            )
        return {name: self.named(getattr(task, name)) for name in wanted}


def _is_written(value: object) -> bool:
    """Return whether YAML can hold a value as it is."""
    if isinstance(value, Mapping):
        return all(map(_is_written, value.values()))
    return all(map(_is_written, value)) if isinstance(value, list) else isinstance(value, WRITTEN)


def _is_global(value: object) -> bool:
    """Return whether an object that cannot be called, such as an instance of a class, has a name in a module."""
    return type(value).__module__ != "builtins" and any(_name_in(module, value) for module in _candidates(value))


def _candidates(found: object) -> Iterator[ModuleType]:
    """Yield the modules that may name an object: its own, the program's, and for an instance all of the user's."""
    own = getattr(found, "__module__", None) if hasattr(found, "__qualname__") else None
    for name in (own or type(found).__module__, "__main__"):
        if name in sys.modules:
            yield sys.modules[name]
    if own is None:
        for module in list(sys.modules.values()):
            if not _installed(Path(str(getattr(module, "__file__", None) or ""))):
                yield module


def _name_in(module: ModuleType, found: object) -> str:
    """Return the dotted name under which a module holds this very object; "" if it does not."""
    at: object = module
    own = str(getattr(found, "__qualname__", ""))
    for part in own.split("."):
        at = getattr(at, part, None)
    if own and at is found:
        return own
    return next((name for name, each in vars(module).items() if each is found and name.isidentifier()), "")


def _place(module: ModuleType, found: object) -> str:
    """Return the file of a module, or its dotted name if it is part of a package or installed."""
    if module.__name__ in SOURCES:
        return SOURCES[module.__name__].path
    name = module.__name__
    if name == "__main__" and getattr(module, "__spec__", None) is not None:
        name = str(module.__spec__.name)  # type: ignore[union-attr]  # python -m pkg.module
    file = Path(str(getattr(module, "__file__", None) or ""))
    if name != "__main__" and ("." in name or _installed(file)):
        return name
    if file.suffix != ".py" or not file.is_file():
        raise InputError(
            f"{shortened(found)} is not defined in a file",
            RULE,
            "In a notebook, write its cell to one: %%writefile mine.py",
        )
    return str(file.resolve())


def _installed(file: Path) -> bool:
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return not file.name or any(file.is_relative_to(folder) for folder in folders)


def _prefix(make: Callable[..., object]) -> str:
    """Return the prefix of the task that acts in the environments of a class or of a maker."""
    if isinstance(make, type):
        for prefix, (library, name) in ENVIRONMENTS.items():
            if issubclass(make, getattr(sys.modules.get(library), name, ())):
                return prefix
    return "env:"
