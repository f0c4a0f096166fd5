"""The room that a run's folder needs on disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from grouprl.config.run import Config, default_folder
from grouprl.plan.memory import human
from grouprl.plan.model_facts import ModelFacts

MOMENTS = 8
"""Bytes of the optimiser's state for each trained number: two moments of AdamW in float32."""


def disk_needed(config: Config, model: ModelFacts) -> int:
    """Return about how many bytes checkpoints and the final model take: one checkpoint more than are kept, at worst."""
    each = model.trainable * (model.bytes_each + MOMENTS)
    return (config.run.keep + 1) * each + model.parameters * model.bytes_each


def disk_notes(config: Config, model: ModelFacts | None) -> Iterator[str]:
    """Yield a sentence if less is free where the run folder will be than its checkpoints and model need."""
    if model is None:
        return
    place = default_folder(config).absolute()
    # Not `Path.is_dir`, which raises where a name is too long.
    there = next((each for each in (place, *place.parents) if os.path.isdir(each)), None)
    needed, free = disk_needed(config, model), None if there is None else shutil.disk_usage(there).free
    if free is not None and needed > free:
        yield (
            f"checkpoints and the final model take about {human(needed)}, and {human(free)} are free in {there}. Lower "
            "run.keep, or set run.folder to a place with more room"
        )
