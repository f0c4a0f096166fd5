"""`report.html`: one self-contained page of a run. It loads nothing else, so it can be opened as a local file."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path

from grouprl.core.errors import InputError
from grouprl.storage.run_folder import runs_meant, write_text
from grouprl.view.runfiles import RunData, read_run
from grouprl.view.sections import SECTIONS, missing, without_folders

FRAME_HEIGHT = 640
"""Height of a page within a notebook, in pixels."""


@dataclass(frozen=True)
class PageExtras:
    """Additions of a page to the style and the script of all pages."""

    style: str = ""
    script: str = ""
    asks: bool = False
    """Whether its script reads data from the server that the page came from."""


def write_report(run_folder: Path) -> Path:
    """Write `report.html` into a run folder from the files in it, and return its path.

    The page names missing or damaged files. Raise InputError if there is no such folder, or no run in it.
    """
    folder = Path(run_folder)
    if not folder.is_dir():
        raise InputError(f"there is no run folder {folder}", "a report is made from a run folder", runs_meant(folder))
    if not any((folder / name).is_file() for name in ("config.yaml", "metrics.jsonl", "summary.json")):
        raise InputError(f"{folder} holds no run", "a report is made from a run folder", "Check the path")
    path = folder / "report.html"
    write_text(path, page(read_run(folder)))
    return path


def page(run: RunData) -> str:
    """Return the whole page as HTML."""
    links = "".join(f'<a href="#{anchor}">{run.worded(name)}</a>' for anchor, name, _ in SECTIONS)
    body = "".join(
        f'<section id="{anchor}" aria-labelledby="h-{anchor}"><h2 id="h-{anchor}">{run.worded(name)}</h2>'
        f"{render(run)}</section>"
        for anchor, name, render in SECTIONS
    )
    return whole_page(_title(run), links, f"{missing(run)}{body}")


def whole_page(title: str, links: str, body: str, *, extras: PageExtras | None = None) -> str:
    """Return a page with the style and the script of all pages; `links` and `body` are HTML, `title` is a text.

    `extras` are what a page has besides.
    """
    extras, title = extras or PageExtras(), escape(title)
    style, script = _asset("report.css") + extras.style, _asset("report.js") + extras.script
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script, extras.asks)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{style}</style></head><body>"
        f'<header><h1>{title}</h1></header><nav aria-label="Sections">{links}</nav>'
        f'<main>{body}</main><div id="tip" role="status" hidden></div>'
        f"<script>{script}</script></body></html>\n"
    )


def framed(html: str) -> str:
    """Return a page in a frame, for a notebook."""
    return (
        f'<iframe srcdoc="{escape(html, quote=True)}" sandbox="allow-scripts" width="100%" height="{FRAME_HEIGHT}" '
        'style="border:0"></iframe>'
    )


def _policy(script: str, asks: bool) -> str:
    """Return a policy that allows only this script and inline styles: a model's text cannot run or load anything.

    A page that `asks` may also read data from its own server.
    """
    digest = b64encode(sha256(script.encode()).digest()).decode()
    sources = f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'" + "; connect-src 'self'" * asks
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"


def _title(run: RunData) -> str:
    what = [without_folders(str(run.summary[key])) for key in ("task", "method") if run.summary.get(key)]
    return " · ".join(["grouprl", *(what or [run.folder.resolve().name])])


def _asset(name: str) -> str:
    return files("grouprl.view").joinpath(name).read_text("utf-8")
