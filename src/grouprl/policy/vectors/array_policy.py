"""Policies that read arrays and act with numbers or arrays."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from grouprl.core.errors import InputError
from grouprl.core.outputs import ENTROPY, LOG_PROB, VALUE
from grouprl.policy.kinds import Build
from grouprl.policy.vectors.array_distributions import divergence, drawn, masked
from grouprl.policy.vectors.array_inputs import ArrayInputs, Seen
from grouprl.policy.vectors.module_policy import ModulePolicy
from grouprl.protocols import Spaces


class SampledTurn(NamedTuple):
    """R actions with their log-probs and the entropies of the distributions they come from."""

    action_r: Tensor
    """Actions: numbers [R] or vectors [R,A], on the policy's device."""
    logp_r: Tensor
    entropy_r: Tensor
    origin_r: Tensor | None = None
    """[R,A] what the actions were made of; None: they are what was sampled."""

    def actions(self) -> list[int | np.ndarray]:
        """Return the actions one by one: numbers, or vectors [A], with floating-point numbers as float32."""
        if self.action_r.dim() == 1 and not self.action_r.is_floating_point():
            return self.action_r.tolist()
        return [_plain(action) for action in self.action_r.cpu()]

    def origins(self) -> list[np.ndarray | None]:
        """Return what each action was made of, as float32; None for one that is what was sampled."""
        if self.origin_r is None:
            return [None] * len(self.action_r)
        return list(self.origin_r.cpu().to(torch.float32).numpy())


class ArrayPolicy(ModulePolicy):
    """Base of policies over arrays. A subclass builds its module and defines `distribution`.

    A policy with its own dynamics (a denoising chain, a constructive solver) also defines `advance` and `ended`, and
    takes all steps of a chain in one request. A policy whose actions depend on earlier positions of the row also
    defines `remember`.

    Args:
        build: the run's arguments; `spaces` must be set.
        module: the module that `distribution` uses.
        critic: a module from observations [N,D] to values [N,1], made if the method has a critic; for other inputs,
            override `value`.

    Raises:
        InputError: the environment asks for chains, and the policy has no dynamics.
    """

    def __init__(self, build: Build, module: nn.Module, *, critic: nn.Module | None = None) -> None:
        name = type(self).__name__
        self.spaces: Spaces = build.need_spaces(name)
        if self.spaces.chain > 1 and not self.has_dynamics:
            raise InputError(
                f"the environment takes chains of {self.spaces.chain} actions",
                f"{name} has no dynamics, so each action needs an observation",
                "Define advance() and ended(), or let the environment take one action at a time (chain=1)",
            )
        self.temperature = build.temperature
        critic = None if critic is None else critic.to(device=build.device, dtype=build.dtype)
        super().__init__(module.to(device=build.device, dtype=build.dtype), critic=critic, positions=build.positions)

    @abstractmethod
    def distribution(self, seen: Seen, temperature: float) -> Distribution:
        """Return the distribution of the action at each position: batch [N], `log_prob` and `entropy` give [N].

        At temperature 1 it is the policy itself; each policy defines the meaning of other temperatures. Illegal actions
        are masked afterwards, so they may have any probability here.
        """

    def value(self, seen: Seen) -> Tensor:
        """Return the critic's value of each position, [N]."""
        assert self.critic is not None
        value_n: Tensor = self.critic(seen.observation)[:, 0]
        return value_n

    def observe(self, inputs: ArrayInputs) -> None:
        """Learn statistics of observations from the rows of a step of training; by default none are kept."""

    def renew(self) -> None:
        """Put the statistics of observations in use, before the next step's rows are sampled."""

    def advance(self, seen: Seen, action_n: Tensor) -> Seen:
        """Return the positions after one action each, for policies with their own dynamics."""
        raise NotImplementedError

    def ended(self, seen: Seen) -> Tensor:
        """Return a mask [N] of positions whose chain is complete, for policies with their own dynamics."""
        raise NotImplementedError

    def remember(self, seen: Seen) -> Tensor:
        """Return the state [R,M] after the last position of each row, for policies that remember earlier ones.

        Whoever samples action by action passes it on as `Seen.memory`; without it a row begins at its first position.
        """
        raise NotImplementedError

    @property
    def has_memory(self) -> bool:
        """True if an action depends on the positions before it in its row, not on its own alone."""
        return type(self).remember is not ArrayPolicy.remember

    @property
    def has_dynamics(self) -> bool:
        """True if the policy can take several actions without calling the environment."""
        return type(self).advance is not ArrayPolicy.advance and type(self).ended is not ArrayPolicy.ended

    def score(self, inputs: ArrayInputs, names: Sequence[str]) -> dict[str, Tensor]:
        """Score the actions of `inputs` under the distributions of their observations."""
        seen = inputs.seen(self.device, self.dtype)
        found: dict[str, Tensor] = {}
        if LOG_PROB in names or ENTROPY in names:
            action_n = inputs.by_position(inputs.action_bt).to(self.device)
            distribution = masked(self.distribution(seen, self.temperature), seen.legal_na)
            taken_n = action_n.to(self.dtype) if action_n.is_floating_point() else action_n
            found = {LOG_PROB: self.log_prob(distribution, taken_n, seen.origin_na)}
            found |= {ENTROPY: distribution.entropy()} if ENTROPY in names else {}
        if VALUE in names and self.critic is not None:
            found[VALUE] = self.value(seen)
        return {name: spread(x, inputs) for name, x in found.items()}

    def kl_from(self, earlier: Self, inputs: ArrayInputs, *, grad: bool = False) -> Tensor:
        """Return KL(earlier || policy) at every position, [B,T]; see `grouprl.protocols.ComparablePolicy`."""
        seen = inputs.seen(self.device, self.dtype)
        with torch.no_grad():
            before = masked(earlier.distribution(seen, self.temperature), seen.legal_na)
        with torch.set_grad_enabled(grad):
            after = masked(self.distribution(seen, self.temperature), seen.legal_na)
            return spread(divergence(before, after), inputs)

    @torch.no_grad()
    def act(
        self, seen: Seen, seeds: Sequence[int], temperatures: Sequence[float], *, greedy: bool = False
    ) -> SampledTurn:
        """Sample one action for each of R positions, each with a seed of its own; `greedy`: the likeliest one."""
        different = list(dict.fromkeys(temperatures))
        turns = []
        for temperature in different:
            found = masked(self.distribution(seen, temperature), seen.legal_na)
            action_r, origin_r = self.sample_with_origin(found, seeds, greedy=greedy)
            scored = self.log_prob(found, action_r, origin_r), found.entropy()
            logp_r, entropy_r = (x.to(self.score_dtype).cpu() for x in scored)
            turns.append(SampledTurn(action_r, logp_r, entropy_r, origin_r))
        if len(turns) == 1:
            return turns[0]
        which_r = torch.tensor([different.index(temperature) for temperature in temperatures])
        rows_r = torch.arange(len(temperatures))

        def chosen(column: Sequence[Tensor]) -> Tensor:
            return torch.stack(list(column))[which_r.to(column[0].device), rows_r.to(column[0].device)]

        action, logp, entropy, origin = zip(*turns, strict=True)
        return SampledTurn(chosen(action), chosen(logp), chosen(entropy), None if origin[0] is None else chosen(origin))

    def sample_with_origin(
        self, distribution: Distribution, seeds: Sequence[int], *, greedy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return `sample`, and what actions were made of if that cannot be read back from them (None: it can).

        A policy that overrides this also overrides `log_prob`; rows keep both (`ArrayInputs.origin_bta`).
        """
        return self.sample(distribution, seeds, greedy=greedy), None

    def log_prob(self, distribution: Distribution, action_n: Tensor, origin_n: Tensor | None) -> Tensor:
        """Return the log-prob [N] of actions; `origin_n` is what they were made of, NaN where it is not known."""
        found: Tensor = distribution.log_prob(action_n)
        return found

    def sample(self, distribution: Distribution, seeds: Sequence[int], *, greedy: bool) -> Tensor:
        """Return one action per row of `distribution`, a function of its row and its seed alone.

        Raises:
            InputError: a distribution that is neither categorical nor normal; a subclass with another distribution has
                to override this method.
        """
        return drawn(distribution, seeds, greedy=greedy)


def _plain(action: Tensor) -> int | np.ndarray:
    if action.dim() == 0:
        return int(action)
    found: np.ndarray = (action.to(torch.float32) if action.is_floating_point() else action).numpy()
    return found


def spread(values_n: Tensor, inputs: ArrayInputs) -> Tensor:
    """Arrange values [N] of the positions of rows as [B,T], zero beyond their lengths."""
    if inputs.full:
        return values_n.reshape(len(inputs), inputs.width)
    present_bt = inputs.present_bt().to(values_n.device)
    return values_n.new_zeros(present_bt.shape).masked_scatter(present_bt, values_n)
