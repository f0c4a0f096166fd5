"""The language models in a policy of any kind, and the policy that acts for some agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy
    from grouprl.protocols import Trainable

Model = TypeVar("Model", bound="Trainable")


def language_models_of(policy: object) -> Mapping[str, CausalPolicy]:
    """Return the whole language models of a policy by the folder in which `Policy.save` writes each.

    A single model is saved as "", a team's models under the names of their agents; other policies have none.
    """
    found = getattr(policy, "language_models", None)
    return {} if found is None else found()


def widths_of(policy: object) -> tuple[int, int] | None:
    """Return the hidden width and the number of layers of a policy's (first) language model; None if it has none."""
    return getattr(policy, "widths", None)


def acting_for(policy: Model, agents: Sequence[str]) -> Model:
    """Return the policy that acts for `agents`: of a team those agents' policies, otherwise the policy itself.

    Raises:
        InputError: an agent that is not in the team.
    """
    choose = getattr(policy, "of", None)
    return policy if choose is None else choose(agents)
