"""Entries that identify a record."""

from grouprl.monitor.glossary.entry import define

define("phase", "name", "record", "which part of the run wrote the record", "warmup, prelude, train or eval")
define("step", "count", "record", "optimiser steps (warm-up) or rollout batches (train) done so far", "counts up")
define("seconds", "s", "record", "wall-clock time since the run began, pauses before a resume left out", "counts up")
