"""A policy that acts by a context: one is read from each stored trajectory, one is learned and acts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from grouprl.core.outputs import CONTEXT_SCORE, CONTEXT_SIZE_ERROR, GOAL_SCORE, HINDSIGHT_ERROR
from grouprl.policy.kinds import Build
from grouprl.policy.vectors.array_distributions import masked
from grouprl.policy.vectors.array_inputs import ArrayInputs, Seen
from grouprl.policy.vectors.array_policy import spread
from grouprl.policy.vectors.decision_transformer import Window, check_sizes
from grouprl.policy.vectors.features import feature_count, features
from grouprl.policy.vectors.recurrent import Remembering
from grouprl.protocols import Box

HINDSIGHT = "hindsight"
"""Name under which rows carry the contexts of their own trajectories, as if the environment had shown them."""
OF_CONTEXTS = (CONTEXT_SCORE, GOAL_SCORE, CONTEXT_SIZE_ERROR)


class TrajectoryEncoder(nn.Module):
    """z = I(τ): attention over windows of observations and actions, averaged over the row and projected.

    Args:
        inputs: numbers of an observation and an action.
        width: numbers of a position.
        dims: numbers of a context.
        window: positions that are read together.
        layers: layers of attention.
        heads: heads of each; they divide the width.
        seed: of the weights.
    """

    def __init__(self, inputs: int, width: int, dims: int, window: int, layers: int, heads: int, *, seed: int) -> None:
        super().__init__()
        self.read = Window(inputs, width, window, layers, heads, seed=seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 1)
            self.out = nn.Linear(width, dims)

    def forward(self, read_nf: Tensor, row_n: Tensor, rows: int) -> Tensor:
        """Return the context [R,Z] of each of `rows` rows from their positions [N,F]."""
        found_nd, _ = self.read(read_nf, row_n, None)
        sum_rd = found_nd.new_zeros(rows, found_nd.shape[1]).index_add(0, row_n, found_nd)
        context_rz: Tensor = self.out(sum_rd / torch.bincount(row_n, minlength=rows).clamp(min=1)[:, None])
        return context_rz


class Hindsight(Remembering):
    """Attention over the last observations and a context, and the perceptron of `mlp` after it.

    An encoder reads a context from each whole trajectory, its actions included. The policy acts by a context of its
    own, z*, which is a parameter: log-probs, entropies and samples are those given z*. Four further outputs are for
    learning from stored trajectories: `hindsight_error` of actions given the context of their own trajectory,
    `context_score` and `goal_score` (minus its distance from z*, with z* or with the context held constant) and
    `context_size_error`. Source: Kang et al. 2023, OPPO (arXiv:2305.16217).

    *Differs from the paper*: the encoder averages over windows of attention, where the paper's attends to a whole
    piece of a trajectory; actions are read from observations and the context without the actions before; observations
    are not normalised by the data.

    Args:
        build: the run's arguments.
        dims: numbers of a context.
        window: positions that are read together, by the encoder and when acting.
        width: numbers of a position.
        layers: layers of attention.
        heads: heads of each; they divide the width.
        hidden: width of each hidden layer of the perceptron after it.
        activation: tanh, relu or silu.
        log_std: initial logarithm of the deviation of vector actions.

    Raises:
        InputError: sizes below 1, or heads that do not divide the width.
    """

    kind = "hindsight"

    def __init__(
        self,
        build: Build,
        *,
        dims: int = 8,
        window: int = 4,
        width: int = 32,
        layers: int = 1,
        heads: int = 2,
        hidden: Sequence[int] = (),
        activation: str = "tanh",
        log_std: float = 0.0,
    ) -> None:
        check_sizes(width, dims=dims, window=window, layers=layers, heads=heads)
        self._dims, self._sizes = dims, (window, layers, heads)
        self._acted = feature_count(build.need_spaces(self.kind).action)
        super().__init__(build, width=width, hidden=hidden, activation=activation, log_std=log_std)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs: those of every policy, and what contexts of trajectories give."""
        return (*super().outputs, HINDSIGHT_ERROR, *OF_CONTEXTS)

    @property
    def goal(self) -> Tensor:
        """z* [Z], the context that acts."""
        return cast("nn.ParameterList", self._module["goal"])[0]

    def memory(self, seed: int) -> nn.Module:
        """Return the attention over the last positions."""
        window, layers, heads = self._sizes
        return Window(self._inputs + self._dims, self._width, window, layers, heads, seed=seed)

    def body(self, outputs: int) -> nn.ModuleDict:
        """Return the attention, the perceptron that acts, the encoder, and z* of length 1 in a random direction."""
        found, reads = super().body(outputs), self._inputs + self._acted
        found["encoder"] = TrajectoryEncoder(reads, self._width, self._dims, *self._sizes, seed=self._seed + 4)
        drawn_z = torch.randn(self._dims, generator=torch.Generator().manual_seed(self._seed + 6))
        found["goal"] = nn.ParameterList([nn.Parameter(drawn_z / drawn_z.norm())])
        return found

    def contexts(self, inputs: ArrayInputs) -> Tensor:
        """Return the context [B,Z] of each row."""
        seen = inputs.seen(self.device, self.dtype)
        action_n = inputs.by_position(inputs.action_bt).to(self.device)
        read_nf = torch.cat([super()._read(seen), features(self.spaces.action, action_n, self.dtype)], -1)
        context_bz: Tensor = self._module["encoder"](read_nf, seen.row_n, len(inputs))
        return context_bz

    def score(self, inputs: ArrayInputs, names: Sequence[str]) -> dict[str, Tensor]:
        """Score the actions of `inputs` given z*, and return what their own contexts give."""
        found = super().score(inputs, names)
        if not {HINDSIGHT_ERROR, *OF_CONTEXTS} & {*names}:
            return found
        context_bz, goal_z = self.contexts(inputs), self.goal
        of_rows = {
            CONTEXT_SCORE: -torch.linalg.vector_norm(context_bz - goal_z.detach(), dim=-1),
            GOAL_SCORE: -torch.linalg.vector_norm(context_bz.detach() - goal_z, dim=-1),
            CONTEXT_SIZE_ERROR: (torch.linalg.vector_norm(context_bz, dim=-1) - 1).square(),
        }
        found |= {name: x for name, x in of_rows.items() if name in names}
        if HINDSIGHT_ERROR in names:
            found[HINDSIGHT_ERROR] = spread(self._error(inputs, context_bz), inputs)
        return found

    def _error(self, inputs: ArrayInputs, context_bz: Tensor) -> Tensor:
        """Return the error [N] of each action given the context of its row."""
        seen = inputs.seen(self.device, self.dtype)
        seen = replace(seen, context={**seen.context, HINDSIGHT: context_bz})
        action_n = inputs.by_position(inputs.action_bt).to(self.device)
        if isinstance(self.spaces.action, Box):
            return (self.outputs_of(seen) - action_n.to(self.dtype)).square().mean(-1)
        log_prob_n: Tensor = masked(self.distribution(seen, 1.0), seen.legal_na).log_prob(action_n)
        return -log_prob_n

    def _read(self, seen: Seen) -> Tensor:
        """Return what is read at each position [N,F]: observations, and the row's context or z*."""
        own_nf, context_rz = super()._read(seen), seen.context.get(HINDSIGHT)
        context_nz = self.goal.expand(len(own_nf), -1) if context_rz is None else context_rz[seen.row_n]
        return torch.cat([own_nf, context_nz], -1)
