"""Options that several commands have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, cast

import typer

from grouprl.cli import completion
from grouprl.core.errors import InputError, shortened
from grouprl.core.json_types import JsonObject

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
TemplateVariables = Annotated[
    str | None,
    typer.Option(
        "--chat-template-kwargs",
        metavar="MAPPING",
        help="Variables of the chat template, such as '{enable_thinking: false}' (default: the run's).",
    ),
]
ModelDevice = Annotated[str, typer.Option(help="auto, cpu, cuda …; for a model (a run has its own).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]


def template_variables(text: str | None) -> JsonObject:
    """Return the variables of a chat template that `--chat-template-kwargs` sets, written as YAML or JSON.

    Raises:
        InputError: the text is not a mapping of names.
    """
    from grouprl.config.yaml_files import read_yaml

    found = {} if text is None else read_yaml(text, f"--chat-template-kwargs {shortened(text)}")
    if isinstance(found, Mapping) and all(isinstance(name, str) for name in found):
        return cast("JsonObject", found)
    raise InputError(
        f"--chat-template-kwargs {text}",
        "it must be a mapping from names of variables to values",
        "For instance: --chat-template-kwargs '{enable_thinking: false}'",
    )
