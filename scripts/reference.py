"""The pages of the reference: which public names each has; their docstrings are read when the site is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import grouprl
from grouprl import envs, policy, protocols, rewards, testing, tools
from grouprl.algorithms import __all__ as kinds_of_parts

RUNNING = ("train", "plan", "compare", "evaluate", "load_run", "RunListener")
CALLABLE = {"plan": "grouprl.plan._Planning.__call__", "methods": "grouprl.methods._Catalogue.__call__"}
"""Packages that can be called, each with the function behind the call."""
TASKS = ("Task", "EnvironmentTask", "RowTask", "Example", "load_task", "register_task", "task_names")
TRACKERS = ("Tracker", "TrackedRun", "TrackerListener")
MADE = "<!-- Made from the names that are public by scripts/generate_docs.py. Edit the docstrings, not this page. -->"


def pages() -> dict[str, str]:
    """Return every page of the reference by its file name."""
    return {name: page(title, words, names) for name, (title, words, names) in contents().items()}


def contents() -> dict[str, tuple[str, str, list[str]]]:
    """Return the title, the first words and the public names of each page."""
    parts = [name for name in grouprl.__all__ if name in kinds_of_parts or name in ("DataPart", "Part", "part")]
    errors = [name for name in grouprl.__all__ if name.endswith("Error") or name == "MissingExtra"]
    known = {*RUNNING, *parts, *errors, "__version__"}
    methods = [name for name in grouprl.__all__ if name not in known]
    return {
        "running.md": ("Running", "From `grouprl`: plan, train, evaluate, compare, read.", _in("grouprl", RUNNING)),
        "methods.md": ("Methods", "From `grouprl`: methods, their cards, batches.", _in("grouprl", methods)),
        "parts.md": ("Parts", "From `grouprl`: base classes of the parts of a method.", _in("grouprl", parts)),
        "errors.md": ("Errors", "From `grouprl`: the errors that it raises.", _in("grouprl", errors)),
        "envs.md": ("Environments", "From `grouprl.envs`.", _in("grouprl.envs", envs.__all__)),
        "tasks.md": ("Tasks", "From `grouprl.tasks`.", _in("grouprl.tasks", TASKS)),
        "rewards.md": ("Rewards", "From `grouprl.rewards`.", _in("grouprl.rewards", rewards.__all__)),
        "tools.md": ("Tools", "From `grouprl.tools`.", _in("grouprl.tools", tools.__all__)),
        "policy.md": ("Policies", "From `grouprl.policy`.", _in("grouprl.policy", policy.__all__)),
        "protocols.md": ("Protocols", "From `grouprl.protocols`.", _in("grouprl.protocols", protocols.__all__)),
        "trackers.md": ("Trackers", "From `grouprl.trackers`.", _in("grouprl.trackers", TRACKERS)),
        "testing.md": ("Checks", "From `grouprl.testing`.", _in("grouprl.testing", testing.__all__)),
    }


def _in(package: str, names: Sequence[str]) -> list[str]:
    return [f"{package}.{name}" for name in names]


def page(title: str, words: str, names: Sequence[str], called: Mapping[str, str] = CALLABLE) -> str:
    """Return a page that asks for the docstrings of `names`, in the form of mkdocstrings."""
    lines = [MADE, f"# {title}", "", words, ""]
    for name in names:
        short = name.rpartition(".")[2]
        if name == f"grouprl.{short}" and short in called:
            lines += [f"## `{name}()`", "", f"::: {called[short]}", "    options:", "      show_root_heading: false"]
            lines += ["      show_root_toc_entry: false", ""]
        else:
            lines += [f"::: {name}", ""]
    return "\n".join(lines)
