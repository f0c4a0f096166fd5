"""What an examination of an environment finds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from grouprl.core.finding import Finding, declare
from grouprl.core.json_types import JsonObject
from grouprl.envs.environment import Observation, Step, worth

ENVIRONMENT_RULE = declare(
    "check",
    "environment_rule",
    "alarm",
    "An environment breaks a rule of its protocol.",
    "Mend what the key names: docs/environments.md has the rules.",
)
ENVIRONMENT_ADVICE = declare(
    "check",
    "environment_advice",
    "warning",
    "An environment works in a way that training will suffer from.",
    "Look at what the key names: docs/environments.md has the rules.",
)
LONGEST = 400
"""Characters of what a finding says was seen."""


@dataclass
class EnvironmentFinding:
    """One broken rule: what was seen first, the rule, the remedy, and in how many episodes it was seen."""

    name: str
    serious: bool
    what: str
    rule: str
    remedy: str
    where: str
    episodes: int = 1

    def finding(self) -> Finding:
        """Return it as a finding about the rule's name."""
        code = ENVIRONMENT_RULE if self.serious else ENVIRONMENT_ADVICE
        return code(f"{self.what}: {self.rule}", self.remedy, key=self.name)


class Findings:
    """Findings by name; a rule that is broken again in another episode is counted, not repeated."""

    def __init__(self) -> None:
        self.by_name: dict[str, EnvironmentFinding] = {}
        self.episode = ""
        self._seen: set[tuple[str, str]] = set()

    def add(self, name: str, what: str, rule: str, remedy: str = "", *, turn: int | None = None) -> None:
        """Note a broken rule, seen in the present episode."""
        self._note(True, name, what, rule, remedy, turn)

    def advise(self, name: str, what: str, rule: str, remedy: str = "", *, turn: int | None = None) -> None:
        """Note something that works but will be regretted."""
        self._note(False, name, what, rule, remedy, turn)

    def _note(self, serious: bool, name: str, what: str, rule: str, remedy: str, turn: int | None) -> None:
        if name not in self.by_name:
            what = what if len(what) <= LONGEST else f"{what[: 2 * LONGEST // 3]} … {what[-LONGEST // 4 :]}"
            where = self.episode + ("" if turn is None else f", turn {turn}")
            self.by_name[name] = EnvironmentFinding(name, serious, what, rule, remedy, where)
        elif (name, self.episode) not in self._seen:
            self.by_name[name].episodes += 1
        self._seen.add((name, self.episode))


@dataclass
class CheckedEpisode:
    """An episode that was played: who chose, what was seen, done and given."""

    example: str
    seed: int
    chooser: str
    first: Observation
    actions: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    score: dict[str, float] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether the environment ended it."""
        return bool(self.steps) and (self.steps[-1].terminated or self.steps[-1].truncated)

    @property
    def total(self) -> float:
        """All rewards."""
        return sum(step.reward for step in self.steps) + worth(self.score)

    @property
    def observations(self) -> list[Observation]:
        """What was seen before each action, and after the last."""
        return [self.first, *(step.observation for step in self.steps)]


@dataclass(frozen=True)
class EnvironmentReport:
    """The result of an examination."""

    findings: tuple[EnvironmentFinding, ...]
    facts: JsonObject
    shown: CheckedEpisode | None
    """One episode, demonstrated where the environment can."""

    @property
    def problems(self) -> tuple[EnvironmentFinding, ...]:
        """What must be changed before training."""
        return tuple(finding for finding in self.findings if finding.serious)

    @property
    def advice(self) -> tuple[EnvironmentFinding, ...]:
        """What should be looked at."""
        return tuple(finding for finding in self.findings if not finding.serious)

    def data(self) -> JsonObject:
        """Return everything as plain data."""
        return {
            "ok": not self.problems,
            "problems": [asdict(finding) for finding in self.problems],
            "advice": [asdict(finding) for finding in self.advice],
            "findings": [each.finding().as_row() for each in self.findings],
            "facts": self.facts,
        }
