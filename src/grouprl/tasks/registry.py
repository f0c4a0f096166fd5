"""Loading a task from a name, a mapping or an import path."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from grouprl.core.discovery import Discovered, task_homes
from grouprl.core.errors import GrouprlError, InputError, MissingExtra, raised, shortened, suggest
from grouprl.core.importing import import_object, own_is_named
from grouprl.core.timeout import MAKING, TooLong, alarm
from grouprl.records.examples import Example
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.options import check_option_names
from grouprl.tasks.task import Task

TaskClass = TypeVar("TaskClass", bound=type[Task])


@dataclass(frozen=True)
class _Entry:
    task: type[Task]
    argument: str | None  # the option that receives the text after "name:"


@dataclass(frozen=True)
class TaskDescription:
    """The description of a task for `grouprl tasks`; the example is empty for adapters, which need an argument."""

    name: str
    description: str
    levels: tuple[str, ...]
    prompt: str
    answer: str
    demonstration: str


_REGISTRY: Discovered[_Entry] = Discovered(task_homes)
DATA_FILES = (".jsonl", ".json", ".parquet", ".csv")
LIBRARIES = ("verifiers:", "textworld:")
"""Libraries of environments whose names may also follow "env:"."""


def register_task(name: str, *, argument: str | None = None) -> Callable[[TaskClass], TaskClass]:
    """Make a task class loadable by name (a class decorator).

    Args:
        name: the name, which is also the default of the task's `name`.
        argument: the option that receives the text after the colon in "name:text".

    Raises:
        InputError: if the name is taken by another class, or is not a plain word.
    """
    if not name.isidentifier():
        raise InputError(f"The task name '{name}' cannot be registered", "a name consists of letters, digits and '_'")

    def register(task: TaskClass) -> TaskClass:
        ours = task.__module__.startswith(
            "grouprl."
        )  # while one of our modules is imported, its own name is not looked up
        taken = _REGISTRY.loaded().get(name) if ours or not _REGISTRY.home(name) else _REGISTRY[name]
        if taken is not None and taken.task.__qualname__ != task.__qualname__:
            raise InputError(f"The task name '{name}' is taken by {taken.task.__qualname__}")
        _REGISTRY[name] = _Entry(task, argument)
        task.registered_as = name
        return task

    return register


def task_names() -> list[str]:
    """Return the registered names; adapters as "name:<argument>"."""
    return sorted(n if e.argument is None else f"{n}:<{e.argument}>" for n, e in _REGISTRY.items())


def task_class(name: str) -> type[Task]:
    """Return the class registered as `name`. Raises InputError for an unknown name, listing the nearest known ones."""
    if name not in _REGISTRY:
        raise InputError(f"There is no task '{name}'", remedy=f"{suggest(name, _REGISTRY)} Your own: pkg.module:Class.")
    return _REGISTRY[name].task


def load_task(spec: str | Mapping[str, object], seed: int = 0) -> Task:
    """Return the task that a configuration names.

    Args:
        spec: a name ("addition"), an adapter with its argument ("jsonl:data.jsonl"), an import path of a task class
            ("pkg.module:Class", "path/to/file.py:Class"), or a mapping with one of these as "name" and options.
        seed: selects the stream of prompts, for tasks that sample. A "seed" among the options takes precedence.

    Raises:
        InputError: on unknown names and options (with the nearest known ones) and on values that break a rule.
        MissingExtra: if the task needs a package that is not installed.
    """
    name, options = _name_and_options(spec)
    if name.removeprefix("env:").startswith(LIBRARIES):
        name = name.removeprefix("env:")
    head, colon, text = name.partition(":")
    entry = _REGISTRY.get(head)
    if entry is None:
        if colon and text.endswith(DATA_FILES):
            remedy = f"JSON lines are jsonl:{text}; Parquet, CSV and JSON are hf:{text}"
            raise InputError(f"There is no task '{head}'", "a data file is named after the task that reads it", remedy)
        if colon:
            return _build_own(name, options, seed)
        own = own_is_named(name, "Class")
        remedy = own if name.endswith(".py") else f"{suggest(name, _REGISTRY)} {own}"
        raise InputError(f"There is no task '{name}'", remedy=remedy)
    if colon:
        if entry.argument is None:
            raise InputError(f"The task '{name}' got '{text}' after the colon", f"'{head}' takes no argument")
        if entry.argument in options:
            raise InputError(f"The task '{name}' got '{entry.argument}' twice", "after the colon or as an option")
        options[entry.argument] = text
    if entry.argument is not None and not options.get(entry.argument):
        raise InputError(f"The task '{head}' lacks its {entry.argument}", f"it is written {head}:<{entry.argument}>")
    return _build(entry.task, head, options, seed)


def describe_tasks() -> list[TaskDescription]:
    """Return, for every registered task, its description, its levels and an example."""
    return [_describe(name, entry) for name, entry in sorted(_REGISTRY.items())]


def _name_and_options(spec: str | Mapping[str, object]) -> tuple[str, dict[str, object]]:
    if isinstance(spec, str):
        return spec, {}
    if not isinstance(spec, Mapping) or not all(isinstance(key, str) for key in spec):
        raise InputError(
            f"The task is given as {shortened(spec)}", "it must be a name, or a mapping with 'name' and options"
        )
    options = dict(spec)
    name = options.pop("name", None)
    if not isinstance(name, str) or not name:
        raise InputError(f"The task {dict(spec)} has no name", "the key 'name' says which task it is")
    return name, options


def _import_task(path: str) -> type[Task]:
    found = import_object(path, "task")
    if not (inspect.isclass(found) and issubclass(found, Task)):
        acts = hasattr(found, "reset") and hasattr(found, "step")
        remedy = f"An environment is named after env: 'env:{path}'" if acts else ""
        raise InputError(f"'{path}' is not a task", "a task is a subclass of grouprl.tasks.Task", remedy)
    return found


def _build_own(path: str, options: dict[str, object], seed: int) -> Task:
    """Return a task of the user's own class, constructed within a time limit."""
    task = _import_task(path)
    try:
        with alarm(MAKING):
            return _build(task, path, options, seed)
    except GrouprlError:
        raise
    except (Exception, SystemExit) as error:
        rule = "its constructor must not raise, and it must have all members of grouprl.tasks.Task"
        raise InputError(f"The task '{path}' cannot be made: {raised(error)}", rule) from error
    except TooLong:
        rule = f"its constructor must return within {MAKING:g} seconds"
        raise InputError(
            f"The task '{path}' was not made in time", rule, "Read large data when it is first needed"
        ) from None


def _build(task: type[Task], name: str, options: dict[str, object], seed: int) -> Task:
    parameters = inspect.signature(task).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        check_option_names(name, options, known)
    if "seed" in known:
        options = {"seed": seed, **options}
    return task(**options)


def _describe(name: str, entry: _Entry) -> TaskDescription:
    if entry.argument is not None or not issubclass(entry.task, GeneratedTask):
        label = name if entry.argument is None else f"{name}:<{entry.argument}>"
        return TaskDescription(label, (entry.task.__doc__ or "").strip().split("\n")[0], (), "", "", "")
    task = entry.task()
    example = task.example("eval", 0)
    return TaskDescription(
        name=name,
        description=task.description,
        levels=tuple(json.dumps(dict(sizes))[1:-1].replace('"', "") for sizes in task.levels),
        prompt=str(example.prompt),
        answer=task.solve(example),
        demonstration=_demonstrated(task, example),
    )


def _demonstrated(task: GeneratedTask, example: Example) -> str:
    """Return a demonstration; if it needs a package or a program that is not installed, say what to install."""
    try:
        return task.demonstration(example, seed=0)
    except (MissingExtra, InputError) as error:
        return str(error)
