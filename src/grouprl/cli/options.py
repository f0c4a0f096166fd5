"""Options that several commands have."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from grouprl.cli import completion

RunOrModel = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_MODEL",
        help="A run folder, or a model: a folder, a GGUF file or a Hub id.",
        autocompletion=completion.runs,
    ),
]


def checkpoint_named(text: str) -> int | str:
    """Return the step of a checkpoint, its name or "best"; raises a usage error for anything else."""
    if text.isdecimal():
        return int(text)
    if text == "best" or re.fullmatch(r"[a-z]+-\d+", text):
        return text
    raise typer.BadParameter(f"{text!r} is not a checkpoint: give a step, warmup-STEP, pretraining-STEP or best")


CheckpointStep = Annotated[
    str | None,
    typer.Option(
        metavar="STEP|NAME|best",
        help="A checkpoint of the run by its step, or by its name (warmup-40); best: by eval.best.",
        parser=checkpoint_named,
    ),
]
EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine", metavar="NAME", help="The sampler: local, vllm, sglang, or yours (default: as the run does)."
    ),
]
ModelDevice = Annotated[str, typer.Option(help="auto, cpu, cuda …; for a model (a run has its own).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]
