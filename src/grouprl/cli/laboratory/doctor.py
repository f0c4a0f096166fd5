"""`grouprl doctor`: what is wrong with a run, with evidence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from grouprl.cli import completion
from grouprl.cli.options import AsJson
from grouprl.cli.results import put_data
from grouprl.core.errors import InputError
from grouprl.core.terminal import Terminal

if TYPE_CHECKING:
    from grouprl.core.finding import RunFinding
    from grouprl.view.diagnosis import Diagnosis
    from grouprl.view.runfiles import RunData
    from grouprl.view.witnesses import Witness

NOTHING = (
    "Nothing was found that needs attention. Most findings need 5 to 20 training steps; what to look at where a run "
    "does not learn stands in docs/not_learning.md."
)
STATES = {
    "running": "The run trains. ",
    "stopped": (
        "It was stopped before its end, by an error, by a signal or with its machine: its own output says which. "
    ),
}
"""Sentences about runs that have not ended, by their state."""
STYLES = {"alarm": "bold red", "warning": "yellow", "note": "dim"}


def doctor_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=completion.runs)],
    as_json: AsJson = False,
) -> None:
    """Diagnose a run: what was found, the most likely cause first, with numbers and the rows that show it.

    A run that still trains, or was killed, is examined by the records it has
    so far. docs/codes.md explains each finding.

    [bold]Examples[/]
    grouprl doctor runs/addition-grpo-s0
    grouprl doctor runs/addition-grpo-s0 --json
    """
    from grouprl.view.diagnosis import diagnose
    from grouprl.view.runfiles import read_run

    data = read_run(run, rollouts=False)
    found = diagnose(data, _findings(data))
    if as_json:
        put_data({"run": str(run), "outcome": _outcome(data), "findings": [each.data() for each in found]}, indent=2)
        return
    console = Terminal(highlight=False)
    console.print(_outcome(data))
    for words in data.missing if data.summary else ():  # an unfinished run lacks what its end writes
        console.print(f"Not read: {words}", style="yellow")
    if not found:
        console.print(NOTHING)
    for number, each in enumerate(found, 1):
        console.print(Text(f"\n{number}. {each.finding.severity}", style=STYLES[each.finding.severity]), end="")
        console.print(Text(f"  {each.finding.code}, {each.finding.when()}"))
        for line in _lines(data, each):
            console.print(Padding(line, (0, 0, 0, 3)))
        if each.rows:
            console.print(f"   {_command(each.rows[0], run)}", style="dim", soft_wrap=True)


def _findings(data: RunData) -> list[RunFinding]:
    """Return the findings of a run's health report, or, where none can be read, those of its records."""
    from grouprl.view.diagnosis import stored_findings

    if (stored := stored_findings(data)) is not None:
        return stored
    if not (data.folder / "config.yaml").is_file():
        from grouprl.storage.run_folder import runs_meant

        raise InputError(
            f"{data.folder} is not a run folder", "a run folder holds config.yaml", runs_meant(data.folder)
        )
    from grouprl.config.run import load_config
    from grouprl.monitor.health import examine
    from grouprl.orchestrator.resolve import resolve
    from grouprl.training.health_facts import health_facts_of_run

    resolved = resolve(load_config(str(data.folder / "config.yaml")))
    return examine(data.records, health_facts_of_run(resolved, exact=True))


def _outcome(data: RunData) -> str:
    """Say how far the run came, what became of it, and how its evaluations compare."""
    from grouprl.monitor.outcome import verdict
    from grouprl.view.run_list import run_line
    from grouprl.view.sections import evaluations

    line, found = run_line(data.folder, data), verdict(*evaluations(data))
    before = STATES.get(line.state, "")
    steps = f"{line.steps} of {line.of_steps}" if before else str(line.steps)
    noun = "step" if steps.rpartition(" ")[2] == "1" else "steps"
    so_far = before and found.kind != "unfinished"
    words = f"So far: {found.words[:1].lower()}{found.words[1:]}" if so_far else found.words
    return data.worded(f"{steps} {noun}. {before}{words}")


def _lines(data: RunData, each: Diagnosis) -> Iterator[Text]:
    found = each.finding
    yield Text(found.text)
    if each.course:
        values = " → ".join(f"{value:.4g} (step {step})" for step, value in each.course)
        yield Text(f"{found.key}: {values}", style="cyan")
    yield Text(f"What to do: {found.remedy}")
    if each.rows:
        yield Text(f"Step {each.rows[0].step}, {data.worded(each.sign)}:")
        yield from (_row(data, row) for row in each.rows)
    else:
        yield Text(f"No row is shown. {data.worded(each.absent)}", style="dim")


def _command(row: Witness, folder: Path) -> str:
    """Return the command that shows a row in full, in one line to be copied."""
    return f"grouprl show {quote(str(folder))} --step {row.step} --prompt {quote(row.prompt)} --sample {row.sample}"


def _row(data: RunData, row: Witness) -> Text:
    from grouprl.view.diagnosis import EXCERPT

    reward = "no reward" if row.reward is None else f"reward {row.reward:.3g}"
    size = data.worded(_counted(row.tokens, "token")) + (f", {row.turns} turns" if row.turns > 1 else "")
    ended = row.ended.replace("_", " ")
    text = row.text if len(row.text) <= EXCERPT else f"{row.text[:EXCERPT]} …"
    return Text(f"- {row.prompt} #{row.sample}: {reward}, {size}, {ended}: {json.dumps(text, ensure_ascii=False)}")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
