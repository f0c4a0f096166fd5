"""Entries that identify a record."""

from grouprl.monitor.glossary.entry import define

define(
    "record",
    {
        "phase": ("name", "which part of the run wrote the record", "warmup, prelude, train or eval"),
        "step": ("count", "optimiser steps (warm-up) or rollout batches (train) done so far", "counts up"),
        "seconds": ("s", "wall-clock time since the run began, pauses before a resume left out", "counts up"),
    },
)
