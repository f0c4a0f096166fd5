"""`grouprl methods`: the catalogue, a method's card, the difference of two methods."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from grouprl.errors import InputError, suggest
from grouprl.methods import CATALOGUE, Entry, find
from grouprl.methods.contrast import contrast
from grouprl.methods.describe import AMBIGUOUS, describe
from grouprl.methods.render import card, catalogue, claims, difference
from grouprl.terminal import Terminal

app = typer.Typer(help="The catalogue of methods: list them, read a card, compare two.")
Json = Annotated[bool, typer.Option("--json", help="Print plain data for programs.")]


@app.callback(invoke_without_command=True)
def list_methods(
    context: typer.Context,
    family: Annotated[str, typer.Option(help="Only one family, such as 'group' or 'dialects'.")] = "",
    search: Annotated[str, typer.Option(help="Only methods whose name, title or summary holds this text.")] = "",
    as_json: Json = False,
) -> None:
    """List the catalogue."""
    if context.invoked_subcommand is None:
        entries = selected(family, search)
        _answer([describe(e) for e in entries] if as_json else Group(catalogue(entries), _HINT), as_json)


@app.command("show")
def show(name: str, as_json: Json = False) -> None:
    """Show a method's card."""
    name = _plain(name)
    if name in AMBIGUOUS and name not in CATALOGUE:
        found = AMBIGUOUS[name]
        _answer([c.data() for c in found] if as_json else claims(name, found), as_json)
    else:
        _answer(describe(find(name)) if as_json else card(find(name)), as_json)


@app.command("diff")
def diff(a: str, b: str, as_json: Json = False) -> None:
    """Show in what two methods differ: parts, settings, and numbers on the same answers."""
    one, two = find(_plain(a)), find(_plain(b))
    _answer(contrast(one, two) if as_json else difference(one, two), as_json)


def selected(family: str = "", search: str = "") -> list[Entry]:
    """Return the entries of a family that hold the text `search`; InputError when there are none."""
    families = {e.family for e in CATALOGUE.values()}
    if family and family not in families:
        raise InputError(f"unknown family '{family}'", remedy=suggest(family, families))
    entries = [e for e in CATALOGUE.values() if family in ("", e.family)]
    found = [e for e in entries if search.lower() in f"{e.name} {e.card.title} {e.card.summary}".lower()]
    if not found:
        raise InputError(f"no method matches '{search}'", remedy=f"{suggest(search, CATALOGUE)} See: grouprl methods")
    return found


def _plain(name: str) -> str:
    """Names as people write them: 'Dr-GRPO' is dr_grpo."""
    return name.strip().lower().replace("-", "_")


def _answer(block: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(block, indent=2, ensure_ascii=False))
    else:
        Terminal().print(block)


_HINT = Text("grouprl methods show NAME   grouprl methods diff A B", style="dim")
