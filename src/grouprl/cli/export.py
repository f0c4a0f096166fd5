"""`grouprl export`, `grouprl report` and `grouprl track`: what a run gives to others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grouprl.cli import completion
from grouprl.cli.options import AsJson, CheckpointStep
from grouprl.cli.results import put_data
from grouprl.core.terminal import Terminal

RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run folder.",
        autocompletion=completion.runs,
    ),
]


def export_command(
    run: RunArgument,
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="A folder that does not exist yet or is empty.")],
    checkpoint: CheckpointStep = None,
    push: Annotated[
        str, typer.Option("--push", metavar="OWNER/NAME", help="Push the folder to a hub, too, with a card of the run.")
    ] = "",
    private: Annotated[
        bool, typer.Option("--private", help="With --push: a repository that others cannot see.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a trained policy as an ordinary Hugging Face folder, and push it to a hub if asked to.

    [bold]Examples[/]
    grouprl export runs/addition-grpo-s0 my-model
    grouprl export runs/addition-grpo-s0 half-way --checkpoint 80
    grouprl export runs/addition-grpo-s0 my-model --push me/my-model

    [bold]Then[/]
    AutoModelForCausalLM.from_pretrained("my-model")
    grouprl eval my-model --task addition
    """
    from grouprl.cli.quiet import silence_loading_bars, telling
    from grouprl.storage.hub import hub_access, push_folder
    from grouprl.training.export import export, stored_step
    from grouprl.view.model_card import model_card

    silence_loading_bars()
    hub = hub_access(push) if push else None
    when = export(run, dest, checkpoint)
    said = {"run": str(run), "wrote": when, "folder": str(dest)}
    if hub is not None:
        step = stored_step(run, checkpoint)
        (dest / "README.md").write_text(model_card(run, when, step), encoding="utf-8")
        said["pushed"] = push_folder(hub, dest, push, f"{when} of a run of grouprl", private=private)
    if as_json:
        put_data(said)
    else:
        told = f", and pushed it to {said['pushed']}" if hub is not None else ""
        telling().print(f"Wrote {when} of {run} to {dest}{told}")


def report_command(run: RunArgument, as_json: AsJson = False) -> None:
    """Rewrite the report of a run: curves, completions before and after, health, on one self-contained page.

    Training does this at its end; this command is for runs that are still
    going or were stopped.

    [bold]Example[/]
    grouprl report runs/addition-grpo-s0
    """
    from grouprl.view.report import write_report

    page = write_report(run)
    if as_json:
        put_data({"run": str(run), "report": str(page)})
    else:
        Terminal().print(f"Report: {page}", highlight=False, soft_wrap=True)


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
