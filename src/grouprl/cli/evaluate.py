"""`grouprl eval`."""

from __future__ import annotations

from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from grouprl.cli import completion
from grouprl.cli.options import AsJson, CheckpointStep, EngineName, ModelDevice, RunOrModel
from grouprl.cli.quiet import Telling, telling
from grouprl.cli.results import put_data
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.core.terminal import Terminal

if TYPE_CHECKING:
    from grouprl.config.sections import Reward, Sampling
    from grouprl.evaluation.evaluate import Evaluation
    from grouprl.evaluation.pass_at_k import Estimate
    from grouprl.protocols import Trainable
    from grouprl.rollout.sampler import MakeEngine
    from grouprl.tasks import Task

EvalTask = Annotated[
    str | None,
    typer.Option(
        help="The task (default: the run's own). A model needs one.",
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
EvalTemperature = Annotated[float | None, typer.Option(help="Of the sampled completions (default: the run's, else 1).")]
NewTokens = Annotated[int | None, typer.Option(min=1, metavar="N", help="Tokens per completion (default: the run's).")]
RewardFunction = Annotated[
    str | None, typer.Option(metavar="PATH:FUNCTION", help="Score with this reward (default: the run's).")
]
EvalSeed = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Of the completions (default: the run's, else 0).")
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
    """
    from grouprl.cli.quiet import silence_loading_bars

    silence_loading_bars()
    subject = _subject(source, task, checkpoint, device, engine)
    given = {"prompts": prompts, "temperature": temperature, "max_new_tokens": max_new_tokens, "seed": seed}
    numbers = _numbers_of(subject.defaults, given, k, samples)
    if greedy is True:
        numbers["samples"] = 0
    scoring = subject.reward.model_copy(update={"function": reward} if reward else {})
    found, notes = _evaluated(subject, scoring, {**numbers, "greedy": greedy is not False, "shown": show})
    found = found.knowing(subject.graded and reward is None)
    if as_json:
        put_data(as_data(found, subject))
    else:
        show_evaluation(found, subject, Terminal())
    for note in notes:
        telling(stderr=True).print(f"[yellow]note:[/] {escape(note)}")


def _numbers_of(defaults: JsonObject, given: JsonObject, k: str | None, samples: int | None) -> JsonObject:
    """Return the numbers of an evaluation: those that are given, else the run's."""
    numbers = {name: defaults[name] if value is None else value for name, value in given.items()}
    ks = _numbers(k) if k is not None else tuple(n for n in defaults["k"] if samples is None or n <= samples)
    return {**numbers, "k": ks, "samples": samples or max(max(ks), defaults["samples"] if k is None else 1)}


def _evaluated(subject: Subject, scoring: Reward, numbers: JsonObject) -> tuple[Evaluation, list[str]]:
    """Return the evaluation of a subject, and notes on how it was made; what it needs is open meanwhile."""
    from grouprl.envs.environment_pool_choice import open_stage
    from grouprl.evaluation.evaluate import evaluate
    from grouprl.orchestrator.reward import opened_reward
    from grouprl.rollout.engines import opened_engine

    acted = subject.task.environment() is not None
    stage, why_here = open_stage(subject.task, **subject.acting) if acted else (None, "")
    with (
        opened_reward(scoring, subject.task) as (scorer, notes),
        closing(stage) if stage is not None else nullcontext(),
        opened_engine(subject.engine, subject.policy) as sampler,
        _progress(Terminal(stderr=True)) as progress,
    ):
        bar = progress.add_task("completions", total=None)
        found = evaluate(
            subject.policy,
            subject.task,
            **numbers,
            reward=scorer if scoring.function or not acted else None,
            correct_at=scoring.correct_at,
            stop=subject.sampling.stop,
            history=subject.sampling.history,
            stage=stage,
            sampler=sampler,
            progress=lambda done, total: progress.update(bar, completed=done, total=total),
        )
    return found, [*notes, *[why_here] * bool(why_here)]


@dataclass(frozen=True)
class Subject:
    """The subject of an evaluation: a policy, a task, their name, default settings, and the reward.

    `sampling` says how turns end and continue, `acting` where environments run.
    """

    policy: Trainable
    task: Task
    title: str
    defaults: JsonObject
    reward: Reward
    sampling: Sampling
    acting: JsonObject
    engine: MakeEngine
    """Factory of the sampler."""
    graded: bool = False
    """Whether the run's records show that the reward is graded."""


def _subject(source: str, task: str | None, checkpoint: int | None, device: str, engine: str | None) -> Subject:
    if (Path(source) / "config.yaml").is_file():
        return _run(Path(source), task, checkpoint, engine)
    from grouprl.policy.language.hub import folder_meant

    if checkpoint is not None:
        raise InputError(f"{source} with --checkpoint", "only a run folder has checkpoints", "Leave it out")
    if source == "tiny":
        raise InputError("the model 'tiny' is untrained", "there is nothing to evaluate", "Give a folder or a Hub id")
    if task is None:
        raise InputError(
            f"{source} is not a run folder, so it is taken for a model",
            "a model is evaluated on a task",
            folder_meant(source) or f"Name one: grouprl eval {source} --task addition",
        )
    from grouprl.config.sections import Acting, Reward, Sampling
    from grouprl.orchestrator.chat_prompts import task_for
    from grouprl.policy import load_policy
    from grouprl.rollout.engines import configured_engine
    from grouprl.tasks import load_task

    loaded = load_task(_task_spec(task))
    defaults = {
        "prompts": 1024,
        "samples": 1,
        "k": (1,),
        "temperature": 1.0,
        "max_new_tokens": loaded.max_new_tokens,
        "seed": 0,
    }
    policy = load_policy(source, device=device)
    loaded = task_for(loaded, policy.tokenizer)
    made_by = configured_engine(Sampling(), engine)
    return Subject(policy, loaded, source, defaults, Reward(), Sampling(), Acting().model_dump(), made_by)


def _run(run: Path, task: str | None, checkpoint: int | None, engine: str | None) -> Subject:
    from grouprl.orchestrator.chat_prompts import task_for
    from grouprl.policy.language.models_of import acting_for
    from grouprl.rollout.engines import configured_engine
    from grouprl.tasks import load_task
    from grouprl.training.export import load_trained
    from grouprl.view.runfiles import is_graded

    trained = load_trained(run, checkpoint)
    config = trained.config
    tokenizer = getattr(trained.model, "tokenizer", None)
    requested = trained.task if task is None else task_for(load_task(_task_spec(task), config.seed), tokenizer)
    reward = (
        config.reward
        if task is None
        else config.reward.model_copy(update={"function": None, "judge": None, "model": None})
    )
    defaults = {
        "prompts": config.eval.final_prompts,
        "samples": config.eval.samples,
        "k": config.eval.k,
        "temperature": config.sampling.temperature,
        "max_new_tokens": config.sampling.max_new_tokens or requested.max_new_tokens,
        "seed": config.seed,
    }
    title, acting = f"{run}, {trained.when}", config.environment.model_dump()
    policy = acting_for(trained.model, requested.agents)
    made_by = configured_engine(config.sampling, engine)
    graded = task is None and is_graded(run)
    return Subject(policy, requested, title, defaults, reward, config.sampling, acting, made_by, graded)


def _task_spec(text: str) -> str | dict[str, object]:
    """Return a task as it is written in a configuration: a name, or "{name: addition, digits: 3}"."""
    return yaml.safe_load(text) if text.startswith("{") else text


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise InputError(f"--k {text}", "it is a list of positive numbers", "For instance --k 1,8")
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
    console.print(f"{subject.task.name}: {found.prompts} held-out prompts{greedy}{sampled}", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("estimate", justify="right", style="bold")
    table.add_column("95 % interval")
    from_one = " (reward ≥ 1)" if found.graded else ""
    shares = {"pair accuracy": found.pair_accuracy, f"pass@1 greedy{from_one}": found.greedy}
    shares |= {f"pass@{k} sampled{from_one}": e for k, e in found.pass_at.items()}
    rewards: dict[str, Estimate | None] = {"mean reward": None if found.pair_accuracy else found.reward}
    rewards |= {f"  {name}": each for name, each in found.components.items()}
    if found.pass_at:
        rewards["mean reward, greedy"] = found.greedy_reward
    named = {**rewards, **shares} if found.graded else {**shares, **rewards}
    for label, estimate in named.items():
        if estimate is not None:
            table.add_row(label, f"{estimate.value:.3f}", f"{estimate.low:.3f} – {estimate.high:.3f}")
    table.add_row("tokens per completion", f"{found.length_mean:.1f}", "")
    table.add_row("cut off at the limit", f"{found.truncated:.1%}", "")
    console.print(table)
    _show_completions(found, console)
    for note in found.notes:
        console.print(f"[yellow]note:[/] {note}", highlight=False)
    if found.failed:
        console.print(f"[yellow]note:[/] {found.failed} completions could not be scored; they are left out")


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
