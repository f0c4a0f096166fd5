"""Which policies log-probs are compared with, beside the one in training: named by the parts that read them.

The frozen reference is the policy as reinforcement began; its log-probs are `Batch.ref_bt`. Any other has a name of its
own and a rule, and its log-probs are `Batch.refs`.
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

    It moves before the step's update, when the step's rows are scored already. A share of 1 makes it an earlier
    iterate; less makes it an average of iterates, the later the heavier.

    Raises:
        InputError: a number out of range.
    """

    every: int = 1
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.every < 1 or not 0 < self.share <= 1:
            raise InputError(
                f"a reference that follows the policy with every={self.every}, share={self.share:g}",
                "it moves every 1 or more steps, by a share of the way: 0 < share <= 1",
                "For one that never moves take ref_bt",
            )


@dataclass(frozen=True)
class Mixture:
    """The mixture of other references: an action has the weighted mean of its probabilities under them.

    Raises:
        InputError: weights that are not positive, or do not sum to 1.
    """

    weights: Mapping[str, float]
    """By name of the reference; `FROZEN` is the frozen one."""

    def __post_init__(self) -> None:
        values = self.weights.values()
        if not values or min(values) <= 0 or abs(sum(values) - 1) > 1e-6:
            raise InputError(
                f"a mixture of references with the weights {dict(self.weights)}",
                "they are positive and sum to 1",
                "Leave out what has no weight",
            )


ReferenceRule: TypeAlias = Iterates | Mixture


class ReadsReferences(Protocol):
    """What is asked of a part here."""

    name: ClassVar[str]

    def needs(self) -> tuple[str, ...]:
        """Return the names of the Batch fields that it reads."""

    def references(self) -> Mapping[str, ReferenceRule]:
        """Return the references that it reads, by name."""


def references_of(parts: Iterable[ReadsReferences]) -> dict[str, ReferenceRule]:
    """Return the rule of each reference that `parts` name.

    Raises:
        InputError: two rules of one name, the name of the frozen one, or a mixture of what nobody names.
    """
    found: dict[str, ReferenceRule] = {}
    for part in parts:
        for name, rule in part.references().items():
            if name == FROZEN or found.setdefault(name, rule) != rule:
                raise InputError(
                    f"{part.name} names a reference '{name}' as {rule}",
                    f"'{FROZEN}' is the one of ref_bt" if name == FROZEN else f"another part has it as {found[name]}",
                    "Give it another name",
                )
    for name, rule in found.items():
        for component in rule.weights if isinstance(rule, Mixture) else ():
            if component != FROZEN and not isinstance(found.get(component), Iterates):
                raise InputError(
                    f"the reference '{name}' is a mixture with '{component}'",
                    "it mixes the frozen one and those that follow the policy",
                    f"Return the rule of '{component}' from references(), too",
                )
    return found


def reads_frozen(parts: Iterable[ReadsReferences]) -> bool:
    """Tell whether any of `parts` reads the frozen reference, by itself or in a mixture."""
    rules = [rule for part in parts for rule in part.references().values()]
    mixed = any(FROZEN in rule.weights for rule in rules if isinstance(rule, Mixture))
    return mixed or any("ref_bt" in part.needs() for part in parts)
