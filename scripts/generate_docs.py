"""Write docs/configuration.md, the counts of the README and what records show; and what git ignores: docs/methods/, an
index, one page per entry and the literature; docs/reference/, the public names; and a page of each notebook.

They are made from the cards, the list of papers, the schema of the configuration and the records of runs. A new method
changes none of the committed files. With `--check` it only says which of those are not as they would be made now.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import notebooks
import reference
import shown as records
from configuration import configuration_page
from counts import with_counts
from finding_codes import codes_page
from foreign_tables import with_tables
from grouprl.methods import CATALOGUE, Entry
from grouprl.methods.describe import AMBIGUOUS, describe, families, family_words, year
from grouprl.methods.recorded_evidence import forget, shown
from grouprl.methods.render import value_words
from grouprl.papers import STATUSES, Standing, counts, search, training_command

FOLDER = Path(__file__).parents[1] / "docs" / "methods"
PAPERS = FOLDER / "papers.md"
REFERENCE = FOLDER.parent / "reference"
CONFIGURATION = FOLDER.parent / "configuration.md"
CODES_PAGE = FOLDER.parent / "codes.md"
README = FOLDER.parents[1] / "README.md"
FOREIGN = tuple(FOLDER.parent / f"from_{library}.md" for library in ("trl", "verl"))
MADE = "<!-- Made from the catalogue by scripts/generate_docs.py. Edit the card, not this page. -->"

IMPLEMENTED = ("entry", "recipe", "part")


def pages() -> dict[str, str]:
    """Return every page by its file name."""
    made = {file_name(name): page(describe(entry)) for name, entry in CATALOGUE.items()}
    return {"README.md": index(list(CATALOGUE.values())), **made}


def file_name(name: str) -> str:
    return f"{name.replace('@', '_at_')}.md"


def index(entries: list[Entry]) -> str:
    lines = [MADE, "# The catalogue", "", f"{len(entries)} methods. `grouprl methods` prints this table,"]
    lines += ["`grouprl methods show NAME` a card, `grouprl methods diff A B` the difference of two methods.", ""]
    for family, members in families(entries).items():
        rows = [_index_row(each) for each in members]
        lines += [
            f"## {family}",
            "",
            family_words(members[0]),
            "",
            *table(["name", "year", "what it does", "checked", "learned here"], rows),
            "",
        ]
    lines += ["## Names that several papers claim", ""]
    claims = [
        [f"`{name}`", c.title, c.reference, f"[`{c.entry}`]({file_name(c.entry)})" if c.known else "not yet here"]
        for name, found in AMBIGUOUS.items()
        for c in found
    ]
    return "\n".join([*lines, *table(["name", "paper", "reference", "entry"], claims), ""])


def _index_row(entry: Entry) -> list[Any]:
    learned = {"learned": "yes", "mixed": "partly", "not shown": "**no**", "no record": "–"}[shown(entry.name).verdict]
    return [
        f"[`{entry.name}`]({file_name(entry.name)})",
        year(entry) or "",
        _what(entry),
        entry.card.confidence,
        learned,
    ]


def _what(entry: Entry) -> str:
    return f"**{entry.card.title}.** {entry.card.summary}"


def page(data: dict[str, Any]) -> str:
    lines = [MADE, f"# {data['name']}: {data['title']}", ""]
    lines += [f"*{_paper(p)}*  " for p in data["papers"]]
    said, verdict = data["recorded"]["words"], data["recorded"]["verdict"]
    lines += [
        "",
        f"**{said}**" if verdict in ("mixed", "not shown") else f"{said}",
        "",
        data["summary"],
        "",
        "```",
        data["formula"],
        "```",
        "",
        "## Parts, in the order in which they act",
        "",
    ]
    rows = [
        [p["stage"], f"`{p['part']}`", p["words"], f"`{p['formula']}`" if p["formula"] else ""] for p in data["parts"]
    ]
    lines += [*table(["stage", "part", "what it does", "formula"], rows), ""]
    if data["settings"]:
        rows = [[f"`{s['name']}`", value_words(s["default"]), s["type"], s["source"]] for s in data["settings"]]
        lines += ["## Settings", "", *table(["setting", "default", "type", "where the default comes from"], rows), ""]
    for title, key in (
        ("Differs from the paper", "differs"),
        ("Reduces to", "reduces"),
        ("Needs", "needs"),
        ("Notes", "notes"),
    ):
        lines += [f"## {title}", "", *[f"- {text}" for text in data[key]], ""] if data[key] else []
    lines += ["## Confidence", "", f"**{data['confidence']}** — {data['source']}", ""]
    lines += [f"Uncertain: {data['uncertain']}", ""] if data["uncertain"] else []
    if data["recommended"]:
        rows = [[key, value_words(value)] for key, value in data["recommended"].items()]
        lines += ["## The paper's run", "", *table(["setting", "value"], rows), ""]
    for golden in data["golden"]:
        rows = [[key.replace("_", " "), value_words(v)] for key, v in golden.items() if key != "tolerance"]
        lines += ["## Golden example", "", *table(["", ""], rows), ""]
    claims = [f"- {c['title']} ({c['reference']})" for c in data["also_claimed_by"]]
    return "\n".join([*lines, *(["## The same name elsewhere", "", *claims, ""] if claims else [])])


def with_command(name: str, text: str) -> str:
    """Return an entry's page with the command that trains it, which takes a plan or more to find."""
    return "\n".join([text, "## Train it", "", "```", training_command(name), "```", ""])


def _paper(paper: dict[str, Any]) -> str:
    link = f", [arXiv:{paper['arxiv']}](https://arxiv.org/abs/{paper['arxiv']})" if paper["arxiv"] else ""
    return f"{paper['title']}{link}" + (f", {paper['year']}" if paper["year"] else "")


def papers_page() -> str:
    found = search()
    lines = [
        "<!-- Made from the list of papers and the catalogue by scripts/generate_docs.py. -->",
        "# The literature",
        "",
    ]
    lines += [f"{len(found)} papers, and what stands for each. `grouprl papers [QUERY]` searches them,"]
    lines += ["`grouprl papers show NUMBER` shows one. *Checked*: how far the paper's formulas could be checked.", ""]
    numbers = counts(found)
    lines += [*table(["status", "papers", "meaning"], [[s, n, STATUSES[s]] for s, n in numbers.items()]), ""]
    for status in numbers:
        rows = [_paper_row(each) for each in found if each.status == status]
        head = ["no.", "paper", "scope", "checked", *["what stands for it"] * (status in IMPLEMENTED)]
        lines += [f"## {status}: {STATUSES[status]}", "", *table(head, rows), ""]
    return "\n".join(lines)


def _paper_row(each: Standing) -> list[Any]:
    paper = each.paper
    links = [f"[`{n}`]({file_name(n)})" if each.status == "entry" else f"`{n}`" for n in each.names]
    trained = [_command(command) for command in each.commands() if "methods show" not in command]
    stands = ["<br>".join([", ".join(links), *trained, *[paper.note] * bool(paper.note)])]
    title, method, summary = (words.replace("*", "\\*") for words in (paper.title, paper.method, paper.summary))
    what = f"**{title}** ({method}). {summary}."
    return [paper.number, what, paper.scope, paper.confidence, *stands * (each.status in IMPLEMENTED)]


def _command(command: str) -> str:
    return f"`{command}`" + (" says why it cannot train there" if command.startswith("grouprl plan") else "")


def table(head: list[str], rows: list[list[Any]]) -> list[str]:
    """Return a Markdown table; a bar inside a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines]


def stored_text(found: list[dict[str, Any]] | dict[str, Any]) -> str:
    """Return what a listing reads."""
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def from_records() -> dict[Path, str]:
    """Return what the records of runs show of methods and recipes, which the package ships."""
    found = {records.METHODS: records.of_methods(), records.RECIPES: records.of_recipes()}
    return {path: stored_text(data) for path, data in found.items()}


def committed() -> dict[Path, str]:
    """Return the text of every file that is made from the schema and the records, and that git holds."""
    made = {
        CODES_PAGE: codes_page(),
        CONFIGURATION: configuration_page(),
        README: with_counts(README.read_text(encoding="utf-8")),
    }
    foreign = {path: with_tables(path.read_text(encoding="utf-8")) for path in FOREIGN}
    return made | foreign | from_records()


def from_cards() -> dict[Path, str]:
    """Return the text of every page made from the cards, the list of papers and the public names: git ignores them."""
    named = {REFERENCE / name: text for name, text in reference.pages().items()}
    executed = {notebooks.NOTEBOOKS / name: text for name, text in notebooks.pages().items()}
    methods = {FOLDER / name: text for name, text in pages().items()}
    for name in CATALOGUE:
        methods[FOLDER / file_name(name)] = with_command(name, methods[FOLDER / file_name(name)])
    return {PAPERS: papers_page(), **methods, **named, **executed}


def differing(made: dict[Path, str]) -> list[Path]:
    """Return the files that are not as they would be made now."""
    return sorted(path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text)


def main(arguments: list[str]) -> None:
    if arguments == ["--check"]:
        stale = differing(committed())
        for path in stale:
            print(f"not as it would be made now: {path}")
        raise SystemExit("Run: python scripts/generate_docs.py" if stale else 0)
    for path, text in from_records().items():  # the pages quote these
        path.write_text(text, encoding="utf-8")
    forget()
    made = committed() | from_cards()
    for folder in (FOLDER, REFERENCE, notebooks.NOTEBOOKS):
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.md"):
            if path not in made:
                path.unlink()
    stale = differing(made)
    for path in stale:
        path.write_text(made[path], encoding="utf-8")
    print(f"{len(stale)} of {len(made)} files written anew")


if __name__ == "__main__":
    main(sys.argv[1:])
