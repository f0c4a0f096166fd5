"""What TAB offers beside commands and options: names. Files of other kinds are offered by the shell itself."""

from __future__ import annotations

from collections.abc import Iterable
from glob import escape, glob
from pathlib import Path

from grouprl.cli.listing import listed, listed_parts, listed_tasks


def tasks(incomplete: str) -> list[str]:
    """Return the names of tasks that begin so."""
    return _begun((task.name for task in listed_tasks()), incomplete)


def sources(incomplete: str) -> list[str]:
    """Return what can be planned or trained and begins so: recipes, YAML files, run folders."""
    from grouprl.config.run import recipe_names

    found = [path for end in ("yaml", "yml") for path in glob(f"{escape(incomplete)}*.{end}")]
    return [*_begun(recipe_names(), incomplete), *sorted(found), *runs(incomplete)]


def runs(incomplete: str) -> list[str]:
    """Return the run folders below the current one, or below runs/, that begin so."""
    found = [*Path().glob("*/config.yaml"), *Path().glob("runs/*/config.yaml")]
    return _begun(sorted(path.parent.as_posix() for path in found), incomplete)


def rewards(incomplete: str) -> list[str]:
    """Return the names of rewards, and of tasks, that begin so."""
    from grouprl.rewards.loading import BUILTIN

    return _begun([*BUILTIN, *tasks(incomplete)], incomplete)


def parts(incomplete: str) -> list[str]:
    """Return the names of parts that begin so."""
    return _begun((each.name for each in listed_parts()), incomplete)


def kinds(incomplete: str) -> list[str]:
    """Return the kinds of parts that begin so."""
    return _begun((each.kind for each in listed_parts()), incomplete)


def families(incomplete: str) -> list[str]:
    """Return the families of methods that begin so."""
    return _begun((each.family for each in listed()), incomplete)


def metrics(incomplete: str) -> list[str]:
    """Return the metrics, and groups of them, that begin so."""
    from grouprl.monitor.glossary import GLOSSARY, GROUPS

    return _begun([*GROUPS, *GLOSSARY], incomplete)


def statuses(incomplete: str) -> list[str]:
    """Return what a paper can be here, as far as it begins so."""
    from grouprl.papers import STATUSES

    return _begun(STATUSES, incomplete)


def scopes(incomplete: str) -> list[str]:
    """Return how near a paper can be, as far as it begins so."""
    from grouprl.papers import SCOPES

    return _begun(SCOPES, incomplete)


def _begun(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]
