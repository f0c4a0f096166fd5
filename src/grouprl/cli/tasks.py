"""`grouprl tasks` and `grouprl metrics`."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grouprl.cli import completion
from grouprl.cli.results import put_data
from grouprl.core.json_types import JsonObject
from grouprl.core.terminal import Terminal

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from grouprl.cli.listing import ListedTask
    from grouprl.tasks import Task

EXAMPLES = 4
FIRST = ("jsonl", "hf", "addition", "countdown", "reverse", "sorting", "guess", "env", "tools", "program")
"""Tasks that readers look for first."""


def tasks_command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="A task, written as in a configuration.", autocompletion=completion.tasks
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")] = False,
) -> None:
    """List what can be trained on, or show one task: prompts, completions, options, levels.

    [bold]Examples[/]
    grouprl tasks
    grouprl tasks countdown
    grouprl tasks countdown --json
    grouprl tasks jsonl                  its options
    grouprl tasks jsonl:prompts.jsonl    its prompts
    grouprl train addition --set task=sorting --set task.length=6
    """
    from grouprl.cli.listing import listed_tasks

    console = Terminal()
    if as_json:
        found = [asdict(task) for task in listed_tasks()] if name is None else task_data(name)
        put_data(found, indent=2, default=str)
    elif name is None:
        _show_all(listed_tasks(), console)
    else:
        show_task(name, console)


def metrics_command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="A metric, a group, or a pattern.",
            autocompletion=completion.metrics,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")] = False,
) -> None:
    """Explain what every logged number means and how a healthy run looks.

    [bold]Examples[/]
    grouprl metrics                all of them
    grouprl metrics clip_fraction
    grouprl metrics "eval/*" --json
    """
    from grouprl.cli.metrics import chosen, show_metrics

    if as_json:
        put_data([asdict(metric) for metric in chosen(name)], indent=2)
    else:
        show_metrics(name, Terminal())


def task_data(name: str) -> JsonObject:
    """Return one task as plain data; an adapter without its argument ("jsonl") has no examples."""
    from grouprl.tasks import load_task, task_names
    from grouprl.tasks.registry import task_class

    adapter = name in {each.partition(":")[0] for each in task_names() if ":" in each}
    task = None if adapter else load_task(name)
    made = task_class(name) if task is None else type(task)
    found = {"name": name, "description": _reflowed(inspect.getdoc(made) or ""), "options": _options(made)}
    if task is None:
        return found
    size = task.size("eval")
    examples = [task.example("eval", index) for index in range(EXAMPLES if size is None else min(EXAMPLES, size))]
    shown = [{"prompt": example.prompt, "answer": task.solution(example)} for example in examples]
    sizes = {split: task.size(split) for split in ("train", "eval")}
    return {**found, "prompts": sizes, "max_new_tokens": task.max_new_tokens, "examples": shown}


def _options(made: type[Task]) -> list[JsonObject]:
    fields: dict[str, FieldInfo] = getattr(made, "model_fields", {})
    return [
        {
            "option": field.alias or key,
            "default": None if field.is_required() else field.get_default(call_default_factory=True),
            "required": field.is_required(),
            "meaning": field.description or "",
        }
        for key, field in fields.items()
    ]


def show_task(name: str, console: Console) -> None:
    """Print one task. An adapter without its argument ("jsonl") is shown without prompts."""
    from grouprl.tasks import load_task, task_names
    from grouprl.tasks.registry import task_class

    adapters = {each.partition(":")[0]: each for each in task_names() if ":" in each}
    task = None if name in adapters else load_task(name)
    made = task_class(name) if task is None else type(task)
    console.print(Text(adapters.get(name, name), style="bold"))
    console.print(Text(_reflowed(inspect.getdoc(made) or "")))
    if task is not None:
        _show_facts(task, console)
        _show_examples(task, console)
    _show_options(made, console)
    levels = getattr(made, "levels", ())
    if levels:
        named = [", ".join(f"{k} {v}" for k, v in sizes.items()) for sizes in levels]
        console.print(Text("levels", style="bold"))
        console.print(Text("\n".join(f"  {n}: {sizes}" for n, sizes in enumerate(named, 1))))


def _show_all(found: list[ListedTask], console: Console) -> None:
    table = Table(box=None, expand=True, show_header=False, pad_edge=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for task in sorted(found, key=_rank):
        table.add_row(Text(task.name), Text(task.description))
    console.print(table)
    hint = "grouprl tasks NAME shows prompts, answers, options and levels.  Your own: pkg.module:Class"
    console.print(Text(hint, style="dim"))


def _rank(task: ListedTask) -> int:
    """Return the place of a task in the listing: your own data first, then what is built in, then other adapters."""
    name, adapter, _ = task.name.partition(":")
    return FIRST.index(name) if name in FIRST else len(FIRST) + bool(adapter)


def _show_facts(task: Task, console: Console) -> None:
    sizes = {split: task.size(split) for split in ("train", "eval")}
    counts = "  ".join(f"{split}: {'endless' if n is None else n}" for split, n in sizes.items())
    console.print(f"prompts  {counts}   tokens per completion  at most {task.max_new_tokens}", highlight=False)


def _show_examples(task: Task, console: Console) -> None:
    from grouprl.records.examples import prompt_text

    size = task.size("eval")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("prompt", overflow="fold")
    table.add_column("a correct completion", overflow="fold", style="green")
    table.add_column("demonstrations for a warm-up", overflow="fold")
    for index in range(EXAMPLES if size is None else min(EXAMPLES, size)):
        example = task.example("eval", index)
        shown = {task.demonstration(example, seed) for seed in range(3)} - {None}
        table.add_row(
            Text(_visible(prompt_text(example.prompt))),
            Text(_visible(task.solution(example) or "—")),
            Text("   ".join(_visible(text) for text in sorted(map(str, shown))) or "none"),
        )
    console.print(table)


def _show_options(made: type[Task], console: Console) -> None:
    fields: dict[str, FieldInfo] = getattr(made, "model_fields", {})
    if not fields:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("option", "default", "meaning"):
        table.add_column(column)
    for key, field in fields.items():
        default = "required" if field.is_required() else repr(field.get_default(call_default_factory=True))
        table.add_row(Text(field.alias or key, style="cyan"), Text(default), Text(field.description or ""))
    console.print(table)


def _reflowed(text: str) -> str:
    """Join the lines of each paragraph, so that the terminal wraps them."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _visible(text: str) -> str:
    text = text.strip("\n").replace("\n", "⏎")
    return text if len(text) <= 240 else text[:239] + "…"
