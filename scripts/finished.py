"""A run of which something is recorded: trained to its end, in silence."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from grouprl.config.run import Config, parse_config
from grouprl.training.loop import Summary, train


def finished(settings: Mapping[str, Any] | Config, folder: Path) -> Summary:
    """Train in `folder`, and return what came of it.

    Raises:
        KeyboardInterrupt: the run was interrupted, by Ctrl-C or a signal, and wrote a checkpoint: it is no record.
    """
    config = settings if isinstance(settings, Config) else parse_config(dict(settings))
    summary = train(config, folder=folder, console=Console(file=io.StringIO()))
    if summary.interrupted:
        raise KeyboardInterrupt(f"the run in {summary.folder}")
    return summary
