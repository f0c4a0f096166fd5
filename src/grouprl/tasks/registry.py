"""From a name (or mapping, or import path) to a task."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from grouprl.errors import InputError, suggest
from grouprl.rewards import import_object
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.task import Task

TaskClass = TypeVar("TaskClass", bound=type[Task])


@dataclass(frozen=True)
class _Entry:
    task: type[Task]
    argument: str | None  # the option that the text after "name:" goes to


@dataclass(frozen=True)
class TaskDescription:
    """What `grouprl tasks` shows of a task; the example is empty for adapters, which need something to adapt."""

    name: str
    description: str
    levels: tuple[str, ...]
    prompt: str
    answer: str
    demonstration: str


_REGISTRY: dict[str, _Entry] = {}


def register_task(name: str, *, argument: str | None = None) -> Callable[[TaskClass], TaskClass]:
    """Make a task class loadable by name (a class decorator).

    Args:
        name: the name; it becomes the class's `name`, too, unless the class sets that itself.
        argument: the option that receives the text after the colon in "name:text".

    Raises:
        InputError: if the name is taken by another class, or is not a plain word.
    """

    def register(task: TaskClass) -> TaskClass:
        if not name.isidentifier():
            raise InputError(f"The task name '{name}' cannot be registered", "a name is letters, digits and '_'")
        taken = _REGISTRY.get(name)
        if taken is not None and taken.task.__qualname__ != task.__qualname__:
            raise InputError(f"The task name '{name}' is taken by {taken.task.__qualname__}")
        _REGISTRY[name] = _Entry(task, argument)
        if "name" not in vars(task):
            task.name = name  # type: ignore[method-assign, assignment]
        return task

    return register


def task_names() -> list[str]:
    """Return the registered names; adapters as "name:<argument>"."""
    return sorted(n if e.argument is None else f"{n}:<{e.argument}>" for n, e in _REGISTRY.items())


def load_task(spec: str | Mapping[str, Any], seed: int = 0) -> Task:
    """Return the task that a configuration asks for.

    Args:
        spec: a name ("addition"), an adapter with its argument ("jsonl:data.jsonl"), an import path of a task class
            ("pkg.module:Class", "path/to/file.py:Class"), or a mapping with one of these as "name" and options.
        seed: which stream of questions is drawn, for tasks that draw. A "seed" among the options goes before.

    Raises:
        InputError: on unknown names and options (with the nearest known ones) and on values that break a rule.
        MissingExtra: if the task needs a package that is not installed.
    """
    name, options = _name_and_options(spec)
    head, colon, text = name.partition(":")
    entry = _REGISTRY.get(head)
    if entry is None:
        if colon:
            return _build(_import_task(name), name, options, seed)
        remedy = f"{suggest(name, _REGISTRY)} Your own: pkg.module:Class."
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


def _name_and_options(spec: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(spec, str):
        return spec, {}
    options = dict(spec)
    name = options.pop("name", None)
    if not isinstance(name, str) or not name:
        raise InputError(f"The task {dict(spec)} has no name", "the key 'name' says which task it is")
    return name, options


def _import_task(path: str) -> type[Task]:
    found = import_object(path, "task")
    if not (inspect.isclass(found) and issubclass(found, Task)):
        raise InputError(f"'{path}' is no task", "a task is a subclass of grouprl.tasks.Task")
    return found


def _build(task: type[Task], name: str, options: dict[str, Any], seed: int) -> Task:
    known = _option_names(task)
    for option in options:
        if known is not None and option not in known:
            remedy = suggest(option, known) if known else "It has no options."
            raise InputError(f"Task '{name}' has no option '{option}'", remedy=remedy)
    if known is None or "seed" in known:
        options = {"seed": seed, **options}
    try:
        return task(**options)
    except ValidationError as error:
        raise _in_words(error, name) from error


def _option_names(task: type[Task]) -> list[str] | None:
    """Return the options of a task class; None if it takes any."""
    parameters = inspect.signature(task).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _in_words(error: ValidationError, name: str) -> InputError:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    rule = first["msg"].removeprefix("Value error, ")
    if not where:
        return InputError(f"The options of task '{name}' do not fit together", rule)
    if first["type"] == "missing":
        return InputError(f"Task '{name}' lacks its option '{where}'")
    return InputError(f"Option '{where}' of task '{name}' is {first['input']!r}", rule[0].lower() + rule[1:])


def _describe(name: str, entry: _Entry) -> TaskDescription:
    if entry.argument is not None or not issubclass(entry.task, GeneratedTask):
        label = name if entry.argument is None else f"{name}:<{entry.argument}>"
        return TaskDescription(label, (entry.task.__doc__ or "").strip().split("\n")[0], (), "", "", "")
    task = entry.task()
    question = task.question("eval", 0)
    return TaskDescription(
        name=name,
        description=task.description,
        levels=tuple(json.dumps(dict(sizes))[1:-1].replace('"', "") for sizes in task.levels),
        prompt=str(question.prompt),
        answer=task.solve(question),
        demonstration=task.demonstration(question, seed=0),
    )
