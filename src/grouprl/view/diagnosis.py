"""A diagnosis of a run: its findings, the most likely cause first, each with its numbers and the rows behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeAlias

from grouprl.core.errors import InputError
from grouprl.core.finding import SEVERITIES, RunFinding
from grouprl.core.json_types import JsonObject
from grouprl.core.numbers import is_number
from grouprl.view.judge_moves import judge_moves
from grouprl.view.runfiles import RunData
from grouprl.view.trajectory import of_step
from grouprl.view.witnesses import Witness, witnesses

BREAKS = (
    *("non_finite", "zero_learning_rate", "reward_errors", "sampler_gap", "weak_start", "below_demonstrations"),
    *("moves_too_fast", "part_too_fast", "repetition_loops"),
)
"""Findings that explain others: what is broken before anything can be learned, steps that destroy the policy, and texts
in loops, which grow, are cut off and are all alike."""
STRIDE = "large_update"
"""The finding that explains a collapse if nothing else began before it; later, the collapse may cause it."""
OUTCOMES = ("no_gain", "collapse")
"""Findings that others explain."""
SHOWN = 3
"""Largest number of rows for a finding."""
TRIED = 20
"""Largest number of stored steps that are searched for rows: a rare one is in few."""
EXCERPT = 120
"""Largest number of characters of a row's text."""


Seen: TypeAlias = Callable[[int], list[Witness]]
"""The rows of a stored step, by its number."""


@dataclass(frozen=True)
class Sign:
    """The rows that show a finding: their description, and a function that selects and orders them."""

    words: str
    rows: Callable[[Sequence[Witness]], Sequence[Witness]]


def _most(words: str, key: Callable[[Witness], float], of: Callable[[Witness], bool] = lambda row: True) -> Sign:
    """Return the sign whose rows satisfy `of`, those with the largest `key` first."""
    return Sign(words, lambda rows: sorted(filter(of, rows), key=key, reverse=True))


def _by_reward(row: Witness) -> float:
    return 0.0 if row.reward is None else row.reward


LONGEST = _most("the longest", lambda row: row.tokens)
FEWEST_TURNS = _most("those with the fewest turns", lambda row: -row.turns)
LEAST = _most(
    "those that earned least", lambda row: -_by_reward(row), lambda row: row.reward is not None and row.sampled
)
WRONG = _most(
    "the better rows of pairs that the model has most wrong",
    lambda row: -(row.margin or 0.0),
    lambda row: (row.margin or 0.0) < 0,
)


def _lopsided(rows: Sequence[Witness]) -> list[Witness]:
    """Return the rows whose advantage has the sign of most of it, those with the most first."""
    side = 1.0 if sum(row.pushed for row in rows) > 0 else -1.0
    return sorted((row for row in rows if row.pushed * side > 0), key=lambda row: -abs(row.pushed))


def _silent(agent: str) -> Sign:
    """Return the sign of an agent that falls silent: the episodes in which it writes least."""
    return _most(f"those in which `{agent}` writes least", lambda row: -row.agents.get(agent, 0))


TIED = _most("rows of groups with equal rewards", _by_reward, lambda row: row.tied)
DRIFT = "drifting_judge"
"""The finding whose rows are those that the judge was asked about again."""
DISPLACED = _most(
    "chosen ones that have lost most against the reference",
    lambda row: -row.drift,
    lambda row: row.chosen and row.drift < 0,
)
FURTHEST = _most("those furthest from the reference", lambda row: abs(row.drift))
SIGNS: Mapping[str, Sign] = {
    "reward_errors": _most("those without a reward", lambda row: row.tokens, lambda row: row.reward is None),
    "no_signal": TIED,
    "dead_groups": TIED,
    "truncation": _most("the longest that were cut off", lambda row: row.tokens, lambda row: row.cut),
    "repetition_loops": _most("the longest that end in a loop", lambda row: row.tokens, lambda row: row.looped),
    "length_growth": LONGEST,
    "length_exploitation": LONGEST,
    "length_shrinking": _most("the shortest", lambda row: -row.tokens),
    "fewer_turns": FEWEST_TURNS,
    "below_demonstrations": FEWEST_TURNS,
    "tools_unused": FEWEST_TURNS,
    "repeated_calls": _most("those with the most turns", lambda row: row.turns),
    "entropy_collapse": _most("those that repeat another of their group", _by_reward, lambda row: row.repeated),
    "entropy_explosion": _most("those with the highest entropy", lambda row: row.entropy),
    "overoptimisation": _most("those that the learned reward pays most", _by_reward),
    "success_traded": _most("wrong ones that earned most", _by_reward, lambda row: not row.right and row.sampled),
    "verifier_noise": _most("the same text with different rewards", _by_reward, lambda row: row.disputed),
    "learnt_by_heart": _most("right ones", _by_reward, lambda row: row.right and row.sampled),
    "reference_drift": FURTHEST,
    "far_from_reference": FURTHEST,
    "likelihood_displacement": DISPLACED,
    "large_update": _most(
        "those whose likelihood an update moved most", lambda row: row.stride, lambda row: row.stride > 0
    ),
    "weak_start": _most(
        "wrong ones that are pushed up most",
        lambda row: row.pushed,
        lambda row: not row.right and row.sampled and row.pushed > 0,
    ),
    "sampler_gap": _most(
        "those about which sampler and trainer differ most", lambda row: row.gap, lambda row: row.gap > 0
    ),
    "unreliable_judge": _most(
        "those whose comparisons were undecided, or came out even",
        lambda row: 1.0 if row.reward is None else -abs(row.reward - 0.5),
    ),
    DRIFT: _most("those whose scores have moved most", lambda row: row.moved, lambda row: row.moved > 0),
    "lopsided_advantage": Sign("those with the most advantage of the sign that prevails", _lopsided),
    "unearned_component": _most("those that earned most without it", _by_reward, lambda row: row.sampled),
    "collapse": LEAST,
    "no_gain": LEAST,
}
"""By code: which rows show a finding. What is not listed is of whole steps: a gradient, a clip, a learning rate."""
OF_KEYS: Mapping[str, Callable[[str], Sign]] = {"silent_agent": lambda key: _silent(key.partition("/")[2])}
"""By code: which rows show a finding, where that depends on what it is about."""
WHOLE_STEPS = "It is a finding on whole steps, which no single row shows."
NOT_STORED = "No rollouts are stored that could show it: run.rollouts_every."
NONE_OF_THEM = "No row that shows it is in the stored steps around it."
NEEDS: Mapping[str, str] = {
    "large_update": "Stored rollouts have the ratio of each token with run.record_updates=tokens.",
    "likelihood_displacement": "Stored pairs show it where the method has a reference.",
    "template_variables": "Stored rows do not say which variables a conversation sets; their prompts show the effect.",
}
"""By code: why stored rows may not show a finding."""


@dataclass(frozen=True)
class Diagnosis:
    """A finding with its evidence."""

    finding: RunFinding
    course: tuple[tuple[int, float], ...]
    """Values of the finding's metric, as (step, value): first, when the finding began, and last."""
    sign: str
    """Which rows are shown, in words; "" if single rows show nothing."""
    rows: tuple[Witness, ...]
    absent: str = ""
    """The reason why no row is shown; "" if some are."""

    def data(self) -> JsonObject:
        """Return it as JSON data."""
        return {
            **self.finding.as_row(),
            "when": self.finding.when(),
            "course": [list(point) for point in self.course],
            "sign": self.sign,
            "rows": [asdict(row) for row in self.rows],
            "absent": self.absent,
        }


def stored_findings(run: RunData) -> list[RunFinding] | None:
    """Return the findings of a run's health report; None if it has none, or one that another version has written."""
    try:
        found = None if run.findings is None else [RunFinding(**row) for row in run.findings]
    except TypeError:
        return None
    return found if found is None or all(map(_readable, found)) else None


def _readable(found: RunFinding) -> bool:
    """Return whether a finding that was read from a file has values by which findings are told and sorted."""
    times = (found.first_step, found.last_step)
    return found.severity in SEVERITIES and isinstance(found.code, str) and all(isinstance(at, int) for at in times)


def diagnose(run: RunData, findings: Sequence[RunFinding]) -> list[Diagnosis]:
    """Return the findings of a run with their evidence, the most likely cause first.

    Notes come last. Before them stands what is broken from the start, then everything else, then outcomes that the
    others explain; alarms stand before warnings, and what began earlier before what began later.
    """
    stored, seen = _stored(run.folder), lru_cache(TRIED)(partial(_seen, run.folder))  # findings show the same steps
    return [_diagnosis(run, found, stored, seen) for found in by_likelihood(findings)]


def by_likelihood(findings: Sequence[RunFinding]) -> list[RunFinding]:
    """Return findings by how likely they are the cause of the others, the likeliest first."""
    breaks = (*BREAKS, STRIDE) if _strides_first(findings) else BREAKS
    return sorted(findings, key=partial(_likelihood, breaks))


def _strides_first(findings: Sequence[RunFinding]) -> bool:
    """Return whether a collapse was preceded by large updates, and these by nothing else."""
    began = {found.code: found.first_step for found in findings if found.severity != "note"}
    return "collapse" in began and began.get(STRIDE) == min(began.values())


def _likelihood(breaks: Sequence[str], found: RunFinding) -> tuple[bool, int, int, bool, int]:
    tier = 0 if found.code in breaks else 2 if found.code in OUTCOMES else 1
    return found.severity == "note", tier, SEVERITIES.index(found.severity), not found.persists, found.first_step


def course(run: RunData, found: RunFinding) -> tuple[tuple[int, float], ...]:
    """Return the values of a finding's metric at the first record, when it began and when it was last seen."""
    values = {
        int(record["step"]): float(record[found.key])
        for record in (*run.of_phase("train"), *run.of_phase("eval"))
        if is_number(record.get(found.key)) and is_number(record.get("step"))
    }
    if not values:
        return ()
    wanted = (
        min(values),
        *(max((s for s in values if s <= at), default=min(values)) for at in (found.first_step, found.last_step)),
    )
    return tuple((step, values[step]) for step in dict.fromkeys(wanted))


def _diagnosis(run: RunData, found: RunFinding, stored: Sequence[int], seen_at: Seen) -> Diagnosis:
    sign = OF_KEYS[found.code](found.key) if found.code in OF_KEYS else SIGNS.get(found.code)
    near = sorted(stored, key=lambda step: (step > found.last_step, abs(step - found.last_step)))
    if found.code == DRIFT:
        near = [step for step in stored if step == judge_moves(run.folder)[0]]
    seen = [] if sign is None else _first_shown(seen_at, near, sign)
    if sign is None or not seen:
        return Diagnosis(found, course(run, found), "", (), _absent(found.code, sign, near))
    if sign is LEAST and any(row.margin is not None for row in seen):
        sign = WRONG
    rows = tuple(sign.rows(seen)[:SHOWN])
    return Diagnosis(found, course(run, found), sign.words, rows)


def _absent(code: str, sign: Sign | None, stored: Sequence[int]) -> str:
    """Say why no row of the stored steps is shown for a finding."""
    if sign is None:
        return NEEDS.get(code, WHOLE_STEPS)
    if not stored:
        return NOT_STORED
    return f"{NONE_OF_THEM} {NEEDS.get(code, '')}".rstrip()


def _first_shown(seen_at: Seen, steps: Sequence[int], sign: Sign) -> list[Witness]:
    """Return the rows of the first of these steps that has some that show it; [] without one."""
    return next((seen for step in steps[:TRIED] if sign.rows(seen := seen_at(step))), [])


def _seen(folder: Path, step: int) -> list[Witness]:
    """Return the rows of a stored step; [] if it is damaged or cut off: another shows a finding as well."""
    kept, moves = judge_moves(folder)
    try:
        return witnesses(of_step(folder, step), moves if step == kept else {})
    except InputError:
        return []


def _stored(folder: Path) -> list[int]:
    return sorted(int(path.stem.partition("-")[2]) for path in folder.glob("rollouts/step-*.parquet"))
