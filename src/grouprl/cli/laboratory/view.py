"""`grouprl view`: runs in a browser."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grouprl.cli import completion
from grouprl.cli.results import put_data
from grouprl.core.terminal import Terminal

if TYPE_CHECKING:
    from grouprl.view.app.shown_runs import RunLibrary


def view_command(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Run folders, or folders that hold some (default: runs).",
            autocompletion=completion.runs,
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 is any free one.")] = 7788,
    token: Annotated[
        str,
        typer.Option(
            metavar="SECRET",
            envvar="GROUPRL_VIEW_TOKEN",
            help="Secret that every request must carry (if other machines can connect, one is made by default).",
            show_default=False,
        ),
    ] = "",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A host name of this machine besides its addresses; can be repeated."),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one self-contained page instead of serving.")
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="Rows of each run in an exported page, the newest.")] = 2000,
    as_json: Annotated[bool, typer.Option("--json", help="Say where it is served, or written, as JSON.")] = False,
) -> None:
    """Look at runs in a browser: curves, every rollout, findings, settings, formulas.

    Curves of all runs are drawn together; rollouts are filtered, sorted and
    searched, a group stands side by side, its tokens coloured by advantage,
    probability or entropy; findings lead to the rows that show them. Runs that
    still train are followed. Folders are only read, nothing is fetched from
    elsewhere, and every address of the page can be passed on. /api lists the
    requests that programs can make; docs/view.md explains them.

    [bold]Examples[/]
    grouprl view                                   every run in runs/
    grouprl view runs/a runs/b --port 0            two runs, on any free port
    grouprl view runs --export runs.html           one file to pass on
    grouprl view --host 0.0.0.0                    for others: with a token
    """
    from grouprl.view.app.shown_runs import RunLibrary

    library = RunLibrary(runs or [Path("runs")])
    if export is not None:
        _export(library, export, rows, as_json=as_json)
        return
    from grouprl.view.app.server import LOOPBACK, listening, make_view, serve_view

    secret = token or ("" if host in LOOPBACK else secrets.token_urlsafe(18))
    app = make_view(library, secret, [host, *(allow_host or ())])
    opened = listening(host, port)
    name = f"[{host}]" if ":" in host else host
    url = f"http://{name}:{opened.getsockname()[1]}/{f'?token={secret}' if secret else ''}"
    _announce(url, len(library.folders()), as_json=as_json)
    serve_view(app, opened)


def _announce(url: str, count: int, *, as_json: bool) -> None:
    if as_json:
        put_data({"url": url, "runs": count})
        return
    Terminal(highlight=False).print(f"{count} run{'s' * (count != 1)} at {url} (Ctrl-C ends it)", soft_wrap=True)


def _export(library: RunLibrary, path: Path, rows: int, *, as_json: bool) -> None:
    from grouprl.view.app.exported_page import export_page

    left = export_page(library, path, rows)
    if as_json:
        put_data({"file": str(path), "runs": list(library.folders()), "rows_left_out": left})
        return
    more = f"; {left} older rows are left out (--rows)" if left else ""
    Terminal(highlight=False).print(f"{path}: {path.stat().st_size / 1e6:.1f} MB{more}", soft_wrap=True)
