"""The health report of a run: findings computed from the logged records alone.

`examine` is a pure function of the records, so a resumed run reports what an uninterrupted one would. `Health` is the
same computation step by step, for the trainer. The conditions are in `detectors.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from grouprl.core.display_nouns import worded
from grouprl.core.finding import Finding, RunFinding, gravest_first
from grouprl.core.json_types import JsonMapping
from grouprl.monitor.detectors import DETECTORS
from grouprl.monitor.history import HealthFacts, History
from grouprl.protocols.run_events import EvaluationEnded, FindingChanged, RunListener, StepEnded


class Health:
    """The findings of a run, kept up to date record by record."""

    def __init__(self, facts: HealthFacts, history: Iterable[Mapping[str, object]] = ()) -> None:
        """Start from the records of the run so far (none for a fresh run)."""
        self.facts = facts
        self.history = History()
        self._findings: dict[str, RunFinding] = {}
        for record in history:
            self.observe(record)

    def observe(self, record: JsonMapping) -> list[RunFinding]:
        """Add one record of training or evaluation (others are ignored) and return all findings so far."""
        phase = record.get("phase", "train")
        if phase == "warmup":
            self.history.demonstrated_turns = float(record.get("demonstrated_turns", 0.0))
        elif phase == "eval":
            self.history.evaluations.append(record)
        elif phase == "train":
            self.history.add(record)
        if phase not in ("train", "eval") or not self.history.count:
            return self.findings()
        step = int(record.get("step", self.history.count))
        present = [found for detect in DETECTORS if (found := detect(self.history, self.facts))]
        self._merge(present, step)
        return self.findings()

    def _merge(self, present: Sequence[Finding], step: int) -> None:
        now = {found.code: found for found in present}
        for code, old in self._findings.items():
            if code not in now and old.persists:
                self._findings[code] = replace(old, persists=False)
        for code, new in now.items():
            first = self._findings[code].first_step if code in self._findings else step
            text, remedy = (worded(said, actions=self.facts.actions) for said in (new.text, new.remedy))
            self._findings[code] = RunFinding(code, new.severity, new.key, text, remedy, first, step)

    def findings(self) -> list[RunFinding]:
        """Return all findings so far: persisting ones first, then by severity, then by first step."""
        return gravest_first(self._findings.values())


class HealthWatch(RunListener):
    """Listener that examines each record of a run, and announces changes of the health report."""

    def __init__(self, health: Health, tell: Callable[[FindingChanged], None]) -> None:
        self.health, self._tell = health, tell
        self._told: dict[str, RunFinding] = {}

    def step(self, event: StepEnded) -> None:
        """Examine the record of a step."""
        self._observe(event.record)

    def evaluation(self, event: EvaluationEnded) -> None:
        """Examine the record of an evaluation."""
        self._observe(event.record)

    def _observe(self, record: JsonMapping) -> None:
        for found in self.health.observe(record):
            before = self._told.get(found.code)
            held = before is not None and before.persists
            if held and not found.persists:
                self._tell(FindingChanged(found, "over"))
            elif found.persists and (before is None or not held):
                self._tell(FindingChanged(found, "new"))
            elif before is not None and replace(before, last_step=found.last_step) != found:
                self._tell(FindingChanged(found, "changed"))
            self._told[found.code] = found


def examine(history: Sequence[Mapping[str, object]], facts: HealthFacts) -> list[RunFinding]:
    """Return every finding of the records of a run, each once, with its first and last step and whether it persists."""
    return Health(facts, history).findings()
