"""The questions that the application answers: one function each, from the parameters to plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from grouprl.config.yaml_files import read_yaml
from grouprl.core.display_nouns import worded
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.core.numbers import is_number
from grouprl.core.wording import in_ranges
from grouprl.methods.describe import describe
from grouprl.methods.registry import find
from grouprl.monitor.glossary import GLOSSARY, GROUPS, lookup
from grouprl.view.app.episode_calls import calls_of
from grouprl.view.app.parameters import Parameters
from grouprl.view.app.row_query import PARAMETERS, choices, groups_of, page_of
from grouprl.view.app.row_tokens import group_of
from grouprl.view.app.shown_runs import RunLibrary
from grouprl.view.charts import Series, chart
from grouprl.view.curves import COLOURS, PICTURES
from grouprl.view.diagnosis import diagnose, stored_findings
from grouprl.view.loaded_run import PHASES
from grouprl.view.run_list import run_line
from grouprl.view.sections import evaluations


def runs(library: RunLibrary, asked: Parameters) -> JsonObject:
    """The runs that are shown, each with its task, method, steps, state, outcome, and whether its policy acts."""
    lines = {name: run_line(folder, library.data(name)) for name, folder in library.folders().items()}
    return {
        "runs": [asdict(line) | {"name": name, "actions": _acting(library, [name])} for name, line in lines.items()]
    }


def run(library: RunLibrary, asked: Parameters) -> JsonObject:
    """One run: its summary, held-out numbers before and after, and files that could not be read."""
    data = library.data(asked.needed("run"))
    before, after = evaluations(data)
    return {"summary": data.summary, "before": before, "after": after, "missing": data.missing, "graded": data.graded}


def metrics(library: RunLibrary, asked: Parameters) -> JsonObject:
    """The metrics of runs, the most telling first: unit, meaning, what to look for, whether it varies, its runs."""
    found: dict[tuple[str, str], dict[str, set[float]]] = {}
    for name in _named(library, asked):
        for phase in PHASES:
            for record in library.data(name).of_phase(phase):
                for metric in (key for key, value in record.items() if is_number(value)):
                    found.setdefault((phase, metric), {}).setdefault(name, set()).add(record[metric])
    listed = [
        {"metric": key, "phase": phase, "runs": list(of), "varies": any(len(values) > 1 for values in of.values())}
        | _meaning(key, _acting(library, list(of)))
        for (phase, key), of in found.items()
    ]
    return {"metrics": sorted((each for each in listed if each["metric"] != "step"), key=_topic)}


def curves(library: RunLibrary, asked: Parameters) -> JsonObject:
    """The values of metrics by step, the runs beside each other, with the figure that the page shows."""
    phase, names = asked.text("phase", "train"), _named(library, asked)
    if phase not in PHASES:
        raise InputError(f"phase={phase}", f"it must be one of {', '.join(PHASES)}")
    if not asked.texts("metric"):
        raise InputError("metric is missing", "this question needs it, once or several times")
    return {"curves": [_curve(library, names, metric, phase) for metric in asked.texts("metric")]}


def settings(library: RunLibrary, asked: Parameters) -> JsonObject:
    """Every setting of the runs in one table, and whether it is the same in all of them."""
    names = _named(library, asked)
    flat = {name: _flat(_settings(library.data(name).config)) for name in names}
    keys = dict.fromkeys(key for each in flat.values() for key in each)
    rows = [{"setting": key, "values": [flat[name].get(key) for name in names]} for key in keys]
    return {"runs": names, "settings": [row | {"same": len(set(row["values"])) == 1} for row in rows]}


def findings(library: RunLibrary, asked: Parameters) -> JsonObject:
    """The findings of a run's health report, the most likely cause first, each with numbers and the rows behind it."""
    data = library.data(asked.needed("run"))
    listed = stored_findings(data)
    if listed is None:
        other = "The health report was written by another version. Examine the run anew: grouprl doctor RUN"
        none = "The health report is written from the first step on. Of older runs: grouprl doctor RUN"
        return {"findings": [], "examined": False, "remedy": none if data.findings is None else other}
    found = diagnose(data, listed)
    told = [each.data() | {name: data.worded(getattr(each, name)) for name in ("sign", "absent")} for each in found]
    return {"findings": told, "examined": True, "remedy": ""}


def rows(library: RunLibrary, asked: Parameters) -> JsonObject:
    """A page of a run's stored rows: filtered, searched and sorted."""
    return page_of(library.rows(asked.needed("run")), asked)


def row_choices(library: RunLibrary, asked: Parameters) -> JsonObject:
    """The values by which a run's rows can be filtered."""
    return choices(library.rows(asked.needed("run")))


def groups(library: RunLibrary, asked: Parameters) -> JsonObject:
    """The groups of a step, by default of the newest, those that pull most first."""
    table = library.rows(asked.needed("run"))
    steps = choices(table)["step"]
    step = asked.whole("step", steps[-1] if steps else 0)
    if step is None or step not in steps:
        raise InputError(
            f"step {step} is not stored", f"stored are {in_ranges(steps)}" if steps else "nothing is stored"
        )
    return {"step": step, "steps": steps, "groups": groups_of(table, step)}


def group(library: RunLibrary, asked: Parameters) -> JsonObject:
    """All rows of one group of a step, best first, with the numbers of every token and what was said turn by turn."""
    name = asked.needed("run")
    step, number = asked.whole("step"), asked.whole("group")
    if step is None or number is None:
        raise InputError("step or group is missing", "this question needs both")
    return group_of(library.folder(name), library.rows(name), step, number, library.pieces(name))


def calls(library: RunLibrary, asked: Parameters) -> JsonObject:
    """The rows of one episode, the agent of each, and the row that called it."""
    name, prompt = asked.needed("run"), asked.needed("prompt_id")
    step, sample = asked.whole("step"), asked.whole("sample")
    if step is None or sample is None:
        raise InputError("step or sample is missing", "this question needs both")
    found = calls_of(library.folder(name), library.rows(name), step, prompt, sample)
    return {"step": step, "prompt_id": prompt, "sample": sample, "rows": found}


def method(library: RunLibrary, asked: Parameters) -> JsonObject:
    """The objective of a run: its parts with their formulas as they were set, and the card of its method."""
    data = library.data(asked.needed("run"))
    name = str(data.summary.get("method") or _flat(_settings(data.config)).get("method.name") or "")
    try:
        card: JsonObject | None = describe(find(name))
    except InputError:
        card = None  # a method of the user's own, whose file is not loaded here
    objective = [
        {**part, **{key: data.worded(str(part[key])) for key in ("words", "formula") if key in part}}
        for part in data.summary.get("objective") or []
    ]
    return {"name": name, "objective": objective, "card": card}


@dataclass(frozen=True)
class PageQuestion:
    """A question: the function that answers it, and its parameters."""

    answer: Callable[[RunLibrary, Parameters], JsonObject]
    parameters: tuple[str, ...] = ()


QUESTIONS: Mapping[str, PageQuestion] = {
    "runs": PageQuestion(runs),
    "run": PageQuestion(run, ("run",)),
    "metrics": PageQuestion(metrics, ("run",)),
    "curves": PageQuestion(curves, ("run", "metric", "phase")),
    "settings": PageQuestion(settings, ("run",)),
    "findings": PageQuestion(findings, ("run",)),
    "rows": PageQuestion(rows, PARAMETERS),
    "choices": PageQuestion(row_choices, ("run",)),
    "groups": PageQuestion(groups, ("run", "step")),
    "group": PageQuestion(group, ("run", "step", "group")),
    "calls": PageQuestion(calls, ("run", "step", "prompt_id", "sample")),
    "method": PageQuestion(method, ("run",)),
}
"""By the last part of its path: /api/NAME."""


def answered(library: RunLibrary, name: str, given: Mapping[str, Sequence[str]]) -> JsonObject:
    """Return the answer to a question.

    Raises:
        InputError: a parameter is unknown, absent or wrong, or there is no such run.
    """
    question = QUESTIONS[name]
    return question.answer(library, Parameters(given, question.parameters))


def questions() -> JsonObject:
    """Return all questions with their parameters, as plain data."""
    found = [(name, each.answer.__doc__ or "", each.parameters) for name, each in QUESTIONS.items()]
    return {"questions": [{"path": f"/api/{name}", "is": words, "parameters": list(of)} for name, words, of in found]}


def _named(library: RunLibrary, asked: Parameters) -> list[str]:
    """Return the runs of a question; all if none is named."""
    names = asked.texts("run") or list(library.folders())
    for name in names:
        library.folder(name)
    return list(dict.fromkeys(names))


def _curve(library: RunLibrary, names: Sequence[str], metric: str, phase: str) -> JsonObject:
    found = [_series(library.data(name).of_phase(phase), metric, name) for name in names]
    known = [series for series in found if series.y]
    about = _meaning(metric, _acting(library, names))
    words = f"{about['words']} Look for: {about['good']}." if about["words"] else "Not in the glossary of this version."
    figure = chart(metric, words, known[:COLOURS], None)
    values = [{"run": s.name, "x": list(s.x), "y": list(s.y), "low": list(s.low), "high": list(s.high)} for s in known]
    return {
        "metric": metric,
        "phase": phase,
        **about,
        "series": values,
        "drawn": min(len(known), COLOURS),
        "figure": figure,
    }


def _series(records: Sequence[JsonMapping], metric: str, name: str) -> Series:
    found = [
        (record.get("step", place), record) for place, record in enumerate(records) if is_number(record.get(metric))
    ]
    whole = bool(found) and all(is_number(r.get(f"{metric}_{end}")) for _, r in found for end in ("low", "high"))
    low, high = ([r[f"{metric}_{end}"] for _, r in found] if whole else () for end in ("low", "high"))
    return Series(name, [float(step) for step, _ in found], [r[metric] for _, r in found], low=low, high=high)


def _acting(library: RunLibrary, names: Sequence[str]) -> bool:
    """Return whether the policies of all these runs act instead of writing."""
    return all(library.data(name).summary.get("actions") is True for name in names)


def _meaning(metric: str, actions: bool = False) -> JsonObject:
    try:
        entry = lookup(metric)
    except InputError:
        return {"unit": "", "group": "", "words": "", "good": ""}
    texts = {"unit": entry.unit, "words": f"{entry.words[0].upper()}{entry.words[1:]}.", "good": entry.good}
    return {"group": entry.group, **{name: worded(text, actions=actions) for name, text in texts.items()}}


def _topic(each: JsonMapping) -> tuple[bool, int, int, int]:
    """Return a key that sorts metrics as reports do, then as the glossary does; those that never vary come last."""
    first = dict.fromkeys(name for picture in PICTURES for name in picture.metrics)
    places = {name: place for place, name in enumerate(first)}
    order = {name: place for place, name in enumerate(GLOSSARY)}
    own, listed = places.get(each["metric"], len(places)), order.get(each["metric"], len(order))
    return not each["varies"], own, [*GROUPS, ""].index(each["group"]), listed


def _settings(text: str) -> object:
    try:
        return read_yaml(text, "config.yaml") or {}
    except InputError:
        return {}


def _flat(settings: object, before: str = "") -> dict[str, str | None]:
    """Return nested settings as one level of dotted names, their values as texts."""
    if isinstance(settings, Mapping) and settings:
        inner = (_flat(value, f"{before}.{key}" if before else str(key)) for key, value in settings.items())
        return {name: value for each in inner for name, value in each.items()}
    return {before: None if settings is None else str(settings)} if before else {}
