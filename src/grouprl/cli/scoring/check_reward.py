"""`grouprl check-reward`: attack a reward with a library of hacks before a policy does."""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from grouprl.cli import completion
from grouprl.cli.options import AsJson
from grouprl.cli.results import put_data
from grouprl.core.errors import InputError
from grouprl.core.terminal import Terminal

if TYPE_CHECKING:
    from grouprl.rewards.catalogue.attacks import AttackReport, Case
    from grouprl.rewards.catalogue.loading import RewardSpec
    from grouprl.rewards.contract import Reward
    from grouprl.tasks import Task

WON = 1
"""Exit code when a hack passed, a completion broke the reward, or an honest completion was refused."""
WORDS = {
    "passes": "is rewarded as a correct completion",
    "fails": "breaks the reward: it raises, hangs or gives no finite number, and the group is lost",
    "refuses": "is correct and not rewarded as such",
}


def check_reward_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="REWARD",
            help="A built-in name, pkg.module:function, file.py:function, a task, or a YAML file.",
            autocompletion=completion.rewards,
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option(
            help="The task, or YAML file of a run, whose prompts are used; else the reward's own examples.",
            autocompletion=completion.tasks,
        ),
    ] = None,
    examples: Annotated[int, typer.Option(min=1, help="Number of prompts to attack.")] = 4,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds per completion.")] = 10.0,
    shown: Annotated[int, typer.Option(min=1, help="Number of findings to list.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Attack a reward with hacks: what earns a reward without being correct?

    Empty and junk texts, the prompt copied into every kind of completion, near
    misses and hedges around the gold, instructions to the grader, endless
    computations, programs, deep and long texts, numbers that are not numbers.
    Honest completions are scored before and after, so that a reward that refuses
    everything does not pass.

    [bold]Examples[/]
    grouprl check-reward math_equal
    grouprl check-reward numeric_match --task jsonl:prompts.jsonl
    grouprl check-reward my_rewards.py:f --task run.yaml
    grouprl check-reward addition      the task's own reward
    grouprl check-reward run.yaml      the reward of a run

    [bold]Exit codes[/] 0 nothing passed, 1 something did, 2 not found.
    """
    from grouprl.rewards.catalogue.attacks import CANARY, AttackFinding, attack
    from grouprl.rewards.catalogue.worker_choice import in_workers

    reward, cases = _target(name, task, examples)
    scorer, note = in_workers(reward, 1, timeout=timeout, memory_gb=4.0)
    with tempfile.TemporaryDirectory() as folder:
        canary = Path(folder) / CANARY
        try:
            report = attack(scorer, cases, str(canary))
        finally:
            if scorer is not reward:
                scorer.close()  # type: ignore[attr-defined]
        if canary.exists():
            ran = AttackFinding("passes", "a program", name, str(canary), "the reward ran a completion as a program")
            report = dataclasses.replace(report, findings=(ran, *report.findings))
    if as_json:
        rows = [dataclasses.asdict(each) | each.finding().as_row() for each in report.findings]
        put_data({"reward": name, **dataclasses.asdict(report), "findings": rows})
    else:
        _show(name, report, note, shown, Terminal(highlight=False))
    if report.findings:
        raise typer.Exit(WON)


def _target(name: str, task: str | None, examples: int) -> tuple[Reward, list[Case]]:
    """Return the reward and the cases on which it is attacked."""
    from grouprl.rewards import load_reward, reward_names
    from grouprl.tasks import task_names

    heads = {each.partition(":")[0] for each in task_names()}
    is_task = name not in reward_names() and (name.partition(":")[0] in heads or name.endswith((".yaml", ".yml")))
    if is_task or task is not None:
        found, function = _task(name if is_task else str(task))
        reward = (load_reward(function) if function else found.reward) if is_task else load_reward(name)
        return reward, _cases(reward, found, examples)
    reward = load_reward(name)
    return reward, _own_cases(reward, name)


def _task(name: str) -> tuple[Task, RewardSpec | None]:
    """Return a task, and the reward with which the file of a run replaces the task's own."""
    from grouprl.tasks import load_task

    if name.endswith((".yaml", ".yml")):
        from grouprl.config.run import load_config
        from grouprl.orchestrator.resolve import task_of

        config = load_config(name)
        return task_of(config), config.reward.function
    return load_task(name), None


def _cases(reward: Reward, task: Task, examples: int) -> list[Case]:
    from grouprl.evaluation.sample_and_score import example_text
    from grouprl.rewards.catalogue.attacks import Case
    from grouprl.rewards.catalogue.golds import gold_completion

    if task.environment() is not None:
        raise InputError(
            f"The task '{task.name}' is played in an environment", "a reward scores a completion", "See check-env."
        )
    size = task.size("train")
    cases = []
    for index in range(examples if size is None else min(size, examples)):
        example = task.example("train", index)
        right = task.solution(example) or gold_completion(reward, example.columns)
        cases.append(Case(example.id, example_text(example), example.columns, () if right is None else (right,)))
    return cases


def _own_cases(reward: object, name: str) -> list[Case]:
    from grouprl.rewards.catalogue.attacks import Case

    examples = [each for each in getattr(reward, "examples", ()) if each.correct]
    if not examples:
        raise InputError(
            f"The reward '{name}' has no examples of correct completions",
            "hacks are made from prompts and golds",
            "Name a task with --task, or declare known_examples.",
        )
    requested = "What is 17 * 23 + 4?"
    return [Case(f"example {n}", requested, each.columns, (each.completion,)) for n, each in enumerate(examples)]


def _show(name: str, report: AttackReport, note: str, shown: int, console: Terminal) -> None:
    if note:
        console.print(Text(f"! {note}", style="yellow"))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("", "kind of attack", "prompt", "completion", ""):
        table.add_column(column, overflow="fold")
    for finding in report.findings[:shown]:
        text = ascii(finding.completion)[1:-1]
        cells = (
            finding.what,
            finding.kind,
            finding.label,
            text if len(text) <= 80 else f"{text[:79]}…",
            finding.detail,
        )
        table.add_row(*(Text(cell) for cell in cells))
    if report.findings:
        console.print(table)
    for what, count in Counter(finding.what for finding in report.findings).items():
        console.print(Text(f"{count} × {what}: {WORDS[what]}", style="bold red"))
    if not report.controls:
        console.print(
            Text(
                "! No correct completion is known, so nothing shows that honest ones are rewarded. Name the column "
                "that has one: solution: COLUMN among the task's options (in a file for --task).",
                style="yellow",
            )
        )
    style = "bold red" if report.findings else "bold green"
    summary = f"{name}: {report.attacks} attacks, {len(report.findings)} findings, {report.controls} honest completions"
    console.print(Text(summary, style=style))
