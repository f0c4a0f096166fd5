"""`grouprl compare`: methods, configurations or settings, compared fairly."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from grouprl.cli import completion
from grouprl.cli.options import AsJson
from grouprl.cli.quiet import Telling, telling
from grouprl.cli.results import apart, put, put_data
from grouprl.core.errors import InputError
from grouprl.core.terminal import Terminal

if TYPE_CHECKING:
    from rich.console import Console

    from grouprl.experiments.arms import Values
    from grouprl.experiments.design import Comparison
    from grouprl.experiments.preview import Preview
    from grouprl.experiments.result import ComparisonResult

UNBOUNDED = 10_000
"""A width that holds every table, to measure them."""
SHOWN_ON_TERMINAL = 2
"""Tables of a result that the terminal shows; the page has all."""


Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SOURCE...]",
        help="Recipes, YAML files or names of tasks to train on.",
        autocompletion=completion.sources,
    ),
]
MethodList = Annotated[
    str, typer.Option(metavar="LIST", help="Methods: names, or mappings in braces, with commas between.")
]
MoreSources = Annotated[list[str] | None, typer.Option(metavar="NAME", help="One more source; repeat for more.")]
SeedCount = Annotated[int, typer.Option(metavar="N", help="Paired seeds of each arm.")]
StepCount = Annotated[int | None, typer.Option(min=1, metavar="N", help="Short for --set steps=N.")]
BudgetOfEach = Annotated[
    str, typer.Option(metavar="UNIT[=N]", help="tokens (sampled), trained (tokens), steps or seconds.")
]
Tried = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=V,V",
        help="Try these values for each arm (default: optim.lr, a third of it and three times it).",
    ),
]
NothingTuned = Annotated[bool, typer.Option("--no-tune", help="Take the settings as they are; the result says so.")]
TuneSeedCount = Annotated[int, typer.Option(metavar="N", help="Seeds of each value tried.")]
Swept = Annotated[list[str] | None, typer.Option(metavar="KEY=V,V", help="Sweep a setting: an arm for each value.")]
ChangesOfAll = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of every run.")
]
FirstArm = Annotated[str | None, typer.Option(metavar="ARM", help="Compare all with this one (default: the first).")]
ComparedMeasure = Annotated[
    str | None, typer.Option(metavar="NAME", help="Metric of evaluations that is compared (default: eval/pass@1).")
]
LowerIsBetter = Annotated[
    bool,
    typer.Option("--lower-is-better", help="A lower value of the measure is better, such as a length or an error."),
]
ResultFolder = Annotated[Path, typer.Option(help="Where runs and results are kept.")]
RunsAtOnce = Annotated[int | None, typer.Option(min=1, metavar="N", help="Runs at a time (default: one per core).")]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Make the runs on the Ray cluster at this address (auto: find one); see compare.md."
    ),
]
OnlyPlan = Annotated[bool, typer.Option("--plan", help="Say what would be run, and run nothing.")]


def compare_command(
    sources: Sources = None,
    methods: MethodList = "",
    task: MoreSources = None,
    seeds: SeedCount = 5,
    steps: StepCount = None,
    budget: BudgetOfEach = "tokens",
    tune: Tried = None,
    no_tune: NothingTuned = False,
    tune_seeds: TuneSeedCount = 2,
    over: Swept = None,
    changes: ChangesOfAll = None,
    against: FirstArm = None,
    measure: ComparedMeasure = None,
    lower_is_better: LowerIsBetter = False,
    folder: ResultFolder = Path("runs/compare"),
    workers: RunsAtOnce = None,
    ray: RayAddress = None,
    only_plan: OnlyPlan = False,
    as_json: AsJson = False,
) -> None:
    """Compare methods fairly: same start, prompts and budget, each at its own best rate.

    [bold]Examples[/]
    grouprl compare --methods grpo,dr_grpo,gspo --task addition
    grouprl compare --methods "grpo,{base: dapo, clip_high: 0.3}" --task addition --steps 40 --seeds 3
    grouprl compare --methods grpo,gspo addition recall --plan      what it would run, and how long
    grouprl compare addition --over batch.group_size=4,8,16 --no-tune
    grouprl compare run.yaml --methods grpo,rloo --tune optim.lr=1e-6,3e-6 --budget steps

    Every run starts from one warmed-up model per source. Each arm is tuned on
    seeds of its own, then run on the paired seeds 0, 1, …; a run ends when its
    budget is spent. Results: curves with bands, interquartile means and
    differences with intervals, p-values corrected for their number.

    Runs are kept in the folder by their contents: the same command continues
    after a kill with the same result, and one with a further method makes only
    what is missing. See compare.md.
    """
    from grouprl.experiments.calling import designed

    design = designed(
        [*(sources or []), *(task or [])],
        methods,
        over=_swept("--over", over),
        changes=(*(changes or []), *([f"steps={steps}"] if steps is not None else [])),
        seeds=seeds,
        budget=budget,
        tune=_tried(tune, no_tune),
        tune_seeds=tune_seeds,
        against=against,
        measure=measure,
        lower_is_better=lower_is_better,
    )
    _compare(design, folder, workers, ray, only_plan=only_plan, as_json=as_json)


def _swept(option: str, given: Sequence[str] | None) -> dict[str, Values]:
    from grouprl.experiments.arms import sweeps_of

    return sweeps_of(option, given or [])


def _tried(given: Sequence[str] | None, nothing: bool) -> dict[str, Values] | Literal[False]:
    """Return the values that each arm tries; False where nothing is tuned."""
    if given and nothing:
        raise InputError("--tune with --no-tune", "something is tuned, or nothing is")
    return False if nothing else _swept("--tune", given)


def _compare(
    design: Comparison, folder: Path, workers: int | None, ray: str | None, *, only_plan: bool, as_json: bool
) -> None:
    """Say what a comparison would run, or run it, and print the result."""
    from grouprl.experiments.calling import compared, place_of
    from grouprl.experiments.preview import preview
    from grouprl.experiments.schedule import Store
    from grouprl.experiments.writing import PAGE

    say = telling(stderr=as_json)
    with apart(as_json or Telling.quiet), place_of(ray) as place:
        store = Store(folder, workers or place.room, place.start)
        if only_plan:
            _show_preview(preview(design, store), as_json)
        else:
            _show(compared(design, store, say, command_line()), folder / PAGE, as_json)


def _show_preview(seen: Preview, as_json: bool) -> None:
    if as_json:
        put_data({"runs": seen.runs, "minutes": seen.minutes, "lines": seen.lines})
    else:
        Terminal(highlight=False, soft_wrap=True).print(str(seen), markup=False)


def command_line() -> str:
    """Return the command that the user gave, with quotes where a shell needs them."""
    return shlex.join(["grouprl", *sys.argv[1:]])


def fitting(lines: Sequence[Sequence[str]], keys: int, title: str, console: Console) -> list[Table]:
    """Return lines, the first of them the head, as a table, or as several that fit where the terminal is too narrow.

    Each has the first `keys` columns, which say what a row is.
    """
    parts: list[list[int]] = []
    for column in range(keys, len(lines[0])):
        wider = _table(_columns(lines, keys, [*(parts[-1] if parts else ()), column]), title)
        if parts and _width(wider, console) <= console.width:
            parts[-1].append(column)
        else:
            parts.append([column])
    return [_table(_columns(lines, keys, part), title) for part in parts]


def _columns(lines: Sequence[Sequence[str]], keys: int, chosen: Sequence[int]) -> list[list[str]]:
    return [[*line[:keys], *(line[column] for column in chosen)] for line in lines]


def _width(table: Table, console: Console) -> int:
    return Measurement.get(console, console.options.update(max_width=UNBOUNDED), table).maximum


def _table(lines: Sequence[Sequence[str]], title: str) -> Table:
    table = Table(title=escape(title), title_justify="left", box=None, header_style="bold", pad_edge=False)
    for name in lines[0]:
        table.add_column(escape(name), overflow="fold")
    for row in lines[1:]:
        table.add_row(*map(escape, row))
    return table


def _show(result: ComparisonResult, page: Path, as_json: bool) -> None:
    """Print the verdict, the first tables and where the page is."""
    from grouprl.experiments.tables import listings

    if as_json:
        put_data(result.as_json())
        return
    if Telling.quiet:
        put(page)
        return
    console = Terminal(highlight=False)
    for each in listings(result)[:SHOWN_ON_TERMINAL]:
        for table in fitting([each.head, *each.rows], each.keys, each.title, console):
            console.print(table)
    for note in result.notes:
        console.print(f"note: {note}", markup=False)
    console.print(f"[bold]{escape(result.verdict())}[/]")
    console.print(f"page: {page}", soft_wrap=True, markup=False)
