"""A policy that is asked for a return: attention over the last positions, and foresight of what follows an action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from grouprl.core.errors import InputError
from grouprl.core.outputs import FORESIGHT, OBSERVATION_ERROR, TO_GO_ERROR
from grouprl.policy.kinds import Build
from grouprl.policy.vectors.array_inputs import ArrayInputs, Seen
from grouprl.policy.vectors.array_policy import spread
from grouprl.policy.vectors.features import feature_count, features
from grouprl.policy.vectors.mlp import VALUE_GAIN, perceptron
from grouprl.policy.vectors.pointer import EncoderLayer
from grouprl.policy.vectors.recurrent import Remembering
from grouprl.protocols import Box, DictSpace
from grouprl.records.offline import BEFORE, TO_GO


class Window(nn.Module):
    """Attention over the last positions of a row: the output at each is read from it and the `length` - 1 before it.

    Before the beginning of a row stand zeros, which a flag tells from positions.

    Args:
        inputs: numbers of a position.
        width: numbers of its output.
        length: positions that are read, the present one included.
        layers: layers of attention.
        heads: heads of each; they divide the width.
        seed: of the weights.
    """

    def __init__(self, inputs: int, width: int, length: int, layers: int, heads: int, *, seed: int) -> None:
        super().__init__()
        self.length = length
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed, self.place = nn.Linear(inputs + 1, width), nn.Parameter(0.1 * torch.randn(length, width))
            self.encoder = nn.Sequential(*(EncoderLayer(width, heads) for _ in range(layers)), nn.LayerNorm(width))

    def forward(self, read_nf: Tensor, row_n: Tensor, state_rm: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the output [N,width] at each position, and the last positions [R,M] of each row.

        Positions of a row follow each other, and every row has one or more.
        """
        flagged_ng = nn.functional.pad(read_nf, (0, 1), value=1.0)
        rows = flagged_ng.split(torch.unique_consecutive(row_n, return_counts=True)[1].tolist())
        shape = (len(rows), self.length - 1, flagged_ng.shape[1])
        past_rkg = flagged_ng.new_zeros(shape) if state_rm is None else state_rm.view(shape)
        whole = [torch.cat(pair) for pair in zip(past_rkg, rows, strict=True)]
        seen_nkg = torch.cat([row.unfold(0, self.length, 1) for row in whole]).transpose(1, 2)
        found_nkd = self.encoder(self.embed(seen_nkg) + self.place)
        return found_nkd[:, -1], torch.stack([row[len(row) - self.length + 1 :].flatten() for row in whole])


def check_sizes(width: int, *, heads: int, **others: int) -> None:
    """Raise InputError for sizes of attention below 1, or heads that do not divide the width."""
    sizes = {"width": width, "heads": heads, **others}
    if min(sizes.values()) < 1 or width % heads:
        raise InputError(
            f"model.settings: {', '.join(f'{name} {size}' for name, size in sizes.items())}",
            "sizes are 1 or more, and the heads divide the width",
        )


class DecisionTransformer(Remembering):
    """Attention over the last returns to go, observations and actions, followed by the perceptron of `mlp`.

    Its actions depend on the return that is asked for. Two further outputs are errors of its foresight, which a
    perceptron over the attention's output and the action taken has of the next observation and of the return to go
    after the action: `observation_error` and `to_go_error`. After the last action of a row nothing is to go, and no
    observation is foreseen, because that of an episode which ended may be unknown. Sources: Chen et al. 2021
    (arXiv:2106.01345); Ghanem et al. 2023 (arXiv:2308.16379).

    *Differs from the papers*: a position is one token, not three; every action is read from a window of its own, so
    that it is the same in training as when it is taken; places are counted back from the present, not from the
    beginning.

    Args:
        build: the run's arguments; observations have entries `to_go` and `before`.
        window: positions that an action is read from, the present one included.
        width: numbers of a position.
        layers: layers of attention.
        heads: heads of each; they divide the width.
        hidden: width of each hidden layer of the perceptron after it.
        activation: tanh, relu or silu.
        log_std: initial logarithm of the deviation of vector actions.

    Raises:
        InputError: observations without a return to go, sizes below 1, or heads that do not divide the width.
    """

    kind = "decision_transformer"

    def __init__(
        self,
        build: Build,
        *,
        window: int = 8,
        width: int = 32,
        layers: int = 1,
        heads: int = 2,
        hidden: Sequence[int] = (),
        activation: str = "tanh",
        log_std: float = 0.0,
    ) -> None:
        observation = build.need_spaces(self.kind).observation
        own = observation.spaces if isinstance(observation, DictSpace) else {}
        if own.get(TO_GO) != Box((1,)) or BEFORE not in own:
            raise InputError(
                f"observations {observation}",
                f"the policy {self.kind} reads the return to go (entry {TO_GO}) and the action before ({BEFORE})",
                "Set task.target of a task trajectories:…",
            )
        check_sizes(width, window=window, layers=layers, heads=heads)
        self._sizes = (window, layers, heads)
        self._acted = feature_count(build.need_spaces(self.kind).action)
        self._foreseen = DictSpace({name: space for name, space in own.items() if name not in (TO_GO, BEFORE)})
        super().__init__(build, width=width, hidden=hidden, activation=activation, log_std=log_std)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs: those of every policy, and the errors of what is foreseen."""
        return (*super().outputs, OBSERVATION_ERROR, TO_GO_ERROR)

    def memory(self, seed: int) -> nn.Module:
        """Return the attention over the last positions."""
        window, layers, heads = self._sizes
        return Window(self._inputs, self._width, window, layers, heads, seed=seed)

    def body(self, outputs: int) -> nn.ModuleDict:
        """Return the attention, the perceptron that acts and the two that foresee."""
        found, reads = super().body(outputs), self._width + self._acted
        sizes = {OBSERVATION_ERROR: feature_count(self._foreseen), TO_GO_ERROR: 1}
        found[FORESIGHT] = nn.ModuleDict(
            {
                name: perceptron(reads, count, (self._width,), "tanh", seed=self._seed + 4 + place, gain=VALUE_GAIN)
                for place, (name, count) in enumerate(sizes.items())
            }
        )
        return found

    def score(self, inputs: ArrayInputs, names: Sequence[str]) -> dict[str, Tensor]:
        """Score the actions of `inputs`, and what the policy foresaw of each."""
        found = super().score(inputs, names)
        asked = [name for name in (OBSERVATION_ERROR, TO_GO_ERROR) if name in names]
        if not asked:
            return found
        seen = inputs.seen(self.device, self.dtype)
        action_n = inputs.by_position(inputs.action_bt).to(self.device)
        acted_nh = torch.cat([self.remembered(seen), features(self.spaces.action, action_n, self.dtype)], -1)
        heads = cast("nn.ModuleDict", self._module[FORESIGHT])
        for name in asked:
            next_nf, there_n1 = self._next(seen, name)
            error_nf = torch.where(there_n1, heads[name](acted_nh) - next_nf, 0)
            found[name] = spread(error_nf.square().mean(-1), inputs)
        return found

    def _next(self, seen: Seen, name: str) -> tuple[Tensor, Tensor]:
        """Return what is to be foreseen at each position [N,F], and where the row shows it [N,1]."""
        last_n1 = nn.functional.pad(seen.row_n[1:] != seen.row_n[:-1], (0, 1), value=True)[:, None]
        if name == TO_GO_ERROR:
            return torch.where(last_n1, 0, seen.observation[TO_GO].roll(-1, 0)), torch.ones_like(last_n1)
        return features(self._foreseen, seen.observation, self.dtype).roll(-1, 0), ~last_n1
