"""`grouprl plan`: the plan of a run in the terminal."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from grouprl.cli.quiet import Telling
from grouprl.cli.results import put_data
from grouprl.cli.terminal_page import facts, heading, plain_table
from grouprl.cli.train import Changes, SourceArgument
from grouprl.core.errors import InputError
from grouprl.core.late_import import import_late
from grouprl.core.terminal import READING, Terminal

if TYPE_CHECKING:
    from grouprl.config.run import Config
    from grouprl.core.finding import Finding
    from grouprl.plan.memory import Arithmetic
    from grouprl.plan.plan import Plan
    from grouprl.plan.setting_sources import Setting


Everything = Annotated[bool, typer.Option("--all", help="Show settings at their defaults too.")]
OneObject = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
PlannedCluster = Annotated[
    str | None, typer.Option(metavar="CLUSTER", help="Plan for a cluster: 4x8xH100, 8xA100, L40S …")
]
MeanTokens = Annotated[
    float | None,
    typer.Option(metavar="N", help="With --on: mean tokens of a completion (default: half the limit)."),
]
HourPrice = Annotated[
    float | None, typer.Option(metavar="X", min=0, help="With --on: price of an accelerator for an hour.")
]
Pilots = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="RUN",
        help="Use a run as a pilot: which groups teach, and how many prompts and seeds show a difference.",
    ),
]
DifferenceToSee = Annotated[
    float | None, typer.Option(metavar="X", help="With --power: the difference to be seen (default: 0.03).")
]


def plan_command(
    source: SourceArgument,
    changes: Changes = None,
    everything: Everything = False,
    as_json: OneObject = False,
    on: PlannedCluster = None,
    completion_tokens: MeanTokens = None,
    price: HourPrice = None,
    power: Pilots = None,
    see: DifferenceToSee = None,
) -> None:
    """Show what a run will do, and check it: nothing is trained or written.

    Batch arithmetic, tokens, memory, the objective in words and in symbols,
    where each number comes from, settings without effect, contradictions.

    [bold]Examples[/]
    grouprl plan addition
    grouprl plan addition --all
    grouprl plan run.yaml --set batch.group_size=1
    grouprl plan run.yaml --json
    grouprl plan run.yaml --on 4x8xH100 --completion-tokens 800 --price 2.5
    grouprl plan run.yaml --power runs/pilot-s0 --power runs/pilot-s1 --see 0.05

    Exit code 2 if the run cannot work.
    """
    if power:
        from grouprl.cli.plan_power import show_power

        show_power(source, changes or [], power, 0.03 if see is None else see, as_json=as_json)
        return
    if see is not None:
        raise InputError("--see belongs to --power", "a difference is seen with what a pilot says")
    if on is not None:
        from grouprl.cli.plan_on import show_on

        show_on(source, changes or [], on, completion_tokens, price, as_json=as_json)
        return
    if completion_tokens is not None or price is not None:
        raise InputError("--completion-tokens and --price belong to --on", "they describe a run on a cluster")
    _show_found(source, changes or [], everything, as_json)


def _show_found(source: str, changes: Sequence[str], everything: bool, as_json: bool) -> None:
    """Print the plan of a run; exit with 2 if the run cannot work."""
    with _without_collection():
        found = _planned(source, changes, quiet=as_json or Telling.quiet)
    if as_json:
        put_data(found.as_data())
    else:
        show_plan(found, Terminal(), everything)
    if found.refusals:
        raise typer.Exit(2)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Collect no cyclic garbage inside the block, and never search what it made: imports stay anyway, and searching
    them takes long, also when the process ends.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()


def _planned(source: str, changes: Sequence[str], *, quiet: bool) -> Plan:
    """Return the plan with the origins of its settings; the run folder and the recipe are looked at first."""
    from grouprl.config.run import load_config

    import_late("torch")  # most plans need nothing of it, and importing it takes longer than all the rest
    config = load_config(source, changes)
    early = [*_folder_refusals(config), *_of_recipe(source)]
    with Terminal(stderr=True, quiet=quiet).status(READING):
        from grouprl.plan.plan import plan

        found = _with_sources(plan(config), source, changes)
    return replace(found, findings=(*early, *found.findings))


def _with_sources(plan: Plan, source: str, changes: Sequence[str]) -> Plan:
    """Return the plan with the origin of each given setting: the recipe, the file, or --set."""
    from grouprl.config.run import recipe_names
    from grouprl.methods.compose import BY_YOU

    where = f"set by the recipe {source}" if source in recipe_names() and not Path(source).is_file() else BY_YOU
    changed = tuple(change.partition("=")[0] for change in changes)

    def said(setting: Setting, prefix: str) -> Setting:
        key = prefix + setting.key
        own = any(each in (key, f"{key}.part", f"{key}.name") or key.startswith(f"{each}.") for each in changed)
        within = ", changed by --set" if any(each.startswith(f"{key}.") for each in changed) else ""
        origin = setting.origin
        if origin == "set" or origin.startswith(("set,", BY_YOU)):
            rest = origin.removeprefix(BY_YOU).removeprefix("set")
            return replace(setting, origin=("set by --set" if own else where + within) + rest)
        return setting

    return replace(
        plan,
        settings=tuple(said(each, "") for each in plan.settings),
        method_settings=tuple(said(each, "method.") for each in plan.method_settings),
    )


def _of_recipe(source: str) -> Iterator[Finding]:
    """Yield a note on a recipe whose records do not show that it learns."""
    from grouprl.config.recipe_list import note_on
    from grouprl.plan.codes import NOT_SHOWN

    if said := note_on(source):
        yield NOT_SHOWN(said, "", key=source)


def _folder_refusals(config: Config) -> Iterator[Finding]:
    from grouprl.plan.codes import RUN_FOLDER
    from grouprl.storage.run_folder import cannot_be_made

    if config.run.folder and (reason := cannot_be_made(Path(config.run.folder))):
        yield RUN_FOLDER(f"run.folder is {config.run.folder}: {reason}", "Choose another place")


def show_plan(plan: Plan, console: Console, everything: bool = False) -> None:
    """Print the sections of a plan."""
    heading(console, "Task and model")
    console.print(facts(_subject(plan)))
    heading(console, "Batch arithmetic")
    console.print(facts((name, plan.worded(words)) for name, words in _arithmetic(plan)))
    if plan.pass_choices:
        heading(console, "Passes through the model (no result depends on this)")
        console.print(facts((way.name, f"{way.value}: {way.why}") for way in plan.pass_choices))
    if plan.costs:
        heading(console, "Memory (estimate)")
        console.print(_memory(plan))
    heading(console, f"Objective: {plan.method.name}")
    console.print(_stages(plan))
    console.print(Padding(Text(plan.formula), (1, 2, 0, 2)))
    heading(console, "Method settings")
    console.print(_table(plan, plan.method_settings))
    heading(console, "Run settings" if everything else "Run settings that were set (--all shows the defaults too)")
    shown = [s for s in plan.settings if everything or s.origin != "default"]
    console.print(_table(plan, shown) if shown else Padding("none: everything is at its default", (0, 2)))
    _sentences(console, "Without effect", map(plan.worded, plan.idle), "yellow")
    _sentences(console, "Notes", map(plan.worded, plan.notes), "cyan")
    _sentences(console, "Refused: this run cannot work", plan.refusals, "bold red")
    if not plan.refusals:
        console.print(Text("\nNothing rules out this run.", style="green"))


def _subject(plan: Plan) -> Iterable[tuple[str, str]]:
    yield "task", plan.task
    yield "a prompt", repr(plan.example) if len(plan.example) < 300 else f"{plan.example[:300]!r} …"
    if plan.shown_as:
        yield "shown as", plan.shown_as
    if plan.solution:
        yield "a correct completion", repr(plan.solution)
    model = plan.model
    if model is None:
        yield "model", plan.config.model.name + ("" if plan.actions else " (not on this machine)")
        return
    yield (
        "model",
        f"{plan.config.model.name}: {model.parameters:,} parameters"
        + (f", {model.trainable:,} of them trained (LoRA)" if model.trainable != model.parameters else ""),
    )
    yield (
        "",
        f"{model.layers} layers, hidden {model.hidden}, vocabulary {model.vocabulary}, "
        f"{model.positions or 'unlimited'} positions; {model.dtype} on {model.device}",
    )
    if plan.config.warmup.steps:
        warmup = plan.config.warmup
        yield "warm-up", f"{warmup.steps} supervised steps on {warmup.batch} demonstrations each, lr {warmup.lr:g}"


def _updates(b: Arithmetic) -> Iterable[tuple[str, str]]:
    """Yield how a rollout is cut into optimiser steps."""
    passes = f"{b.epochs} epoch{'s' if b.epochs > 1 else ''}"
    if not b.whole_rows:
        sets = b.updates_per_rollout // b.epochs
        cut = f"≤ {sets} set{'s' if sets > 1 else ''} of actions × {passes} = ≤ {b.updates_per_rollout} per rollout"
        yield "updates", f"{cut}; × {b.steps} rollouts = ≤ {b.updates:,} in all"
        return
    cut = f"{b.minibatches} minibatch{'es' if b.minibatches > 1 else ''} × {passes}"
    if b.phases > 1:
        cut += f" × {b.phases} phases"
    yield "updates", f"{cut} = {b.updates_per_rollout} per rollout; × {b.steps} rollouts = {b.updates:,} in all"
    exact = b.rows_per_update * b.minibatches == b.completions
    yield "an update", f"{b.completions} / {b.minibatches} {'=' if exact else '≤'} {b.rows_per_update} completions"


def _arithmetic(plan: Plan) -> Iterable[tuple[str, str]]:
    b = plan.batch
    yield "a rollout", f"{b.prompts} prompts × {b.group_size} completions = {b.completions} completions"
    if b.refill_rounds > 1:
        yield "", f"zero-variance groups are sampled again, up to {b.refill_rounds} times as many completions"
    for number, sentence in enumerate(plan.extra_samples):
        yield "" if number else "besides", sentence
    yield from _updates(b)
    if (each := plan.actions_per_step) is not None:
        yield (
            "actions",
            f"{b.completions} environments × {each} = {b.completions * each:,} per rollout; episodes continue",
        )
        return
    if plan.actions:
        yield "actions", f"an episode ≤ {b.max_new_tokens}; ≤ {b.completions * b.max_new_tokens:,} per rollout"
        return
    if not b.prompt_tokens:
        yield "tokens", f"completion ≤ {b.max_new_tokens}; prompts cannot be counted without the model's tokenizer"
        return
    yield "tokens", f"prompt ≤ {b.prompt_tokens} (seen), completion ≤ {b.max_new_tokens}, together ≤ {b.row}"
    yield "", f"≤ {b.tokens_per_rollout:,} per rollout, ≤ {b.tokens_per_update:,} per update"
    yield "passes", f"≤ {b.passes_per_update} per update, of ≤ {b.tokens_per_pass:,} tokens each"
    yield "", "(zero-variance groups cost none; cutting changes memory, not results)"


def _memory(plan: Plan) -> Table:
    from grouprl.plan.memory import human

    table = plain_table("what", "size", "arithmetic")
    table.columns[1].justify = "right"
    for cost in plan.costs:
        table.add_row(cost.what, human(cost.bytes), Text(cost.how, style="dim"))
    table.add_row(
        Text("peak", style="bold"),
        Text(human(plan.peak or 0), style="bold"),
        Text(
            "everything that stays, and the larger of update and rollout; Python and torch need about 0.4 GiB more",
            style="dim",
        ),
    )
    return table


def _stages(plan: Plan) -> Table:
    table = plain_table("stage", "in words, and in symbols")
    for stage in plan.stages:
        text = Text(plan.worded(stage.words))
        if stage.formula:
            text.append(f"\n{plan.worded(stage.formula)}", style="dim")
        table.add_row(Text(f"{stage.kind}\n{stage.part}", style="cyan"), text)
    return table


def _table(plan: Plan, settings: Iterable[Setting]) -> Table:
    table = plain_table("setting", "value", "where it comes from")
    for setting in settings:
        origin = plan.worded(f"{setting.origin}. {setting.meaning}" if setting.meaning else setting.origin)
        style = "dim" if setting.origin.startswith("default") else "default"
        table.add_row(Text(setting.key, style="cyan"), Text(_value(setting.value)), Text(origin, style=style))
    return table


def _value(value: object) -> str:
    """Write a value as in YAML."""
    if isinstance(value, tuple | list | dict):
        plain = list(value) if isinstance(value, tuple) else value
        return yaml.safe_dump(plain, default_flow_style=True, sort_keys=False).strip()
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _sentences(console: Console, title: str, sentences: Iterable[str], style: str) -> None:
    lines = list(sentences)
    if not lines:
        return
    console.print(Text(f"\n{title}", style=style))
    for line in lines:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=1)
        grid.add_column()
        grid.add_row("•", Text(line))
        console.print(grid)
