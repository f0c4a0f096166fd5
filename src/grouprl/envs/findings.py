"""Findings of an examination of an environment."""

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
    "Fix the environment where the key points: docs/environments.md has the rules.",
)
ENVIRONMENT_ADVICE = declare(
    "check",
    "environment_advice",
    "warning",
    "An environment works in a way that will harm training.",
    "Check the environment where the key points: docs/environments.md has the rules.",
)
LONGEST = 400
"""Characters of the observed value that a finding shows."""


@dataclass
class EnvironmentFinding:
    """One broken rule: the first occurrence, the rule, the remedy, and the number of episodes in which it was seen."""

    name: str
    serious: bool
    what: str
    rule: str
    remedy: str
    where: str
    episodes: int = 1

    def finding(self) -> Finding:
        """Return the broken rule as a `Finding`, with the rule's name as its key."""
        code = ENVIRONMENT_RULE if self.serious else ENVIRONMENT_ADVICE
        return code(f"{self.what}: {self.rule}", self.remedy, key=self.name)


class Findings:
    """Findings by name; a rule broken again in another episode is counted and not repeated."""

    def __init__(self) -> None:
        self.by_name: dict[str, EnvironmentFinding] = {}
        self.episode = ""
        self._seen: set[tuple[str, str]] = set()

    def add(self, name: str, what: str, rule: str, remedy: str = "", *, turn: int | None = None) -> None:
        """Record a broken rule, seen in the present episode."""
        self._note(True, name, what, rule, remedy, turn)

    def advise(self, name: str, what: str, rule: str, remedy: str = "", *, turn: int | None = None) -> None:
        """Record something that works but will cause trouble later."""
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
    """A played episode: the source of its actions, its observations, actions and results."""

    example: str
    seed: int
    chooser: str
    first: Observation
    actions: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    score: dict[str, float] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """True if the environment ended it."""
        return bool(self.steps) and (self.steps[-1].terminated or self.steps[-1].truncated)

    @property
    def total(self) -> float:
        """The sum of all rewards."""
        return sum(step.reward for step in self.steps) + worth(self.score)

    @property
    def observations(self) -> list[Observation]:
        """The observations before each action and after the last."""
        return [self.first, *(step.observation for step in self.steps)]


@dataclass(frozen=True)
class EnvironmentReport:
    """The result of an examination."""

    findings: tuple[EnvironmentFinding, ...]
    facts: JsonObject
    shown: CheckedEpisode | None
    """One episode, demonstrated if the environment can."""

    @property
    def problems(self) -> tuple[EnvironmentFinding, ...]:
        """Findings that must be fixed before training."""
        return tuple(finding for finding in self.findings if finding.serious)

    @property
    def advice(self) -> tuple[EnvironmentFinding, ...]:
        """Findings that should be checked."""
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
