"""`grouprl eval`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from grouprl.cli import completion
from grouprl.cli.options import (
    AsJson,
    CheckpointStep,
    EngineName,
    ModelDevice,
    RunOrModel,
    TemplateVariables,
    template_variables,
)
from grouprl.cli.quiet import Telling, telling
from grouprl.cli.results import put_data
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.core.terminal import Terminal

if TYPE_CHECKING:
    from grouprl.evaluation.evaluate import Evaluation
    from grouprl.evaluation.pass_at_k import Estimate
    from grouprl.experiments.evaluating import Subject

EvalTask = Annotated[
    str | None,
    typer.Option(
        help="Task to evaluate on (default: the run's); required for a model.",
        autocompletion=completion.tasks,
    ),
]
HeldOutPrompts = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Held-out prompts (default: the run's final_prompts, else 1024)."),
]
SampleCount = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Sampled completions per prompt (default: the largest k).")
]
PassAt = Annotated[str | None, typer.Option(metavar="K,K,…", help="pass@k for these k (default: the run's).")]
GreedyOrSampled = Annotated[
    bool | None, typer.Option("--greedy/--sampled", help="Only greedy or only sampled completions (default: both).")
]
EvalTemperature = Annotated[float | None, typer.Option(help="Sampling temperature (default: the run's, else 1).")]
NewTokens = Annotated[int | None, typer.Option(min=1, metavar="N", help="Tokens per completion (default: the run's).")]
RewardFunction = Annotated[
    str | None, typer.Option(metavar="PATH:FUNCTION", help="Score with this reward (default: the run's).")
]
EvalSeed = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Seed of the completions (default: the run's, else 0).")
]
CompletionsToPrint = Annotated[int, typer.Option(min=0, metavar="N", help="Completions to print.")]


def eval_command(
    source: RunOrModel,
    task: EvalTask = None,
    prompts: HeldOutPrompts = None,
    samples: SampleCount = None,
    k: PassAt = None,
    greedy: GreedyOrSampled = None,
    temperature: EvalTemperature = None,
    max_new_tokens: NewTokens = None,
    checkpoint: CheckpointStep = None,
    reward: RewardFunction = None,
    seed: EvalSeed = None,
    engine: EngineName = None,
    device: ModelDevice = "auto",
    chat_template_kwargs: TemplateVariables = None,
    show: CompletionsToPrint = 4,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run or any model on held-out prompts: greedy accuracy and unbiased pass@k, with 95 % intervals.

    The evaluator is the one used while training: with the run's own settings
    the numbers are those of its record.

    [bold]Examples[/]
    grouprl eval runs/addition-grpo-s0
    grouprl eval runs/addition-grpo-s0 --checkpoint 80 --greedy
    grouprl eval runs/addition-grpo-s0 --k 1,4,16 --prompts 256
    grouprl eval my-model --task addition
    grouprl eval my-model --task jsonl:mine.jsonl --chat-template-kwargs '{enable_thinking: false}'
    """
    from grouprl.cli.quiet import silence_loading_bars
    from grouprl.experiments.evaluating import evaluated, subject_of, task_spec

    silence_loading_bars()
    variables = template_variables(chat_template_kwargs)
    subject = subject_of(source, task_spec(task), checkpoint, device, engine, variables)
    with _progress(Terminal(stderr=True)) as progress:
        bar = progress.add_task("completions", total=None)
        found, notes = evaluated(
            subject,
            prompts=prompts,
            samples=samples,
            k=None if k is None else _numbers(k),
            greedy=greedy,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            reward=reward,
            seed=seed,
            shown=show,
            progress=lambda done, total: progress.update(bar, completed=done, total=total),
        )
    if as_json:
        put_data(as_data(found, subject))
    else:
        show_evaluation(found, subject, Terminal())
    for note in notes:
        telling(stderr=True).print(f"[yellow]note:[/] {escape(note)}")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise InputError(f"--k {text}", "it must be a list of positive whole numbers", "For instance --k 1,8")
    return found


def as_data(found: Evaluation, subject: Subject) -> JsonObject:
    """Return the evaluation as plain data for `--json`."""
    return {
        "subject": subject.title,
        "task": subject.task.name,
        **found.record(),
        "reward_mean": found.reward.value,
        "failed": found.failed,
        "interval": found.interval,
        "notes": list(found.notes),
        "samples": [sample._asdict() for sample in found.samples],
    }


def show_evaluation(found: Evaluation, subject: Subject, console: Console) -> None:
    """Print the estimates, then a few completions."""
    sampled = f", {found.samples_per_prompt} sampled at temperature {found.temperature:g}" if found.pass_at else ""
    greedy = ", greedy" if found.greedy else ", stored completions" if found.pair_accuracy else ""
    console.print(Text(subject.title, style="bold"), soft_wrap=True)
    console.print(f"{escape(subject.task.name)}: {found.prompts} held-out prompts{greedy}{sampled}", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("estimate", justify="right", style="bold")
    table.add_column("95 % interval")
    from_one = " (reward ≥ 1)" if found.graded else ""
    shares = {f"pass@1 greedy{from_one}": found.greedy}
    shares |= {f"pass@{k} sampled{from_one}": e for k, e in found.pass_at.items()}
    if found.graded and not any(each and each.value for each in shares.values()):
        shares = {}  # costs, for instance, are never 1
    shares = {"pair accuracy": found.pair_accuracy, **shares}
    rewards: dict[str, Estimate | None] = {"mean reward": None if found.pair_accuracy else found.reward}
    rewards |= {f"  {name}": each for name, each in found.components.items()}
    if found.pass_at:
        rewards["mean reward, greedy"] = found.greedy_reward
    rewards |= found.yardsticks
    named = {**rewards, **shares} if found.graded or found.returns else {**shares, **rewards}
    for label, estimate in named.items():
        if estimate is not None:
            table.add_row(escape(label), f"{estimate.value:.3f}", f"{estimate.low:.3f} – {estimate.high:.3f}")
    table.add_row("tokens per completion", f"{found.length_mean:.1f}", "")
    table.add_row("cut off at the limit", f"{found.truncated:.1%}", "")
    console.print(table)
    _show_completions(found, console)
    for note in found.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", highlight=False)
    if found.failed:
        console.print(f"[yellow]note:[/] completions that could not be scored and are left out: {found.failed}")


def _show_completions(found: Evaluation, console: Console) -> None:
    from grouprl.monitor.screen import verdict_mark

    if not found.samples:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("prompt", _shown_title(found), "reward"):
        table.add_column(column, overflow="fold", justify="right" if column == "reward" else "left")
    for prompt, text, reward, correct in found.samples:
        mark, style = verdict_mark(correct)
        table.add_row(Text(_clip(prompt)), Text(f"{mark} {_clip(text)}", style=style), f"{reward:g}")
    console.print(table)


def _shown_title(found: Evaluation) -> str:
    if found.pair_accuracy:
        return "completion with the highest score"
    return "greedy completion" if found.greedy else "first sampled completion"


def _clip(text: str) -> str:
    text = text.strip()
    return text if len(text) <= 300 else f"{text[:150]} … {text[-150:]}"


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=Telling.quiet or not console.is_terminal)
