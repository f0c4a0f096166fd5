"""References: the policies besides the one in training that log-probs are compared with, named by the parts that read
them.

The frozen reference is the policy as it was when reinforcement learning began; its log-probs are `Batch.ref_bt`. Any
other has a name of its own and a rule, and its log-probs are `Batch.refs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

from grouprl.core.errors import InputError

FROZEN = "frozen"
"""Name of the frozen reference in a mixture."""


@dataclass(frozen=True)
class Iterates:
    """A copy of the policy that follows it: every `every` steps its weights move by `share` towards the policy's.

    It moves before the step's update, after the step's rows are scored. A share of 1 makes it an earlier iterate; a
    smaller one makes it an average of iterates with more weight on later ones.

    Raises: InputError: a number out of range.
    """

    every: int = 1
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.every < 1 or not 0 < self.share <= 1:
            raise InputError(
                f"a reference that follows the policy with every={self.every}, share={self.share:g}",
                "it must move every 1 or more steps, by a share of the way: 0 < share <= 1",
                "Use ref_bt for a reference that never moves",
            )


@dataclass(frozen=True)
class Mixture:
    """The mixture of other references: the probability of an action is the weighted mean of those under them.

    Raises:
        InputError: weights that are not positive, or do not sum to 1.
    """

    weights: Mapping[str, float]
    """Weights by name of the reference; `FROZEN` is the frozen one."""

    def __post_init__(self) -> None:
        values = self.weights.values()
        if not values or min(values) <= 0 or abs(sum(values) - 1) > 1e-6:
            raise InputError(
                f"a mixture of references with the weights {dict(self.weights)}",
                "weights must be positive and sum to 1",
                "Leave out references without weight, and scale the others",
            )


ReferenceRule: TypeAlias = Iterates | Mixture


class ReadsReferences(Protocol):
    """A part that may read references."""

    kind: ClassVar[str]
    name: ClassVar[str]

    def needs(self) -> tuple[str, ...]:
        """Return the names of the Batch fields that it reads."""

    def references(self) -> Mapping[str, ReferenceRule]:
        """Return the references that it reads, by name."""


def references_of(parts: Iterable[ReadsReferences]) -> dict[str, ReferenceRule]:
    """Return the rule of each reference that `parts` name.

    Raises:
        InputError: two rules of one name, the name of the frozen one, or a mixture with a reference that no part names.
    """
    found: dict[str, ReferenceRule] = {}
    for part in parts:
        for name, rule in part.references().items():
            if name == FROZEN or found.setdefault(name, rule) != rule:
                raise InputError(
                    f"{part.name} names a reference '{name}' as {rule}",
                    f"'{FROZEN}' is the name of ref_bt's reference"
                    if name == FROZEN
                    else f"another part defines it as {found[name]}",
                    "Give it another name",
                )
    for name, rule in found.items():
        for component in rule.weights if isinstance(rule, Mixture) else ():
            if component != FROZEN and not isinstance(found.get(component), Iterates):
                raise InputError(
                    f"the reference '{name}' is a mixture with '{component}'",
                    "a mixture holds the frozen reference and those that follow the policy",
                    f"Return the rule of '{component}' from references(), too",
                )
    return found


def reads_frozen(parts: Iterable[ReadsReferences]) -> bool:
    """Return whether any of `parts` reads the frozen reference, by itself or in a mixture."""
    rules = [rule for part in parts for rule in part.references().values()]
    mixed = any(FROZEN in rule.weights for rule in rules if isinstance(rule, Mixture))
    return mixed or any("ref_bt" in part.needs() for part in parts)


def scored_followers(parts: Iterable[ReadsReferences]) -> dict[str, Iterates]:
    """Return the references that follow the policy and that a score compares it with, by name."""
    rules = [(name, rule) for part in parts if part.kind == "score" for name, rule in part.references().items()]
    return {name: rule for name, rule in rules if isinstance(rule, Iterates)}


def scores_against_frozen(parts: Iterable[ReadsReferences]) -> bool:
    """Return whether one of `parts` is a score against the frozen reference, as losses of preferences have."""
    return any(part.kind == "score" and "ref_bt" in part.needs() for part in parts)
