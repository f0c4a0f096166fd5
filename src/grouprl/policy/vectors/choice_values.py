"""Values of choices that are described to the policy, in the state in which one is made: Q(state, choice)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from grouprl.core.errors import InputError
from grouprl.policy.kinds import Build
from grouprl.policy.vectors.acting_values import OUTSIDE, ValuePolicy, open_actions
from grouprl.policy.vectors.array_inputs import Seen
from grouprl.policy.vectors.mlp import ACTIVATIONS, perceptron
from grouprl.protocols import Box, DictSpace, Discrete


class ChoiceValues(ValuePolicy):
    """Perceptron q(state, choice) of every open choice, with a follower of it; the best choice is taken (RLAP, DQN).

    All choices are valued by the same perceptron, so their order among themselves has no part in it. With the
    probability `explore` (times the temperature) any open choice is taken. The outputs are `action_value` and
    `best_after`; log-probs and entropies have no gradient.

    Args:
        build: the run's arguments; observations have an entry `state`, [S], and an entry `choices`, [A,G], and actions
            are numbers of choices.
        hidden: width of each hidden layer.
        activation: tanh, relu or silu.
        explore: share of random actions at first; the update `followed_values` changes it.

    Raises:
        InputError: other spaces, or settings that do not exist.
    """

    def __init__(
        self, build: Build, *, hidden: Sequence[int] = (64,), activation: str = "relu", explore: float = 1.0
    ) -> None:
        spaces = build.need_spaces("choice_values", observations=(DictSpace,), actions=(Discrete,))
        shown, count = cast("DictSpace", spaces.observation).spaces, cast("Discrete", spaces.action).count
        state, choices = shown.get("state"), shown.get("choices")
        if not isinstance(state, Box) or not isinstance(choices, Box) or len(state.shape) != 1:
            raise _other_spaces(spaces.observation)
        if len(choices.shape) != 2 or choices.shape[0] != count:
            raise _other_spaces(spaces.observation)
        if activation not in ACTIVATIONS:
            raise InputError(f"model.settings.activation = {activation}", f"it must be one of {', '.join(ACTIVATIONS)}")
        values = perceptron(state.shape[0] + choices.shape[1], 1, hidden, activation, seed=build.seed)
        super().__init__(build, {"single": values}, explore)

    def distribution(self, seen: Seen, temperature: float) -> Distribution:
        """Return the choice: the best one, or any with the probability that is explored."""
        with torch.no_grad():
            legal_na = None if seen.legal_na is None else open_actions(seen.legal_na)
            logp_na = self.log_chances(self.choice_values(seen), legal_na, temperature)
            return Categorical(logits=logp_na, validate_args=False)

    def choice_values(self, seen: Seen, values: str = "single") -> Tensor:
        """Return the value [N,A] of each choice, `OUTSIDE` for those that are not open."""
        choice_nag, state_ns = seen.observation["choices"], seen.observation["state"]
        state_nas = state_ns[:, None].expand(-1, choice_nag.shape[1], -1)
        q_na: Tensor = self.part(values)(torch.cat([state_nas, choice_nag], -1))[..., 0]
        return q_na if seen.legal_na is None else torch.where(open_actions(seen.legal_na), q_na, OUTSIDE)

    def taken_value(self, seen: Seen, action_n: Tensor) -> Tensor:
        """Return the value [N] of the choices made, [N]."""
        return self.choice_values(seen).gather(-1, action_n[:, None])[:, 0]

    def best_value(self, seen: Seen) -> Tensor:
        """Return the follower's value [N] of the best open choice."""
        return self.choice_values(seen, "old_single").amax(-1)


def _other_spaces(observation: object) -> InputError:
    return InputError(
        f"observations {observation}",
        "choice_values reads arrays `state`, [S], and `choices`, [A,G], with a row for each action",
        "Take a world like grouprl.envs.builtin.sub_tasks.Homes",
    )
