"""`grouprl rewardbench`: score a reward model on files of RewardBench 1 and 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from grouprl.cli import completion
from grouprl.cli.options import AsJson
from grouprl.cli.quiet import silence_loading_bars, telling
from grouprl.cli.results import put_data
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.core.terminal import Terminal

if TYPE_CHECKING:
    from grouprl.evaluation.pass_at_k import Estimate
    from grouprl.evaluation.ranking.bench_rows import BenchRow
    from grouprl.evaluation.ranking.reward_bench import BenchScores
    from grouprl.orchestrator.encoder_scorer import EncoderScorer
    from grouprl.policy.language.reward_model import RewardModel
    from grouprl.records.examples import Prompt


@dataclass(frozen=True)
class Report:
    """The results of a model: by RewardBench's rules, and what the gaps of scores say."""

    bench: BenchScores
    calibration: float
    likelihood: Estimate
    biases: dict[str, dict[str, Estimate]]
    left_out: tuple[tuple[str, str], ...]
    """The id of each row that the model cannot read, and why."""


def rewardbench_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="The run of a reward model, or a folder for AutoModelForSequenceClassification with one label.",
            autocompletion=completion.runs,
        ),
    ],
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="JSON lines, Parquet or CSV in RewardBench's format.")
    ],
    split: Annotated[str, typer.Option(help="The split of a data set.")] = "train",
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--plain", help="Show prompts in the chat template (default: if there is one)."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Rows scored at a time.")] = 64,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda ….")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Score a reward model on RewardBench 1 or 2, or on any pairs written like them.

    Version 1 has a chosen and a rejected text per prompt, version 2 one right
    completion among four, and questions with several right ones (subset Ties).
    Accuracy is reported by subset, with 95 % intervals, and summed up by the
    benchmark's own rules. Also reported: calibration, and whether the scores
    prefer longer or more formatted texts more often than the labels do.

    [bold]Examples[/]
    grouprl rewardbench runs/rm reward-bench-2.jsonl
    grouprl rewardbench my-reward-model reward-bench.parquet --json

    Rows that the model cannot read are left out, and named.
    """
    from grouprl.orchestrator.model_reward import load_model_reward

    silence_loading_bars()
    found = load_model_reward([model], device=device).models[0]
    if chat and not getattr(found.tokenizer, "chat_template", None):
        raise InputError(f"--chat, and the tokenizer of {model} has no chat template", "", "Leave it out")
    templated = bool(getattr(found.tokenizer, "chat_template", None)) if chat is None else chat
    rows = _rows(files, split)
    report = _report(found, rows, templated, batch)
    if as_json:
        put_data({"model": model, "chat": templated, **_as_data(report)})
        return
    _show(report, Terminal())
    if report.left_out:
        names = ", ".join(name for name, _ in report.left_out[:5]) + (", …" if len(report.left_out) > 5 else "")
        first = report.left_out[0][1]
        telling(stderr=True).print(
            f"[yellow]note:[/] rows that cannot be read and are left out ({len(report.left_out)}): {escape(names)}. "
            f"The first: {escape(first)}"
        )


def _rows(files: Sequence[str], split: str) -> list[BenchRow]:
    from grouprl.evaluation.ranking.bench_rows import bench_rows
    from grouprl.tasks.adapters.any_table import DATA_SETS
    from grouprl.tasks.adapters.huggingface import read_splits
    from grouprl.tasks.adapters.jsonl import read_lines

    found: list[BenchRow] = []
    for file in files:
        whole = file.lower().endswith(DATA_SETS) or Path(file).is_dir()
        table = read_splits(file, split)[0] if whole else read_lines(file)
        found += bench_rows(table)
    if not found:
        raise InputError(f"{', '.join(files)} hold no rows", "there is nothing to score")
    return found


def _report(model: RewardModel | EncoderScorer, rows: Sequence[BenchRow], chat: bool, batch: int) -> Report:
    import numpy as np

    from grouprl.evaluation.ranking.biases import biases, calibration_error, negative_log_likelihood
    from grouprl.evaluation.ranking.reward_bench import bench_scores

    scored: list[tuple[BenchRow, list[float]]] = []
    left_out: list[tuple[str, str]] = []
    for start in range(0, len(rows), batch):
        for row, scores in zip(
            rows[start : start + batch], _scores(model, rows[start : start + batch], chat), strict=True
        ):
            if isinstance(scores, str):
                left_out.append((row.id, scores))
            else:
                scored.append((row, scores))
    if not scored:
        raise InputError("the model can read none of the rows", f"the first: {left_out[0][1]}", "Take another model")
    pairs = [
        (row.completions[right], row.completions[wrong], each[right] - each[wrong])
        for row, each in scored
        for right in range(row.right)
        for wrong in range(row.right, len(row.completions))
    ]
    gap_p = np.array([gap for _, _, gap in pairs])
    sides = [better for better, _, _ in pairs], [worse for _, worse, _ in pairs]
    return Report(
        bench_scores([row for row, _ in scored], [each for _, each in scored]),
        calibration_error(gap_p),
        negative_log_likelihood(gap_p),
        biases(*sides, gap_p),
        tuple(left_out),
    )


def _scores(model: RewardModel | EncoderScorer, rows: Sequence[BenchRow], chat: bool) -> list[list[float] | str]:
    """Return the scores of each row's completions, or why the model cannot read one of them."""
    try:
        return _together(model, rows, chat)
    except InputError as error:
        if len(rows) == 1:
            return [str(error)]
        half = len(rows) // 2
        return [*_scores(model, rows[:half], chat), *_scores(model, rows[half:], chat)]


def _together(model: RewardModel | EncoderScorer, rows: Sequence[BenchRow], chat: bool) -> list[list[float] | str]:
    prompts: list[Prompt] = [
        ({"role": "user", "content": row.prompt},) if chat else row.prompt for row in rows for _ in row.completions
    ]
    score_b = model.scores_of(prompts, [text for row in rows for text in row.completions])
    ends = [len(row.completions) for row in rows]
    return [each.double().tolist() for each in score_b.cpu().split(ends)]


def _as_data(report: Report) -> JsonObject:
    bench = report.bench
    bounded = {name: {"accuracy": e.value, **_bounds(e), "rows": bench.rows[name]} for name, e in bench.subsets.items()}
    return {
        "subsets": bounded,
        "sections": dict(bench.sections),
        "ties": dict(bench.ties),
        "overall": bench.overall,
        "calibration_error": report.calibration,
        "negative_log_likelihood": {"value": report.likelihood.value, **_bounds(report.likelihood)},
        "prefers": {
            name: {side: {"share": e.value, **_bounds(e)} for side, e in each.items()}
            for name, each in report.biases.items()
        },
        "left_out": [name for name, _ in report.left_out],
    }


def _bounds(found: Estimate) -> JsonObject:
    return {"low": found.low, "high": found.high} if isfinite(found.high) else {}


def _show(report: Report, console: Terminal) -> None:
    bench = report.bench
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, justify in (("subset", "left"), ("rows", "right"), ("accuracy", "right"), ("95 % interval", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for name, found in bench.subsets.items():
        table.add_row(escape(name), f"{bench.rows[name]}", f"{found.value:.3f}", _interval(found))
    for name, value in bench.sections.items():
        table.add_row(f"[bold]{name}[/]", "", f"{value:.3f}", "")
    table.add_row("[bold]overall[/]", f"{sum(bench.rows.values())}", f"[bold]{bench.overall:.3f}[/]", "")
    console.print(table)
    if bench.ties:
        said = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in bench.ties.items())
        console.print(f"Ties: {said}", highlight=False)
    nll = report.likelihood
    console.print(
        f"Calibration: error {report.calibration:.3f}; -log σ(gap) {nll.value:.3f} {_interval(nll)}, 0.693 if the "
        "model knows nothing",
        highlight=False,
        soft_wrap=True,
    )
    for name, each in report.biases.items():
        console.print(
            f"Prefers {name}: the scores in {each['scores'].value:.3f} {_interval(each['scores'])} of the pairs that "
            f"differ, the labels in {each['labels'].value:.3f}",
            highlight=False,
            soft_wrap=True,
        )


def _interval(found: Estimate) -> str:
    return f"[{found.low:.3f}, {found.high:.3f}]".replace("[", "\\[") if isfinite(found.high) else ""
