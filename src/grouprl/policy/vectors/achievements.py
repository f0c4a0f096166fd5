"""A perceptron that represents achievements: its encoder's change over one action, which it also foresees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from grouprl.core.errors import InputError
from grouprl.core.outputs import FORESIGHT
from grouprl.policy.kinds import Build
from grouprl.policy.vectors.array_distributions import divergence, masked
from grouprl.policy.vectors.array_inputs import ArrayInputs, Arrays, Seen
from grouprl.policy.vectors.array_policy import spread
from grouprl.policy.vectors.features import feature_count, features
from grouprl.policy.vectors.mlp import ACTIVATIONS, VALUE_GAIN, Mlp, perceptron
from grouprl.protocols import ActionSpace, DictSpace, Space
from grouprl.records.unlocking import FROM, NOW, TO


class Achievements(Mlp):
    """An encoder that policy and critic share; an achievement is the change of its output over one action (PPO-AD).

    A step from o to o' is represented by φ = (enc(o') - enc(o)) / |…|, where enc of zeros alone is 0. If the
    observation shows the last unlocking (`grouprl.records.unlocking`), policy and critic read its φ beside enc(o), as a
    constant. A perceptron h over enc(o), which the action scales and shifts (FiLM), and over that memory foresees the φ
    of the next achievement; only the update `achievement_phases` trains it. Source: Moon et al. 2023
    (arXiv:2307.03486), and the authors' code.

    *Differs from the authors' code*: the memory is encoded by the weights as they are, not as they were when it was
    stored; perceptrons without layer normalisation in place of a network for pictures.

    Args:
        build: the run's arguments.
        hidden: width of each layer of the encoder.
        activation: tanh, relu or silu.
        log_std: initial logarithm of the deviation of vector actions.

    Raises:
        InputError: an encoder without a layer, or an environment with a context.
    """

    kind = "achievements"

    def __init__(
        self, build: Build, *, hidden: Sequence[int] = (64, 64), activation: str = "tanh", log_std: float = 0.0
    ) -> None:
        spaces = build.need_spaces(self.kind)
        if not hidden or spaces.context.spaces:
            raise InputError(
                f"model.settings.hidden = {list(hidden)}, context {list(spaces.context.spaces)}",
                f"the policy {self.kind} encodes observations alone, in a layer or more",
                "Give hidden a width, and take a task without a context",
            )
        self._own, self._remembers = own_space(spaces.observation)
        self._action: ActionSpace = spaces.action
        super().__init__(build, hidden=hidden, activation=activation, log_std=log_std)

    def body(self, outputs: int) -> nn.ModuleDict:
        """Return the encoder, the layer that acts, and the perceptrons that foresee."""
        (*before, width), activation = self._layers
        seed, read, shape = self._seed, self._latents, ((width,), activation)
        encoder = perceptron(feature_count(self._own), width, before, activation, seed=seed, gain=2**0.5)
        acted = feature_count(self._action)
        film = perceptron(acted, 2 * width, *shape, seed=seed + 2, gain=VALUE_GAIN)
        ahead = perceptron(read, width, *shape, seed=seed + 3, gain=VALUE_GAIN)
        return nn.ModuleDict(
            {
                "encoder": encoder.append(ACTIVATIONS[activation]()),
                "mean": perceptron(read, outputs, (), activation, seed=seed + 4),
                FORESIGHT: nn.ModuleDict({"film": film, "next": ahead}),
            }
        )

    def new_critic(self) -> nn.Module:
        """Return one layer that reads values from the encoder's output."""
        return perceptron(self._latents, 1, (), self._layers[1], seed=self._seed + 1, gain=VALUE_GAIN)

    def represent(self, before: Arrays, after: Arrays) -> Tensor:
        """Return φ [N,H] of steps from one observation [N,…] to another, of length 1; 0 where nothing changes."""
        return normalize(self._encoded(after) - self._encoded(before), dim=-1)

    def foresee(self, inputs: ArrayInputs) -> Tensor:
        """Return h [N,H] at every position, of length 1: the φ of the next achievement, given the action taken."""
        seen = inputs.seen(self.device, self.dtype)
        action_n = inputs.by_position(inputs.action_bt).to(self.device)
        heads = cast("nn.ModuleDict", self._module[FORESIGHT])
        scale_nh, shift_nh = heads["film"](features(self.spaces.action, action_n, self.dtype)).chunk(2, -1)
        latent_nh, *memory = self._read(seen).split(self._layers[0][-1], -1)
        return normalize(heads["next"](torch.cat([(1 + scale_nh) * latent_nh + shift_nh, *memory], -1)), dim=-1)

    def kl_to(self, earlier: Self, inputs: ArrayInputs) -> Tensor:
        """Return KL(policy || earlier) at every position, [B,T], with the graph of the policy's side."""
        seen = inputs.seen(self.device, self.dtype)
        with torch.no_grad():
            before = masked(earlier.distribution(seen, self.temperature), seen.legal_na)
        return spread(divergence(masked(self.distribution(seen, self.temperature), seen.legal_na), before), inputs)

    @property
    def _latents(self) -> int:
        """Numbers that policy and critic read."""
        return self._layers[0][-1] * (1 + self._remembers)

    def _read(self, seen: Seen) -> Tensor:
        if not self._remembers:
            return self._encoded(seen.observation)
        with torch.no_grad():
            memory_nh = self.represent(seen.observation[FROM], seen.observation[TO])
        return torch.cat([self._encoded(seen.observation[NOW]), memory_nh], -1)

    def _encoded(self, value: Arrays) -> Tensor:
        """Return the encoder's output [N,H]; 0 for an observation of zeros alone, which stands for none."""
        read_nf = features(self._own, value, self.dtype).to(self.device)
        found_nh: Tensor = self._module["encoder"](read_nf)
        return torch.where((read_nf == 0).all(-1, keepdim=True), 0, found_nh)


def own_space(observation: Space) -> tuple[Space, bool]:
    """Return the space of what is seen now, and whether the last unlocking is shown beside it."""
    if isinstance(observation, DictSpace) and {NOW, FROM, TO} <= observation.spaces.keys():
        return observation.spaces[NOW], True
    return observation, False
