"""Shell completion of names, in addition to commands and options. The shell itself completes other files."""

from __future__ import annotations

from collections.abc import Iterable
from glob import escape, glob
from pathlib import Path

from grouprl.cli.listing import listed, listed_parts, listed_tasks


def tasks(incomplete: str) -> list[str]:
    """Return the names of tasks that begin with `incomplete`."""
    return _begun((task.name for task in listed_tasks()), incomplete)


def sources(incomplete: str) -> list[str]:
    """Return the recipes, YAML files and run folders that begin with `incomplete`."""
    from grouprl.config.run import recipe_names

    found = [path for end in ("yaml", "yml") for path in glob(f"{escape(incomplete)}*.{end}")]
    return [*_begun(recipe_names(), incomplete), *sorted(found), *runs(incomplete)]


def runs(incomplete: str) -> list[str]:
    """Return the run folders below the current folder, or below runs/, that begin with `incomplete`."""
    found = [*Path().glob("*/config.yaml"), *Path().glob("runs/*/config.yaml")]
    return _begun(sorted(path.parent.as_posix() for path in found), incomplete)


def rewards(incomplete: str) -> list[str]:
    """Return the names of rewards and tasks that begin with `incomplete`."""
    from grouprl.rewards.catalogue.loading import BUILTIN

    return _begun([*BUILTIN, *tasks(incomplete)], incomplete)


def parts(incomplete: str) -> list[str]:
    """Return the names of parts that begin with `incomplete`."""
    return _begun((each.name for each in listed_parts()), incomplete)


def kinds(incomplete: str) -> list[str]:
    """Return the kinds of parts that begin with `incomplete`."""
    return _begun((each.kind for each in listed_parts()), incomplete)


def families(incomplete: str) -> list[str]:
    """Return the families of methods that begin with `incomplete`."""
    return _begun((each.family for each in listed()), incomplete)


def metrics(incomplete: str) -> list[str]:
    """Return the metrics, and groups of metrics, that begin with `incomplete`."""
    from grouprl.monitor.glossary import GLOSSARY, GROUPS

    return _begun([*GROUPS, *GLOSSARY], incomplete)


def statuses(incomplete: str) -> list[str]:
    """Return the statuses of papers that begin with `incomplete`."""
    from grouprl.papers import STATUSES

    return _begun(STATUSES, incomplete)


def scopes(incomplete: str) -> list[str]:
    """Return the scopes of papers that begin with `incomplete`."""
    from grouprl.papers import SCOPES

    return _begun(SCOPES, incomplete)


def _begun(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]
