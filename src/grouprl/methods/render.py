"""Cards in the terminal: the catalogue as a table, a method on one screen, two methods side by side."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from grouprl.core.json_types import JsonObject
from grouprl.methods.describe import Claim, describe
from grouprl.methods.diff import contrast
from grouprl.methods.recorded_evidence import shown
from grouprl.methods.registry import Entry

_CONFIDENCE = {"verified": "green", "partly": "yellow", "abstract-only": "red"}


def _confidence(confidence: str) -> Text:
    return Text(confidence.replace("-only", ""), style=_CONFIDENCE[confidence])


def claims(name: str, found: Sequence[Claim]) -> RenderableType:
    """Return the papers that claim `name`, each with its entry if the catalogue has it."""
    table = Table(box=box.SIMPLE_HEAD, title=f"Several papers call their method '{name}'", title_justify="left")
    for column in ("paper", "reference", "entry"):
        table.add_column(column)
    for claim in found:
        where = Text(claim.entry, style="cyan") if claim.known else Text("not in the catalogue", style="dim")
        table.add_row(claim.title, claim.reference, where)
    return table


# --- one method -----------------------------------------------------------------------------------------------------


def card(entry: Entry) -> RenderableType:
    """Return the whole card of an entry."""
    data = describe(entry)
    blocks: list[RenderableType] = [_heading(data), _recorded(entry), _indent(Text(data["summary"]))]
    blocks += _section("Formula", [Text(data["formula"], style="bold")])
    blocks += _section("Parts, in the order in which they act", [_parts(data["parts"])])
    if data["settings"]:
        blocks += _section("Settings", [_settings(data["settings"])])
    for title, key in (
        ("Differs from the paper", "differs"),
        ("Reduces to", "reduces"),
        ("Needs", "needs"),
        ("Notes", "notes"),
    ):
        if data[key]:
            blocks += _section(title, [_bullet(x) for x in data[key]])
    blocks += _section("Confidence", _certainty(data))
    if data["recommended"]:
        pairs = ", ".join(f"{k} {v}" for k, v in data["recommended"].items())
        blocks += _section("The paper's run", [Text(pairs)])
    blocks += [block for golden in data["golden"][:1] for block in _section("Golden example", [_golden(golden)])]
    if data["also_claimed_by"]:
        others = [f"{c['title']} ({c['reference']})" for c in data["also_claimed_by"]]
        blocks += _section("The same name elsewhere", [_bullet(x) for x in others])
    return Group(*blocks)


def _heading(data: JsonObject) -> RenderableType:
    head = Text.assemble((data["name"], "bold cyan"), "  ", (data["title"], "bold"))
    papers = [Text(f"{p['title']}{_reference(p)}", style="dim") for p in data["papers"]]
    return Group(head, *(_indent(p) for p in papers))


def _recorded(entry: Entry) -> RenderableType:
    found = shown(entry.name)
    return _indent(Text(found.words, style="bold yellow" if found.doubtful else "dim"))


def _reference(paper: dict[str, object]) -> str:
    where = [f"arXiv:{paper['arxiv']}"] if paper["arxiv"] else []
    when = [str(paper["year"])] if paper["year"] else []
    return f" ({', '.join(where + when)})" if where or when else ""


def _section(title: str, blocks: Sequence[RenderableType]) -> list[RenderableType]:
    return [Text(), Text(title, style="bold magenta"), *(_indent(b) for b in blocks)]


def _indent(block: RenderableType) -> Padding:
    return Padding(block, (0, 0, 0, 2))


def _bullet(text: str) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_row("•", Text(text))
    return grid


def _parts(parts: Sequence[JsonObject]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(ratio=1)
    for part in parts:
        lines = [Text.assemble((part["part"], "cyan"), "  ", part["words"])]
        lines += [Text(part["formula"], style="bold")] if part["formula"] else []
        grid.add_row(part["stage"], Group(*lines))
    return grid


def _settings(settings: Sequence[JsonObject]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
    table.add_column("setting", style="cyan", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("type", style="dim", ratio=2, overflow="fold")
    table.add_column("where the default comes from", ratio=3, overflow="fold")
    for row in settings:
        table.add_row(row["name"], value_words(row["default"]), row["type"], row["source"])
    return table


def _certainty(data: JsonObject) -> list[RenderableType]:
    lines: list[RenderableType] = [Text.assemble(_confidence(data["confidence"]), f"  {data['source']}")]
    return lines + ([Text(f"Uncertain: {data['uncertain']}")] if data["uncertain"] else [])


def _golden(golden: dict[str, object]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for key, value in golden.items():
        if key != "tolerance":
            grid.add_row(key.replace("_", " "), Text(value_words(value)))
    return grid


def value_words(value: object) -> str:
    """Return a setting's value as text: none, true, 0.0003, [1, 0]."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(value_words(v) for v in value) + "]"
    if isinstance(value, dict):
        return ", ".join(f"{k} = {value_words(v)}" for k, v in value.items())
    return str(value)


# --- two methods ----------------------------------------------------------------------------------------------------


def difference(a: Entry, b: Entry) -> RenderableType:
    """Return two methods side by side: the parts and settings that differ, and numbers on the same completions."""
    data = contrast(a, b)
    title = Text.assemble((data["a"], "bold cyan"), "  against  ", (data["b"], "bold green"))
    blocks: list[RenderableType] = [title]
    different = [row for row in data["parts"] if not row["same"]]
    if different:
        blocks += _section("Parts that differ", [_sides(data, "stage", different)])
    same = [row["a"].partition(":")[0] for row in data["parts"] if row["same"]]
    if same:
        blocks += _section("The same in both", [Text(", ".join(same))])
    if data["settings"]:
        rows = [row | {"a": value_words(row["a"]), "b": value_words(row["b"])} for row in data["settings"]]
        blocks += _section("Settings that differ", [_sides(data, "setting", rows)])
    only = [f"only {data[side]} has {', '.join(data[f'only_{side}'])}" for side in "ab" if data[f"only_{side}"]]
    if only:
        blocks += _section("Settings of one alone", [Text("; ".join(only))])
    for example in data["examples"]:
        blocks += _section(f"Numbers: {example['title']}", [_numbers(data, example)])
    return Group(*blocks)


def _sides(data: JsonObject, key: str, rows: Sequence[JsonObject]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
    table.add_column(key, style="dim", no_wrap=True)
    table.add_column(data["a"], header_style="bold cyan", ratio=1, overflow="fold")
    table.add_column(data["b"], header_style="bold green", ratio=1, overflow="fold")
    for row in rows:
        changes = row.get("settings", {})
        sides = [_side(row[side], {k: v[i] for k, v in changes.items()}) for i, side in enumerate("ab")]
        table.add_row(row[key], *sides)
    return table


def _side(words: str, settings: JsonObject) -> Text:
    text = Text(words)
    if settings:
        text.append("\n" + ", ".join(f"{k} = {value_words(v)}" for k, v in settings.items()), style="bold")
    return text


def _numbers(data: JsonObject, example: JsonObject) -> RenderableType:
    if example["a"] == example["b"]:
        return Text("identical advantages and gradients", style="dim")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    moved = any(any(r != 1 for r in row["ratio"]) for row in example["a"])
    for column in ["reward", "tokens", *["ratio"] * moved]:
        table.add_column(column, justify="right", style="dim", no_wrap=True)
    for side, style in (("a", "cyan"), ("b", "green")):
        for column in ("A", "dL/dlogp"):
            header = f"{column}\n{data[side]}"
            table.add_column(
                header, justify="right", style=style, header_style=f"bold {style}", min_width=8, overflow="fold"
            )
    for one, two in zip(example["a"], example["b"], strict=True):
        cells = [_tokens(row[key]) for row in (one, two) for key in ("advantage", "gradient")]
        known = [f"{one['reward']:g}", str(one["length"]), *[_tokens(one["ratio"], 2)] * moved]
        table.add_row(*known, *cells, end_section=one["last_of_group"])
    return table


def _tokens(values: Sequence[float], digits: int = 4) -> str:
    """Return the numbers of a completion's tokens, once if they are all the same."""
    words = [f"{v + 0.0:.{digits}f}" for v in values]
    return words[0] if len(set(words)) == 1 else "\n".join(words)
