"""What is going well or wrong in a run, in words: findings computed from the logged records alone.

`examine` is a pure function of the records, so a resumed run reports what an uninterrupted one would. `Health` is the
same computation step by step, for the trainer. The conditions themselves are in `symptoms.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from grouprl.core.json_types import JsonMapping
from grouprl.core.units import worded
from grouprl.monitor.finding import ORDER, Finding, HealthFacts, History, Severity
from grouprl.monitor.symptoms import SYMPTOMS

__all__ = ["Finding", "Health", "HealthFacts", "Severity", "examine"]


class Health:
    """The findings of a run, kept up to date record by record."""

    def __init__(self, facts: HealthFacts, history: Iterable[Mapping[str, object]] = ()) -> None:
        """Start from the records of the run so far (none for a fresh run)."""
        self.facts = facts
        self.history = History()
        self._findings: dict[str, Finding] = {}
        for record in history:
            self.observe(record)

    def observe(self, record: JsonMapping) -> list[Finding]:
        """Add one record of training or evaluation (others are ignored) and return all findings so far."""
        phase = record.get("phase", "train")
        if phase == "eval":
            self.history.evaluations.append(record)
        elif phase == "train":
            self.history.add(record)
        if phase not in ("train", "eval") or not self.history.count:
            return self.findings()
        step = int(record.get("step", self.history.count))
        present = [found for symptom in SYMPTOMS if (found := symptom(self.history, self.facts))]
        self._merge(present, step)
        return self.findings()

    def _merge(self, present: Sequence[Finding], step: int) -> None:
        now = {f.key: f for f in present}
        for key, old in self._findings.items():
            if key not in now and old.persists:
                self._findings[key] = replace(old, persists=False)
        for key, new in now.items():
            old_first = self._findings[key].first_step if key in self._findings else step
            words, remedy = (worded(text, actions=self.facts.actions) for text in (new.words, new.remedy))
            self._findings[key] = replace(new, first_step=old_first, last_step=step, words=words, remedy=remedy)

    def findings(self) -> list[Finding]:
        """All findings so far: those that persist first, then by severity, then by first step."""
        return sorted(
            self._findings.values(), key=lambda f: (not f.persists, ORDER.index(f.severity), f.first_step, f.key)
        )


def examine(history: Sequence[Mapping[str, object]], facts: HealthFacts) -> list[Finding]:
    """Return every finding of the records of a run, each once, with its first and last step and whether it persists."""
    return Health(facts, history).findings()
