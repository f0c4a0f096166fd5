"""Findings: observations about a run or a check, each with a stable code by which it is filtered and tested.

A kind of finding is declared once, next to the code that makes it, as a `Code`; calling the `Code` makes the finding.
Plans, health reports and checks share them, and the page of all codes is generated from `CODES`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

Severity = Literal["refusal", "alarm", "warning", "note"]
"""The weight of a finding: a refusal keeps a run from starting."""
SEVERITIES: tuple[Severity, ...] = ("refusal", "alarm", "warning", "note")
"""All severities, the most severe first."""
Source = Literal["plan", "health", "check"]
"""The origin of a finding: the plan of a run, the health report of a run, or a check of the user's code."""


@dataclass(frozen=True)
class Finding:
    """One observation: its kind, how much it matters, what it is about, and what to do about it."""

    code: str
    severity: Severity
    key: str
    """The setting, metric, part or sample that it is about; "" for the whole run."""
    text: str
    remedy: str

    def __str__(self) -> str:
        """Return the text, followed by the remedy if there is one."""
        text = self.text if not self.remedy or self.text.endswith((".", "?", "!")) else f"{self.text}."
        return f"{text} {self.remedy}".rstrip()

    def as_row(self) -> dict[str, object]:
        """Return the finding as a dictionary that JSON can hold."""
        return asdict(self)


@dataclass(frozen=True)
class RunFinding(Finding):
    """A finding from a run's records, with the first and last step at which it held."""

    first_step: int = 0
    last_step: int = 0
    persists: bool = True
    """Whether it still holds at the last record."""

    def when(self) -> str:
        """Say since when, or from when to when, the finding held; its numbers are those of the last step."""
        return time_of(self.first_step, self.last_step, persists=self.persists)


def time_of(first: object, last: object, *, persists: bool) -> str:
    """Say when a finding held, by its first and last step."""
    if persists:
        return f"since step {first}" + ("" if first == last else f", numbers of step {last}")
    return f"step {first}" if first == last else f"steps {first} to {last}"


def gravest_first(findings: Iterable[RunFinding]) -> list[RunFinding]:
    """Return findings in the order of a report: those that still hold first, then by severity, then by first step."""
    order = {severity: place for place, severity in enumerate(SEVERITIES)}
    return sorted(findings, key=lambda f: (not f.persists, order[f.severity], f.first_step, f.code))


@dataclass(frozen=True)
class Code:
    """A kind of finding; calling it makes one."""

    name: str
    source: Source
    severities: tuple[Severity, ...]
    """Severities that its findings can have; the first is the usual one."""
    key: str
    """Default `key` of its findings: what they are about."""
    meaning: str
    remedy: str

    def __call__(
        self, text: str, remedy: str | None = None, *, key: str | None = None, severity: Severity | None = None
    ) -> Finding:
        """Return a finding of this kind; arguments that are left out get the defaults of the kind.

        Raises:
            ValueError: the kind does not declare this severity.
        """
        chosen = self.severities[0] if severity is None else severity
        if chosen not in self.severities:
            raise ValueError(
                f"'{chosen}' is not a severity of {self.name}, which declares {', '.join(self.severities)}"
            )
        about, advice = self.key if key is None else key, self.remedy if remedy is None else remedy
        return Finding(self.name, chosen, about, text, advice)

    def said(self, words: str, *, key: str | None = None, severity: Severity | None = None) -> Finding:
        """Return a finding with the text `words`; if it has several sentences, the last one is the remedy."""
        text, _, remedy = words.rpartition(". ")
        return self(text or remedy, remedy if text else "", key=key, severity=severity)


CODES: dict[str, Code] = {}
"""All kinds of findings declared by the modules imported so far, by name."""


def declare(
    source: Source, name: str, severity: Severity | tuple[Severity, ...], meaning: str, remedy: str, key: str = ""
) -> Code:
    """Declare a kind of finding and return it.

    Raises:
        ValueError: the name is taken.
    """
    if name in CODES:
        raise ValueError(f"the code {name} is declared twice; a code names one kind of finding. Choose another name")
    severities = severity if isinstance(severity, tuple) else (severity,)
    CODES[name] = Code(name, source, severities, key, meaning, remedy)
    return CODES[name]
