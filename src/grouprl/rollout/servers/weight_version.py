"""Labels of the weights at servers, which name their run and version."""

from __future__ import annotations

import re

from grouprl.rollout.servers.http_client import Stale, Wire

UNFINISHED = "unfinished"
"""Version of weights in the middle of an exchange, with which nothing is sampled."""


def label_of(run: str, version: int | str) -> str:
    """Return the label of a version of the run's weights."""
    return f"{run}.{version}"


def version_of(label: str, run: str) -> int | None:
    """Return the version that a label of this run names; None for any other."""
    found = re.fullmatch(r"-?[0-9]{1,18}", label.removeprefix(f"{run}."))
    return int(found[0]) if found and label.startswith(f"{run}.") else None


def label_at(wire: Wire, path: str, run: str) -> str:
    """Return the label of a server's weights, which it returns at `path`.

    Raises:
        Stale: they do not belong to this run.
    """
    told = wire.get(path)
    label = told.get("weight_version") if isinstance(told, dict) else None
    if not isinstance(label, str) or version_of(label, run) is None:
        raise Stale(f"the server {wire.address} has no weights of this run: it has {label!r}")
    return label
