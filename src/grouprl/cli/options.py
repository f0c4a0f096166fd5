"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated, Literal

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


def checkpoint_named(text: str) -> int | Literal["best"]:
    """Return the step of a checkpoint, or "best"; raises a usage error for anything else."""
    if text == "best":
        return "best"
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is neither the step of a checkpoint nor best")
    return int(text)


CheckpointStep = Annotated[
    int | None,
    typer.Option(metavar="STEP|best", help="A checkpoint of the run; best: by eval.best.", parser=checkpoint_named),
]
EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine", metavar="NAME", help="The sampler: local, vllm, sglang, or yours (default: as the run does)."
    ),
]
ModelDevice = Annotated[str, typer.Option(help="auto, cpu, cuda …; for a model (a run has its own).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]
