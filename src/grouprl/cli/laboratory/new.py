"""`grouprl new`: templates of what a user adds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grouprl.cli.options import AsJson
from grouprl.cli.results import put_data
from grouprl.core.terminal import Terminal


def new_command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="reward, env, method, part, task or recipe.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name: small letters, digits and _.")],
    folder: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write the files.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Write a reward, environment, method, part, task or recipe that works, with its test, to change into yours.

    Three files: NAME.py, test_NAME.py with hand-computed numbers, and NAME.yaml,
    which plans and trains as it is. A recipe has no NAME.py. Nothing is
    overwritten.

    [bold]Examples[/]
    grouprl new reward politeness
    grouprl new part over_median --folder mine
    python -m pytest test_politeness.py
    grouprl plan politeness.yaml
    """
    from grouprl.config.new_files import write_new

    paths = write_new(kind, name, folder)
    if as_json:
        put_data([str(path) for path in paths])
        return
    console, (*_, test, config) = Terminal(highlight=False, soft_wrap=True), paths
    console.print(f"Wrote {', '.join(map(str, paths))}", markup=False)
    console.print(f"Next: python -m pytest {test}, then grouprl plan {config} and grouprl train {config}", markup=False)
