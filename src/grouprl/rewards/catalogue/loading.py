"""Finding a reward by name or import path, with helpful errors."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from grouprl.core.errors import InputError, MissingExtra, shortened, suggest
from grouprl.core.importing import import_object, own_is_named
from grouprl.core.json_types import JsonMapping
from grouprl.rewards.by_task import bleu, code, graded, puzzles, quality, routes, self_search, structured
from grouprl.rewards.by_task import recall as knowing
from grouprl.rewards.by_task import reflection as reflecting
from grouprl.rewards.by_task import search_steps as stepping
from grouprl.rewards.catalogue import builtin
from grouprl.rewards.contract import Reward, inspect_reward
from grouprl.rewards.refused_forms import check_form
from grouprl.rewards.validation import combine

RewardSpec: TypeAlias = str | JsonMapping | Sequence[str | JsonMapping] | Reward

BUILTIN: dict[str, Reward] = {
    reward.__name__: reward
    for reward in (
        builtin.exact_match,
        builtin.numeric_match,
        builtin.regex_format,
        builtin.contains_answer_tag,
        builtin.math_equal,
        bleu.bleu,
        code.passes_tests,
        graded.fuzzy_count,
        graded.mean_relative_accuracy,
        graded.relaxed_accuracy,
        graded.tolerance_ramp,
        knowing.knowledge,
        puzzles.number_after_bar,
        puzzles.reaches_target,
        quality.quality,
        reflecting.reflection,
        routes.whole_path,
        self_search.self_search,
        stepping.route_step,
        structured.json_after_thought,
        structured.json_match,
        structured.tool_calls,
    )
}


def reward_names() -> list[str]:
    """Return the names of the built-in rewards."""
    return sorted(BUILTIN)


def load_reward(spec: RewardSpec) -> Reward:
    """Return the reward that a configuration names.

    Args:
        spec: a built-in name; "pkg.module:function" or "path/to/file.py:function"; a mapping with "name" (either of
            these) and values for the function's own parameters; a list of names and such mappings, each with an
            optional "weight" (default 1), for a weighted sum: its first entry decides what is correct, and the sum is
            0 if an entry with "critical: true" is 0; or a function, which is returned unchanged.

    Raises:
        InputError: if it cannot be found, is not callable, or is given a parameter it does not have.
        MissingExtra: if it needs a package that is not installed.
    """
    if isinstance(spec, str):
        return _by_name(spec)
    if isinstance(spec, Mapping):
        return _with_options(spec)
    if callable(spec):
        inspect_reward(spec)
        check_form(spec)
        return spec
    if isinstance(spec, Sequence):
        parts = [(_weighted(entry), _critical(entry)) for entry in spec]
        return combine([part for part, _ in parts], critical=[part[0] for part, veto in parts if veto])
    raise InputError(
        f"The reward is {spec!r}",
        "it must be a name, an import path, a mapping with 'name', or a list",
        "For instance exact_match",
    )


def _by_name(spec: str) -> Reward:
    if ":" not in spec:
        if spec not in BUILTIN:
            own = own_is_named(spec, "function")
            raise InputError(
                f"There is no reward '{spec}'",
                remedy=own if spec.endswith(".py") else f"{suggest(spec, BUILTIN)} {own}",
            )
        _check_extra(spec)
        return BUILTIN[spec]
    reward = import_object(spec, "reward")
    if not callable(reward):
        raise InputError(
            f"The reward '{spec}' is of type {type(reward).__name__}", "a reward is callable", "Name a function"
        )
    if inspect.isclass(reward):
        raise InputError(
            f"The reward '{spec}' is a class",
            "a reward must be a function or an instance",
            "Name an instance of it instead.",
        )
    inspect_reward(reward)
    check_form(reward)
    return reward


def _with_options(spec: Mapping[str, object]) -> Reward:
    options = dict(spec)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise InputError(
            f"The reward {dict(spec)} has no name",
            "the key 'name' must hold a built-in name or an import path",
            "Add it",
        )
    reward = _by_name(name)
    if not options:
        return reward
    signature = inspect_reward(reward)
    known = signature.required + signature.optional
    for option in options:
        if option not in known and not signature.everything:
            remedy = suggest(option, known) if known else "It has no parameters."
            raise InputError(f"Reward '{name}' has no parameter '{option}'", remedy=remedy)
    return partial(reward, **options)


def _weighted(spec: object) -> tuple[str, Reward, float]:
    if isinstance(spec, str):
        spec = {"name": spec}
    if not isinstance(spec, Mapping):
        raise InputError(f"A list of rewards holds {spec!r}", "each entry must be a name or a mapping with 'name'")
    options = dict(spec)
    options.pop("critical", None)
    weight = options.pop("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not abs(weight) <= sys.float_info.max:
        shown = "larger than any float" if type(weight) is int else shortened(weight)  # it may have too many digits
        raise InputError(
            f"The weight of reward '{spec.get('name')}' is {shown}",
            "a weight must be a finite number",
            "For instance 0.5",
        )
    return str(options.get("name")).rpartition(":")[2], _with_options(options), float(weight)


def _critical(spec: Any) -> bool:
    found = spec.get("critical", False) if isinstance(spec, Mapping) else False
    if not isinstance(found, bool):
        raise InputError(
            f"'critical' of reward '{spec.get('name')}' is {found!r}", "it must be true or false", "Set one of them"
        )
    return found


def _check_extra(name: str) -> None:
    if name == "math_equal" and importlib.util.find_spec("math_verify") is None:
        raise MissingExtra("math-verify", "math", "The reward 'math_equal'")
