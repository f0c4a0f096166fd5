"""Execute the notebooks of docs/notebooks, and make a page of the site of each: `python scripts/notebooks.py [NAME…]`.

Each is executed from its first cell in an empty folder, by a kernel of its own; a cell that fails ends this with its
traceback, and nothing is written. `make docs` makes the pages of what was executed last.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"
SECONDS = 900
"""Time of a cell, for a busy machine."""
SHOWN = ("text/html", "text/markdown", "text/plain")
"""Forms of an output, the best first."""


def execute(path: Path) -> dict[str, Any]:
    """Return a notebook with the outputs of all its cells.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": folder}}).execute()
    data: dict[str, Any] = json.loads(nbformat.writes(notebook))
    for cell in data["cells"]:
        cell["metadata"] = {}
        if "outputs" in cell:  # progress and warnings tell of the machine alone
            cell["outputs"] = [each for each in cell["outputs"] if each.get("name") != "stderr"]
    return data


def pages(folder: Path = NOTEBOOKS) -> dict[str, str]:
    """Return the page of each notebook by its file name."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.ipynb"))}
    return {f"{name}.md": page(name, notebook) for name, notebook in found.items()}


def page(name: str, notebook: Mapping[str, Any]) -> str:
    """Return a notebook as Markdown, outputs below their cells."""
    pieces = []
    for cell in notebook["cells"]:
        source = _text(cell["source"])
        pieces += [source] if cell["cell_type"] == "markdown" else [fenced(source, "python"), *outputs(cell["outputs"])]
    return "\n\n".join([*pieces, f"The notebook: [{name}.ipynb]({name}.ipynb).", ""])


def outputs(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the outputs of a cell as Markdown: HTML on one line, so that nothing in it is read as Markdown."""
    for each in found:
        if each["output_type"] == "stream" and each["name"] == "stdout":
            yield fenced(_text(each["text"]), "text")
        form = next((form for form in SHOWN if form in each.get("data", ())), "")
        shown = _text(each["data"][form]) if form else ""
        if form == "text/html":
            yield on_one_line(shown)
        elif form == "text/markdown":
            yield shown
        elif form:
            yield fenced(shown, "text")


def on_one_line(html: str) -> str:
    """Return HTML on one line, so that no empty line ends it: ends of lines are written as entities."""
    return f"<div>{html.strip().replace(chr(10), '&#10;')}</div>"


def fenced(text: str, language: str) -> str:
    """Return a text as a block of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def _text(lines: str | Sequence[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)


def main(names: Sequence[str]) -> None:
    """Execute notebooks, all if none is named, and write them with their outputs."""
    for path in [NOTEBOOKS / f"{name}.ipynb" for name in names] or sorted(NOTEBOOKS.glob("*.ipynb")):
        done = execute(path)
        path.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"executed {path.name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
