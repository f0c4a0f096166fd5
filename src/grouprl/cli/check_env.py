"""`grouprl check-env`: examine an environment before training in it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from grouprl.cli import completion
from grouprl.cli.options import AsJson
from grouprl.cli.results import put_data
from grouprl.core.errors import InputError
from grouprl.core.terminal import Terminal

if TYPE_CHECKING:
    from grouprl.envs.findings import CheckedEpisode, EnvironmentFinding, EnvironmentReport
    from grouprl.tasks import Example, Task

PROBLEMS = 1
"""Exit code when an environment breaks a rule."""
SHOWN_TURNS = 12


def check_env_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ENV",
            help="pkg.module:Class, file.py:Class, a task's name, or a YAML file, for its task.",
            autocompletion=completion.tasks,
        ),
    ],
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play; each is played again to compare.")] = 64,
    max_turns: Annotated[int, typer.Option(min=1, help="Turns within which an episode must end.")] = 200,
    action: Annotated[
        list[str] | None, typer.Option(help="An action to try, where no legal ones are listed (may be repeated).")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="Seconds that one call may take.")] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Examine an environment: play it in many ways and report which rules it breaks.

    Episodes are played with demonstrated, legal, random and nonsensical
    actions, then again with the same seed, alone and beside another object.
    A class gets examples whose column 'seed' differs, and is reset with it.

    [bold]Examples[/]
    grouprl check-env guess
    grouprl check-env gym:FrozenLake-v1
    grouprl check-env control:CartPole-v1      arrays: random actions of its space
    grouprl check-env my_envs.py:Shop --action buy --action leave
    grouprl check-env my_pkg.envs:Shop --json
    grouprl check-env run.yaml      the task of a run, with its options, and what
                                    the chat template of its model does to it

    [bold]Exit codes[/] 0 no problems, 1 problems, 2 not found.
    """
    target = _target(name)
    report = target.check(
        target.example,
        episodes=episodes,
        max_turns=max(max_turns, target.max_turns),
        actions=action or (),
        seed_of=target.seed_of,
        seconds=seconds,
        agents=target.agents,
        limited=target.limited,
    )
    if name.endswith((".yaml", ".yml")):
        report = replace(report, findings=(*report.findings, *_template_findings(name)))
    if as_json:
        put_data({"environment": name, **report.data()}, indent=2, default=str)
    else:
        _show(name, report, Terminal(highlight=False))
    if report.problems:
        raise typer.Exit(PROBLEMS)


@dataclass(frozen=True)
class Target:
    """An environment to examine: a function for its kind, its prompts, the seed of an episode, and its agents."""

    check: Callable[..., EnvironmentReport]
    example: Callable[[int], Example]
    seed_of: Callable[[Example, int], int]
    agents: tuple[str, ...]
    max_turns: int = 1
    """The task's own limit."""
    limited: bool = False
    """Whether a run cuts episodes at that limit, so that they need no end of their own."""


def _target(name: str) -> Target:
    from grouprl.core.importing import import_object
    from grouprl.envs.check import check_environment
    from grouprl.tasks import Example, Task, load_task, task_names

    if name.endswith((".yaml", ".yml")):
        from grouprl.config.run import load_config
        from grouprl.orchestrator.resolve import task_of

        return _of_task(task_of(load_config(name)))
    prefixes = {each.partition(":")[0] for each in task_names()}
    if ":" not in name or name.partition(":")[0] in prefixes:
        return _of_task(load_task(name))
    found = import_object(name, "custom environment")
    if inspect.isclass(found) and issubclass(found, Task):
        return _of_task(load_task(name))
    if not callable(found):
        raise InputError(
            f"'{name}' is not an environment", "it must be a class, or a function that returns an environment"
        )
    return Target(
        partial(check_environment, found),
        lambda number: Example(f"{name}/{number}", "", {"seed": number}),
        lambda example, episode: int(example.columns["seed"]),
        tuple(getattr(found, "agents", ("",))),
    )


def _template_findings(path: str) -> list[EnvironmentFinding]:
    """Return findings on parts of episodes that the chat template of the run's model omits or rewrites."""
    from grouprl.config.run import load_config
    from grouprl.envs.findings import EnvironmentFinding
    from grouprl.orchestrator.resolve import resolve
    from grouprl.plan.checks import PromptEncoder
    from grouprl.plan.model_facts import read_model
    from grouprl.rollout.episode_table import UNSHOWN
    from grouprl.rollout.episodes import Start, demonstrate
    from grouprl.rollout.template_check import check_template

    run = resolve(load_config(path))
    config, task = run.config, run.task
    _, tokenizer = read_model(run)
    if tokenizer is None or not getattr(tokenizer, "chat_template", None):
        return []
    sampling, encoder = config.sampling, PromptEncoder(tokenizer)
    starts = [Start(task.example("train", 0), 0)]
    begun = demonstrate(encoder, task.environment, starts, max_turns=0, max_new_tokens=1, agents=task.agents)
    found = check_template(encoder, begun.prompts, sampling.history, turns=True, calls=sampling.tool_calls)
    rule = "the policy is shown all that the episode shows, and its own words stay as it wrote them"
    unshown = [each.what for each in begun.failures if each.what.startswith(UNSHOWN)]
    said = [*((True, what) for what in (*unshown, *found.refusals)), *((False, what) for what in found.notes)]
    return [
        EnvironmentFinding(
            "chat template", serious, what[:1].upper() + what[1:], rule, "See docs/chat_templates.md.", ""
        )
        for serious, what in said
    ]


def _of_task(task: Task) -> Target:
    from grouprl.envs.array_check import check_array_environment
    from grouprl.envs.check import check_environment
    from grouprl.rollout.kinds.row_kinds import row_kind

    if task.environment() is None:
        raise InputError(
            f"The task '{task.name}' has no environment",
            "it has a single turn",
            "See grouprl tasks for those that have one.",
        )
    size = task.size("train")
    if (spaces := row_kind(task).spaces_of(task)) is None:
        check = partial(check_environment, task.environment)
    else:
        check = partial(check_array_environment, task.environment, spaces)
    return Target(
        check,
        lambda number: task.example("train", number if size is None else number % size),
        lambda example, episode: episode,
        task.agents,
        task.max_turns,
        # Of several agents over arrays the environment has to say whom its limit cuts off.
        limited=spaces is None or len(task.agents) == 1,
    )


def _show(name: str, report: EnvironmentReport, console: Console) -> None:
    if report.shown is not None:
        _show_episode(report.shown, console)
        _show_facts(report.facts, console)
    for finding in (*report.problems, *report.advice):
        _show_finding(finding, console)
    if report.problems:
        count = len(report.problems)
        found = f"{name}: {count} problem{'s' * (count != 1)}, {len(report.advice)} advice"
        console.print(Text(found, style="bold red"))
    else:
        more = f", {len(report.advice)} advice" if report.advice else ""
        console.print(Text(f"{name}: no problems{more}", style="bold green"))


def _show_episode(episode: CheckedEpisode, console: Console) -> None:
    """Print an episode turn by turn."""
    console.print(Text(f"An episode ({episode.chooser} actions, prompt {episode.example})", style="bold"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("turn", "observation", "state", "action", "reward", ""):
        table.add_column(column, overflow="fold")
    turns = zip(episode.observations, episode.actions, episode.steps, strict=False)
    for turn, (seen, action, step) in enumerate(turns, start=1):
        if turn > SHOWN_TURNS:
            table.add_row("…", "", "", "", "", "")
            break
        end = "terminated" if step.terminated else "truncated" if step.truncated else "" if step.valid else "invalid"
        table.add_row(str(turn), *map(_cell, (seen.text, seen.state, action, f"{step.reward:g}", end)))
    table.add_row("", _cell(episode.observations[-1].text), _cell(episode.observations[-1].state), "", "", "")
    console.print(table)
    console.print(Text(f"score {episode.score}   total {episode.total:g}"))


def _show_facts(facts: dict[str, object], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("actions", "episodes", "turns", "return", "correct", "valid"):
        table.add_column(column, justify="left" if column == "actions" else "right")
    for chooser, numbers in facts.items():
        if isinstance(numbers, dict):
            shown = (f"{numbers[key]:.3g}" for key in ("turns", "return", "correct", "valid"))
            table.add_row(escape(chooser), str(numbers["episodes"]), *shown)
    console.print(table)
    plain = {key: value for key, value in facts.items() if not isinstance(value, dict) and key != "episodes"}
    console.print(Text("   ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in plain.items())))


def _show_finding(finding: EnvironmentFinding, console: Console) -> None:
    style, mark = ("bold red", "✗") if finding.serious else ("bold yellow", "!")
    console.print(
        Text(f"{mark} {finding.name}", style=style),
        Text(f"({finding.where}; {finding.episodes}×)" if finding.where else ""),
    )
    console.print(Text("  " + str(InputError(finding.what, finding.rule, finding.remedy))))


def _cell(text: str) -> Text:
    text = text.replace("\n", "⏎")
    return Text(text if len(text) <= 120 else text[:119] + "…")
