"""`grouprl track`."""

from __future__ import annotations

from typing import Annotated

import typer

from grouprl.cli.export import RunArgument
from grouprl.cli.options import AsJson
from grouprl.cli.results import put_data


def track_command(
    run: RunArgument,
    tracker: Annotated[
        str, typer.Argument(metavar="TRACKER", help="tensorboard, wandb, trackio, mlflow, or file.py:function.")
    ],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the tracker (repeatable).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send a run's metrics to a tracker: those that it does not have yet, each once.

    A run sends its metrics by itself while it trains: run.trackers of its
    configuration. This command is for runs that had none, or whose tracker
    could not be reached.

    [bold]Examples[/]
    grouprl track runs/addition-grpo-s0 tensorboard
    grouprl track runs/addition-grpo-s0 wandb --set project=sums --set mode=online
    grouprl train addition --set run.trackers=tensorboard
    """
    from grouprl.cli.quiet import telling
    from grouprl.config.run import apply_change
    from grouprl.trackers.choice import chosen_tracker
    from grouprl.trackers.feed import send_run

    given: dict[str, object] = {"name": tracker}
    for change in settings or ():
        apply_change(given, change)
    chosen = chosen_tracker(given)
    sent, kept = send_run(run, chosen)
    if as_json:
        put_data({"run": str(run), "tracker": chosen.name, "sent": sent, "kept_before": kept})
    else:
        telling().print(f"{chosen.name}: sent {sent} records of {run}; it had {kept} already", highlight=False)
