"""What the recorded runs show of each method and recipe: counted from the records, and shipped with the package.

A run gained if the 95 % interval on held-out prompts after it lies above that before. `grouprl methods show`, `grouprl
plan` and `grouprl recipes` read what is made here, so that a reader sees first what was not shown to learn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

import examples
import learn_report
import recipes as recorded
from effects_report import setup_words
from grouprl.config.run import load_config, recipe_names
from grouprl.methods import CATALOGUE
from tried import Tried, further, read, seeds_of

PACKAGE = Path(__file__).parents[1] / "src" / "grouprl"
METHODS, RECIPES = PACKAGE / "methods" / "shown.json", PACKAGE / "recipes" / "shown.json"
WHY = {
    **learn_report.WHY_NOT,
    "ssp": "what its proposer sets moves away from the held-out problems, and the solver forgets those (docs/teams.md)",
    "cpmobius": "the player gets better at what its coach sets, not at what is held out (docs/teams.md)",
    "apo_down": "it lowers both words of a pair, and the rates that were best for it hardly move the model",
    "discopop": "at its own τ its loss falls as the worse word gains where policy and reference agree",
}
"""What is known of methods that did not learn."""
ON_PAGES = {
    **dict.fromkeys(("echo", "search_r2", "retroformer"), "docs/reviews.md"),
    **dict.fromkeys(("decoupled_ppo", "m2po", "dppo_mask"), "docs/async.md"),
    "rae": "docs/adapters.md",
}
"""Where runs are told of in words and tables that no record is behind."""
ORDINARY = "grpo"
"""Recipes and examples with this method are about their task or reward: they say little of a method."""


def recipe_gained(record: Mapping[str, Any]) -> bool:
    """Whether a recipe's run gained: more right completions or, where the paper pays for other things, more reward."""
    return any(recorded.rose(record, measure) for measure in (*recorded.RIGHT, "reward"))


def of_recipes() -> dict[str, dict[str, int]]:
    """Return, by recipe, how many seeds are recorded and how many of them gained."""
    found: dict[str, list[Mapping[str, Any]]] = {name: [] for name in recipe_names()}
    for record in read("recipes.json"):
        found[record["recipe"]].append(record)
    return {name: {"gained": sum(map(recipe_gained, runs)), "seeds": len(runs)} for name, runs in found.items()}


def of_methods() -> dict[str, dict[str, str]]:
    """Return, by method, a verdict (learned, mixed, not shown, no record), a sentence, and how many of the places."""
    tried: dict[str, list[Tried]] = defaultdict(list)
    for each in (*learning(), *credit(), *recipes(), *pages(), *further()):
        tried[each.method].append(each)
    return {
        name: _sentence(name, bool(entry.dialect_of), tried) | {"learned": count(tried.get(name, []))}
        for name, entry in sorted(CATALOGUE.items())
    }


def count(tried: list[Tried]) -> str:
    """Say in how many of the places every run gained, or with one place in how many runs; "" without a record."""
    if len(tried) == 1:
        return f"{tried[0].gained} of {tried[0].runs}"
    return f"{sum(each.gained == each.runs for each in tried)} of {len(tried)}" if tried else ""


def learning() -> Iterator[Tried]:
    """Yield what docs/learning.json has: runs of single turns."""
    runs = [run for run in read("learning.json")["runs"] if run["method"] != learn_report.CONTROL]
    for (method, task), group in _by(runs, "method", "task"):
        yield _tried(method, task, group, learn_report.learned)


def _tried(method: str, place: str, runs: list[Mapping[str, Any]], good: Callable[[Mapping[str, Any]], bool]) -> Tried:
    lost = [_change(run) for run in runs if not good(run)]
    seeds = seeds_of(len(runs))
    number = len(runs) - len(lost)
    return Tried(method, place, number, len(runs), "; ".join([f"{number} of {seeds}", *lost]))


def _change(run: Mapping[str, Any]) -> str:
    before, after = run["before"], run["after"]
    measure = next(name for name in ("eval/pass@1", *recorded.RIGHT) if name in before)
    return f"{measure.removeprefix('eval/')} {before[measure]:.3f} → {after[measure]:.3f}"


def credit() -> Iterator[Tried]:
    """Yield what docs/credit.json has: episodes of many turns, where the seeds are judged together."""
    for row in read("credit.json"):
        if row["words"] == "learns":
            seeds, shown = len(row["ours"]), row["verdict"] == "shown"
            said = f"{seeds} seeds together {row['difference']:+.3f}" + (f", {row['verdict']}" if not shown else "")
            setup = "" if row["setup"] == row["method"] else f", {setup_words(row['setup']).strip('`')}"
            yield Tried(row["method"], f"{row['arena']}{setup}", seeds * shown, seeds, said)


def recipes() -> Iterator[Tried]:
    """Yield the recipes of other methods than GRPO."""
    runs = [{**each, "method": load_config(each["recipe"]).method_name} for each in read("recipes.json")]
    for (method, recipe), group in _by(runs, "method", "recipe"):
        if method != ORDINARY:
            yield _tried(method, f"recipe {recipe}", group, recipe_gained)


def pages() -> Iterator[Tried]:
    """Yield the recorded examples of other methods than GRPO."""
    known = {example.name: example for example in examples.EXAMPLES}
    for record in read("examples.json"):
        method = _method(known[record["name"]]) if record["name"] in known else ORDINARY
        if method != ORDINARY:
            place = f"example of {Path(known[record['name']].page).name}"
            yield _tried(method, place, [record], examples.learned)


def _method(example: examples.Example) -> str:
    shown = yaml.safe_load(examples.blocks(example.page, "yaml")[example.block]) | example.brought
    method = shown.get("method", ORDINARY)
    return str(method if isinstance(method, str) else method.get("base", method.get("name", ORDINARY)))


def _sentence(name: str, dialect: bool, tried: Mapping[str, list[Tried]]) -> dict[str, str]:
    found = tried.get(name, [])
    if not found and dialect:
        kin = name.partition("@")[0]
        return {"verdict": "no record", "words": f"No run of this dialect is recorded; see {kin}, whose dialect it is."}
    if not found and name in ON_PAGES:
        return {"verdict": "no record", "words": f"{ON_PAGES[name]} tells of runs; none is among those counted here."}
    if not found:
        return {"verdict": "no record", "words": "No run of it is among the records, so it is not shown to learn here."}
    good, bad = ([each for each in found if (each.gained == each.runs) is side] for side in (True, False))
    if not bad:
        return {"verdict": "learned", "words": f"Learned in all recorded runs: {_listed(good)}."}
    why = WHY.get(name, "")
    words = f"NOT shown to learn in {_listed(bad)}." + (f" {why[0].upper()}{why[1:]}." if why else "")
    if not any(each.gained for each in found):
        return {"verdict": "not shown", "words": words}
    learned = [f"Learned in {_listed(good)}."] if good else []
    return {"verdict": "mixed", "words": " ".join([*learned, words] if len(good) > len(bad) else [words, *learned])}


def _listed(found: list[Tried]) -> str:
    return ", ".join(each.words() for each in found)


def _by(rows: Iterable[Mapping[str, Any]], *keys: str) -> Iterator[tuple[tuple[str, ...], list[Mapping[str, Any]]]]:
    found: dict[tuple[str, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        found[tuple(str(row[key]) for key in keys)].append(row)
    yield from found.items()
