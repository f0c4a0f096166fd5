"""Policies that act by values of actions, with a follower of these values for targets: what they share."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from grouprl.core.errors import InputError
from grouprl.core.outputs import ENTROPY, LOG_PROB
from grouprl.policy.kinds import Build
from grouprl.policy.vectors.array_inputs import ArrayInputs, Seen
from grouprl.policy.vectors.array_policy import ArrayPolicy, spread

ACTION_VALUE = "action_value"
"""[B,T]: value of the action taken, with a gradient."""
BEST_AFTER = "best_after"
"""[B,T]: the follower's value of the best action after each one; 0 where what follows is not known."""
LEAST = 1e-6
"""Least share of random actions and of best ones: log-probs are finite, and the best action is always the likeliest."""
OUTSIDE = -1e9
"""Value of an illegal action among those of which the best is chosen."""


class FollowingModule(nn.Module):
    """A copy of a module that is not trained, whose weights are buffers: checkpoints hold them."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._shape = [copy.deepcopy(module)]  # in a list, so that torch takes its parameters for nobody's
        for name, parameter in module.named_parameters():
            self.register_buffer(name.replace(".", "-"), parameter.detach().clone())

    def forward(self, *given: Tensor) -> Tensor:
        """Return what the module gave when it was last followed."""
        weights = {name.replace("-", "."): buffer for name, buffer in self.named_buffers()}
        found: Tensor = torch.func.functional_call(self._shape[0], weights, given)
        return found

    @torch.no_grad()
    def follow(self, module: nn.Module, share: float = 1.0) -> None:
        """Go this share of the way to the module's weights as they are now."""
        for name, parameter in module.named_parameters():
            self.get_buffer(name.replace(".", "-")).lerp_(parameter, share)


class ValuePolicy(ArrayPolicy):
    """Base of policies that take the action of the highest value, or a random one with the probability `explore`.

    A subclass defines `distribution` (by `log_chances`), `taken_value` and `best_value`. The outputs are `action_value`
    and `best_after`; log-probs and entropies have no gradient.

    Args:
        build: the run's arguments.
        parts: the modules that values are made of, by name; each gets a follower.
        explore: share of random actions at first; the update `followed_values` changes it.

    Raises:
        InputError: `explore` is not a probability.
    """

    def __init__(self, build: Build, parts: Mapping[str, nn.Module], explore: float) -> None:
        if not 0 <= explore <= 1:
            raise InputError(
                f"model.settings.explore = {explore}", "it must be a probability", "Set it between 0 and 1"
            )
        followers = {f"old_{name}": FollowingModule(each) for name, each in parts.items()}
        module = nn.ModuleDict({**parts, **followers})
        module.register_buffer("explore", torch.tensor(explore))
        self._names = tuple(parts)
        super().__init__(build, module)

    @abstractmethod
    def taken_value(self, seen: Seen, action_n: Tensor) -> Tensor:
        """Return the value [N] of the action taken at each position."""

    @abstractmethod
    def best_value(self, seen: Seen) -> Tensor:
        """Return the follower's value [N] of the best action at each position."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs: log-probs and entropies, and the values of a value learner."""
        return (LOG_PROB, ENTROPY, ACTION_VALUE, BEST_AFTER)

    def explore(self, share: float) -> None:
        """Set the share of random actions."""
        self.module.get_buffer("explore").fill_(share)

    def follow(self) -> None:
        """Let the follower take the values as they are now."""
        for name in self._names:
            cast("FollowingModule", self.part(f"old_{name}")).follow(self.part(name))

    def part(self, name: str) -> nn.Module:
        """Return the part of the module called `name`; `old_` before a name means its follower."""
        return cast("nn.ModuleDict", self.module)[name]

    def log_chances(self, q_a: Tensor, legal_a: Tensor | None, temperature: float) -> Tensor:
        """Return log-probs [..., A] of actions with the values [..., A]: the best one, or any legal one by chance."""
        share = (self.module.get_buffer("explore") * temperature).clamp(LEAST, 1 - LEAST)
        legal_a = torch.ones_like(q_a, dtype=torch.bool) if legal_a is None else legal_a
        best_a = nn.functional.one_hot(q_a.argmax(-1), q_a.shape[-1]).to(self.dtype)
        chance_a = share * legal_a / legal_a.sum(-1, keepdim=True) + (1 - share) * best_a
        return chance_a.log().clamp(min=OUTSIDE)

    def score(self, inputs: ArrayInputs, names: Sequence[str]) -> dict[str, Tensor]:
        """Score the actions of rows, and return the values that are asked for."""
        found = super().score(inputs, [name for name in names if name in (LOG_PROB, ENTROPY)])
        if ACTION_VALUE in names:
            seen = inputs.seen(self.device, self.dtype)
            action_n = inputs.by_position(inputs.action_bt).to(self.device)
            found[ACTION_VALUE] = spread(self.taken_value(seen, action_n), inputs)
        if BEST_AFTER in names:
            found[BEST_AFTER] = self._best_after(inputs)
        return found

    @torch.no_grad()
    def _best_after(self, inputs: ArrayInputs) -> Tensor:
        """Return the follower's value [B,T] of the best action after each action of the rows."""
        longer = inputs.extended()
        known = inputs if longer is None else longer
        best_bt = spread(self.best_value(known.seen(self.device, self.dtype)), known)
        after_bt = best_bt[:, 1:] if longer is not None else nn.functional.pad(best_bt[:, 1:], (0, 1))
        return torch.where(inputs.present_bt().to(after_bt.device), after_bt, 0)


def open_actions(legal_a: Tensor) -> Tensor:
    """Return a mask [..., A] of the legal actions; all of them where none is, as at the end of an episode."""
    return legal_a | ~legal_a.any(-1, keepdim=True)
