"""A policy over arrays with a memory: what it does depends on all that it has seen in the episode."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from grouprl.core.errors import InputError
from grouprl.policy.kinds import Build
from grouprl.policy.vectors.array_inputs import Seen
from grouprl.policy.vectors.mlp import VALUE_GAIN, Mlp, perceptron

CELLS: dict[str, Callable[..., nn.RNNBase]] = {"gru": nn.GRU, "lstm": nn.LSTM}


class Memory(nn.Module):
    """A recurrent layer over rows of positions, which begins with zeros or with a state for each row.

    Args:
        inputs: numbers of a position.
        width: numbers of its output.
        cell: gru or lstm.
        seed: of its orthogonal weights; biases are 0.
    """

    def __init__(self, inputs: int, width: int, cell: str, *, seed: int) -> None:
        super().__init__()
        self.layer, luck = CELLS[cell](inputs, width, batch_first=True), torch.Generator().manual_seed(seed)
        for name, weight in self.layer.named_parameters():
            if "weight" in name:
                nn.init.orthogonal_(weight, generator=luck)
            else:
                nn.init.zeros_(weight)

    def forward(self, read_nf: Tensor, row_n: Tensor, state_rm: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the output [N,width] at each position and the state [R,M] after the last one of each row.

        Positions of a row follow each other, and every row has one or more. M is the width, or twice that for an lstm.
        """
        # Packed, so that a row ends at its own length and its state is not that of padding.
        rows = read_nf.split(torch.unique_consecutive(row_n, return_counts=True)[1].tolist())
        begin = None if state_rm is None else [part[None].contiguous() for part in state_rm.split(self._width, -1)]
        found, end = self.layer(
            pack_sequence(list(rows), enforce_sorted=False),
            begin if begin is None or len(begin) == 2 else begin[0],
        )
        parts = end if isinstance(end, tuple) else (end,)
        return torch.cat(unpack_sequence(found)), torch.cat([part[0] for part in parts], -1)

    @property
    def _width(self) -> int:
        return self.layer.hidden_size


class Remembering(Mlp):
    """Base of policies with a memory before the perceptron of `mlp`. A subclass defines `memory`.

    The memory is empty at the beginning of an episode and is carried to the end; an update passes whole episodes
    through it. The critic has a memory of its own. Actions and log-probs are those of `mlp`.

    Args:
        build: the run's arguments.
        width: numbers of the memory's output.
        hidden: width of each hidden layer of the perceptron after it.
        activation: tanh, relu or silu.
        log_std: initial logarithm of the deviation of vector actions.
        normalise: as for `mlp`.

    Raises:
        InputError: a width below 1, or `task.horizon`, which would cut episodes.
    """

    def __init__(
        self,
        build: Build,
        *,
        width: int,
        hidden: Sequence[int] = (),
        activation: str = "tanh",
        log_std: float = 0.0,
        normalise: bool = False,
    ) -> None:
        if width < 1:
            raise InputError(f"model.settings.width = {width}", "the memory gives one number or more")
        if getattr(build.task, "actions_per_step", None):
            raise InputError(
                f"task.horizon with model: {self.kind}",
                "its memory reaches back to the beginning of an episode, which a horizon cuts",
                "Leave out task.horizon: episodes are then played to the end",
            )
        self._width = width
        super().__init__(build, hidden=hidden, activation=activation, log_std=log_std, normalise=normalise)

    @abstractmethod
    def memory(self, seed: int) -> nn.Module:
        """Return a memory with the signature of `Memory.forward` whose weights follow from `seed`."""

    def body(self, outputs: int) -> nn.ModuleDict:
        """Return the memory and the perceptron after it."""
        mean = perceptron(self._width, outputs, *self._layers, seed=self._seed)
        return nn.ModuleDict({"memory": self.memory(self._seed + 2), "mean": mean})

    def new_critic(self) -> nn.Module:
        """Return a memory and a perceptron of the policy's own sizes with one output."""
        value = perceptron(self._width, 1, *self._layers, seed=self._seed + 1, gain=VALUE_GAIN)
        return nn.ModuleDict({"memory": self.memory(self._seed + 3), "value": value})

    def outputs_of(self, seen: Seen) -> Tensor:
        """Return the perceptron's outputs [N,·] at each position."""
        out_na: Tensor = self._module["mean"](self.remembered(seen))
        return out_na

    def remembered(self, seen: Seen) -> Tensor:
        """Return the memory's output [N,width] at each position."""
        found_nh: Tensor = self._module["memory"](self._read(seen), seen.row_n, seen.memory)[0]
        return found_nh

    def remember(self, seen: Seen) -> Tensor:
        """Return the state [R,M] after the last position of each row."""
        state_rm: Tensor = self._module["memory"](self._read(seen), seen.row_n, seen.memory)[1]
        return state_rm

    def value(self, seen: Seen) -> Tensor:
        """Return the critic's value of each position, [N], from the row's positions up to it."""
        critic = cast("nn.ModuleDict", self.critic)
        found_nh, _ = critic["memory"](self._read(seen), seen.row_n, None)
        value_n: Tensor = critic["value"](found_nh)[:, 0]
        return value_n


class Recurrent(Remembering):
    """A recurrent layer before the perceptron of `mlp`, for tasks that do not show all that matters.

    Its state is zero at the beginning of an episode, and the gradient of an update goes back to there.

    Args:
        build: the run's arguments.
        cell: gru or lstm.
        width: numbers of the recurrent layer's output.
        hidden: width of each hidden layer of the perceptron after it.
        activation: tanh, relu or silu.
        log_std: initial logarithm of the deviation of vector actions.
        normalise: as for `mlp`.

    Raises:
        InputError: an unknown cell or a width below 1, or `task.horizon`, which would cut episodes.
    """

    kind = "recurrent"

    def __init__(
        self,
        build: Build,
        *,
        cell: str = "gru",
        width: int = 64,
        hidden: Sequence[int] = (),
        activation: str = "tanh",
        log_std: float = 0.0,
        normalise: bool = False,
    ) -> None:
        if cell not in CELLS:
            raise InputError(f"model.settings.cell = {cell}", f"it must be one of {', '.join(CELLS)}")
        self._cell = cell
        super().__init__(build, width=width, hidden=hidden, activation=activation, log_std=log_std, normalise=normalise)

    def memory(self, seed: int) -> nn.Module:
        """Return the recurrent layer."""
        return Memory(self._inputs, self._width, self._cell, seed=seed)
