"""`grouprl methods`: the catalogue, a method's card, the difference of two methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.text import Text

from grouprl.cli import completion
from grouprl.cli.listing import catalogue, legend, names, selected
from grouprl.cli.options import AsJson
from grouprl.cli.results import put, put_data
from grouprl.core.terminal import Terminal

if TYPE_CHECKING:
    from grouprl.methods import Entry
    from grouprl.methods.check import RuleFinding
    from grouprl.papers import Standing

app = typer.Typer(rich_markup_mode="rich")
Name = Annotated[
    str, typer.Argument(help="A method's name, or yours: FILE.py:FUNCTION, MODULE:FUNCTION.", autocompletion=names)
]


@app.callback(invoke_without_command=True)
def list_methods(
    context: typer.Context,
    family: Annotated[
        str,
        typer.Option(
            help="Only one family, such as 'group_relative' or 'dialects'.",
            autocompletion=completion.families,
        ),
    ] = "",
    search: Annotated[str, typer.Option(help="Only methods whose name, title or summary holds this text.")] = "",
    only_names: Annotated[bool, typer.Option("--names", help="Print the names alone, one per line.")] = False,
    as_json: AsJson = False,
) -> None:
    """The catalogue of methods: list them, read a card, compare two.

    [bold]Examples[/]
    grouprl methods --family group_relative
    grouprl methods --search entropy
    grouprl methods --names                names alone, for scripts
    grouprl methods show dapo              a card
    grouprl methods diff grpo dr_grpo      what differs, in numbers
    grouprl methods check mine.py:mine     whether a method of yours follows the rules
    """
    if context.invoked_subcommand is not None:
        return
    found = selected(family, search)
    if only_names:
        chosen = [each.name for each in found]
        put_data(chosen) if as_json else put("\n".join(chosen))
    elif as_json:
        from grouprl.methods import find
        from grouprl.methods.describe import describe

        _print([describe(find(each.name)) for each in found], True)
    else:
        _print(Group(catalogue(found), legend(), _HINT), False)


@app.command("show")
def show(
    name: Name,
    as_json: AsJson = False,
    code: Annotated[bool, typer.Option("--code", help="Print the loss as one plain function of tensors.")] = False,
) -> None:
    """Show a method's card: formula, parts, settings with their sources, what is checked.

    [bold]Examples[/]
    grouprl methods show gspo
    grouprl methods show grpo --code       the loss in plain torch, generated from the method's parts
    grouprl methods show grpo@trl --json
    grouprl methods show my_method.py:mine
    """
    from grouprl.methods import CATALOGUE
    from grouprl.methods.describe import AMBIGUOUS
    from grouprl.methods.naming import entry_of
    from grouprl.methods.render import claims

    name = _plain(name)
    if name in AMBIGUOUS and name not in CATALOGUE:
        found = AMBIGUOUS[name]
        _print([c.data() for c in found] if as_json else claims(name, found), as_json)
    elif papers := _papers_of(name):
        _put_papers(name, papers, as_json)
    else:
        found_one = entry_of(name)
        if code:
            from grouprl.methods.as_function import as_function

            put(as_function(found_one.build()).rstrip())
            return
        _put_card(found_one, name, as_json)


@app.command("diff")
def diff(a: Name, b: Name, as_json: AsJson = False) -> None:
    """Show in what two methods differ: parts, settings, and numbers on the same completions.

    [bold]Examples[/]
    grouprl methods diff grpo dr_grpo
    grouprl methods diff grpo@trl grpo@verl --json
    grouprl methods diff grpo my_method.py:mine
    """
    from grouprl.methods.diff import contrast
    from grouprl.methods.naming import entry_of
    from grouprl.methods.render import difference

    one, two = entry_of(_plain(a)), entry_of(_plain(b))
    _print(contrast(one, two) if as_json else difference(one, two), as_json)


@app.command("check")
def check(name: Name, as_json: AsJson = False) -> None:
    """Check a method against the rules that the trainer relies on, without training: for methods of your own.

    Its parts act on small known batches: shapes, finite numbers, declared
    metrics and needs, micro-batches that add up, padding that changes
    nothing. Exit code 2 if a rule is broken.

    [bold]Examples[/]
    grouprl methods check my_method.py:mine
    grouprl methods check my_package.methods:mine --json
    """
    from grouprl.methods.check import check_method
    from grouprl.methods.naming import entry_of

    findings = check_method(entry_of(_plain(name)))
    if as_json:
        rows = [_row(each) for each in findings]
        put_data({"method": name, "findings": rows}, indent=2)
    else:
        for each in findings:
            mark = ("✓ ", "green") if each.passed else ("✗ ", "bold red")
            Terminal().print(Text.assemble(mark, each.rule, f"\n    {each.words}" if each.words else ""))
    if not all(each.passed for each in findings):
        raise typer.Exit(2)


def _put_card(entry: Entry, name: str, as_json: bool) -> None:
    """Print a card and, below it, the command that trains the method as it is typed."""
    from grouprl.methods.describe import describe
    from grouprl.methods.render import card
    from grouprl.papers import training_command

    command = training_command(name if ":" in name else entry.name)
    if as_json:
        _print(describe(entry) | {"command": command}, True)
        return
    console = Terminal(highlight=False)
    console.print(card(entry))
    why = "   says why no recipe can train it" if command.startswith("grouprl plan") else ""
    console.print(Text.assemble("\n", ("Train it", "bold magenta")))
    console.print(Text.assemble((f"  {command}", "cyan"), (why, "dim")), soft_wrap=True)


def _row(checked: RuleFinding) -> dict[str, object]:
    """Return a rule and whether it is followed, with the finding if it is broken."""
    row = {"rule": checked.rule, "passed": checked.passed, "words": checked.words}
    return row if checked.passed else row | checked.finding().as_row()


def _papers_of(name: str) -> list[Standing]:
    """Return the papers whose method has this name, if no entry of the catalogue has it."""
    from grouprl.methods import CATALOGUE
    from grouprl.methods.registry import spelled
    from grouprl.papers import named

    return [] if ":" in name or spelled(name) in CATALOGUE else named(name)


def _put_papers(name: str, papers: Sequence[Standing], as_json: bool) -> None:
    """Print what implements a method that papers name and the catalogue does not."""
    from grouprl.cli.papers import show_paper

    if as_json:
        put_data([each.data() for each in papers], indent=2)
        return
    console = Terminal(highlight=False)
    console.print(f"No entry of the catalogue is called '{name}'. A paper calls its method by this name:", markup=False)
    for each in papers:
        console.print()
        show_paper(each, console)


def _plain(name: str) -> str:
    """Normalise a name as people write it: 'Dr-GRPO' is dr_grpo; names of files and modules stay unchanged."""
    if ":" in name:
        return name.strip()
    return name.strip().lower().replace("-", "_")


def _print(block: object, as_json: bool) -> None:
    if as_json:
        put_data(block, indent=2)
    else:
        Terminal().print(block)


_HINT = Text("grouprl methods show NAME   grouprl methods diff A B", style="dim")
