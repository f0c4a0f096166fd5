"""Agents of a team that act by a shared encoder of what each sees, and foresee the team in its latents (MAPO-LSO)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from grouprl.core.errors import InputError
from grouprl.core.outputs import AHEAD_ERROR, FORESEEN_REWARD, FORESIGHT, LATENT_ERROR, MASKED_ERROR
from grouprl.policy.kinds import Build
from grouprl.policy.vectors.acting_values import FollowingModule
from grouprl.policy.vectors.array_inputs import ArrayInputs, Seen
from grouprl.policy.vectors.array_policy import spread
from grouprl.policy.vectors.features import feature_count, features
from grouprl.policy.vectors.mlp import ACTIVATIONS, VALUE_GAIN, Mlp, perceptron
from grouprl.protocols import Box, DictSpace, Discrete

ENTRIES = {"own", "agent", "team", "there", "done"}
"""Entries of what an agent observes; the last three are read by the critic and by foresight only."""
FORESEEN = (LATENT_ERROR, MASKED_ERROR, FORESEEN_REWARD, AHEAD_ERROR)
HIDDEN_GAIN = 2**0.5


class TeamPositions(NamedTuple):
    """N positions of agents' rows, as foresight reads them."""

    own_nf: Tensor
    """[N,F] what the agent observes."""
    own_nw: Tensor
    """[N,W] its latent."""
    number_nk: Tensor
    """[N,K] its number, one-hot."""
    others_nw: Tensor
    """[N,W] the mean of the latents of the others that act, 0 if none does."""
    alone_n: Tensor
    """[N] bool: no other agent acts."""
    action_na: Tensor
    """[N,A] its action, one-hot."""
    done_na: Tensor
    """[N,A] the mean of the others' actions, one-hot; 0 in the last position of a row, which does not show them."""
    follows_n: Tensor
    """[N] bool: the next position is the agent's next round."""
    target_nw: Tensor
    """[N,W] the follower's latent, without a graph."""


class LatentTeam(Mlp):
    """Agents act by a linear layer on the latent of what they see; the critic reads the team's, and heads foresee.

    The encoder e(o_m, m) is shared by all agents, by what acts and by the critic, which reads an agent's latent and the
    mean of the others' (a central critic, as in MAPPO). A follower of the encoder gives targets without a gradient: a
    moving average, which after every rollout goes the share 1 - `decay` of the way to the encoder, and which
    checkpoints hold. Four further outputs are for losses of foresight (MAPO-LSO, arXiv:2406.02890):

    - `latent_error`: of the follower's latent of the agent's next observation, foreseen from the latents and actions of
      the whole team, as the mean squared error;
    - `masked_error`: of the agent's own observation, read from the others' latents alone, as the mean squared error;
    - `foreseen_reward`: the reward of the action, foreseen from the same as the next latent;
    - `ahead_error`: 2 - 2·cosine of the follower's latent 1 to `ahead` steps later and of what the agent's own latent
      and actions become in a learned step, mapped by a predictor (as in BYOL, arXiv:2006.07733): the mean over the
      steps that the row has.

    Others enter as a mean, so their number and order do not matter, and agents that are dead or not there yet are left
    out. Where a row ends there is no next observation, and its error is 0.

    Args:
        build: the run's arguments; the world shows the team (`team: true`).
        width: numbers of a latent.
        hidden: width of each hidden layer of the encoder.
        activation: tanh, relu or silu; also applied to latents.
        ahead: steps that are foreseen from an agent's own latent.
        decay: share of the follower that stays after a rollout, from 0 to 1.

    Raises:
        InputError: a world that does not show the team, sizes below 1, or a `decay` that is not a share.
    """

    kind = "latent_team"

    def __init__(
        self,
        build: Build,
        *,
        width: int = 32,
        hidden: Sequence[int] = (),
        activation: str = "tanh",
        ahead: int = 3,
        decay: float = 0.9,
    ) -> None:
        spaces = build.need_spaces(self.kind, observations=(DictSpace,), actions=(Discrete,))
        seen = cast("DictSpace", spaces.observation).spaces
        if set(seen) != ENTRIES or spaces.context.spaces:
            raise InputError(
                f"observations {spaces.observation}, context {spaces.context}",
                "the policy latent_team learns from what the whole team sees and does",
                "Take a world that shows it, such as squads:ColorGrid with task.config.team=true, and no parents",
            )
        if min(width, ahead) < 1 or not 0 <= decay <= 1:
            raise InputError(
                f"model.settings: width {width}, ahead {ahead}, decay {decay}",
                "width and ahead are 1 or more, and decay is a share from 0 to 1",
            )
        self._width, self._ahead, self._decay = width, ahead, decay
        self._own = cast("Box", seen["own"])
        self._agents, self._actions = (cast("Discrete", x).count for x in (seen["agent"], spaces.action))
        super().__init__(build, hidden=hidden, activation=activation)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs: those of every policy, and those of foresight."""
        return (*super().outputs, *FORESEEN)

    def body(self, outputs: int) -> nn.ModuleDict:
        """Return the encoder and its follower, the layer that acts, and the heads of foresight."""
        (hidden, activation), reads = self._layers, feature_count(self._own) + self._agents
        between = perceptron(reads, self._width, hidden, activation, seed=self._seed, gain=HIDDEN_GAIN)
        encoder = nn.Sequential(*between, ACTIVATIONS[activation]())
        found = nn.ModuleDict({"encoder": encoder, "follower": FollowingModule(encoder)})
        found["mean"] = self._head(self._width, outputs, seed=1)
        found[FORESIGHT] = self._heads()
        found.register_buffer("rollouts", torch.zeros(()))
        return found

    def _heads(self) -> nn.ModuleDict:
        step, joint = self._width + self._actions, 2 * (self._width + self._actions)
        sizes = {
            LATENT_ERROR: (joint, self._width),
            FORESEEN_REWARD: (joint, 1),
            MASKED_ERROR: (self._width + self._agents, feature_count(self._own)),
            "step": (step, self._width),
            "predictor": (self._width, self._width),
        }
        found, inner = nn.ModuleDict(), ((self._width,), self._layers[1])
        for number, (name, (reads, count)) in enumerate(sizes.items()):
            found[name] = perceptron(reads, count, *inner, seed=self._seed + 3 + number, gain=VALUE_GAIN)
        return found

    def _head(self, reads: int, outputs: int, *, seed: int, **gain: float) -> nn.Sequential:
        return perceptron(reads, outputs, (), self._layers[1], seed=self._seed + seed, **gain)

    def new_critic(self) -> nn.Module:
        """Return a linear layer over an agent's latent and the mean of the others'."""
        return self._head(2 * self._width, 1, seed=2, gain=VALUE_GAIN)

    def observe(self, inputs: ArrayInputs) -> None:
        """Note that a rollout was made, after which the follower moves."""
        self._module.get_buffer("rollouts").fill_(1)

    def renew(self) -> None:
        """Let the follower move, once after a rollout."""
        made = self._module.get_buffer("rollouts")
        if float(made):
            cast("FollowingModule", self._module["follower"]).follow(self._module["encoder"], 1 - self._decay)
            made.fill_(0)

    def value(self, seen: Seen) -> Tensor:
        """Return the critic's value of each position, [N], from what the whole team sees."""
        assert self.critic is not None
        value_n: Tensor = self.critic(torch.cat([self._read(seen), self._others(self.team(seen), seen)], -1))[:, 0]
        return value_n

    def _read(self, seen: Seen, encoder: str = "encoder") -> Tensor:
        """Return the agent's own latent [N,W]."""
        found_nw: Tensor = self._module[encoder](torch.cat([self._seen(seen), self._number(seen)], -1))
        return found_nw

    def team(self, seen: Seen) -> Tensor:
        """Return the latents [N,K,W] of all agents; those of agents that do not act mean nothing."""
        team_nkf = features(self._own, seen.observation["team"].flatten(0, 1), self.dtype)
        team_nkf = team_nkf.unflatten(0, (-1, self._agents))
        number_nkk = torch.eye(self._agents, dtype=self.dtype, device=self.device).expand(len(team_nkf), -1, -1)
        found_nkw: Tensor = self._module["encoder"](torch.cat([team_nkf, number_nkk], -1))
        return found_nkw

    def score(self, inputs: ArrayInputs, names: Sequence[str]) -> dict[str, Tensor]:
        """Score the actions of `inputs`, and what is foreseen."""
        found = super().score(inputs, names)
        asked = [name for name in FORESEEN if name in names]
        rounds = self._rounds(inputs) if asked else None
        if rounds is not None:
            found |= {name: spread(self._foreseen(name, rounds), inputs) for name in asked}
        return found

    def _foreseen(self, name: str, rounds: TeamPositions) -> Tensor:
        if name == MASKED_ERROR:
            return self._masked_error(rounds)
        if name == AHEAD_ERROR:
            return self._ahead_error(rounds)
        joint_nj = torch.cat([rounds.own_nw, rounds.action_na, rounds.others_nw, rounds.done_na], -1)
        found_nw: Tensor = self._foresight(name)(joint_nj)
        if name == FORESEEN_REWARD:
            return found_nw[:, 0]
        return torch.where(rounds.follows_n, (found_nw - rounds.target_nw.roll(-1, 0)).square().mean(-1), 0)

    def _masked_error(self, rounds: TeamPositions) -> Tensor:
        """Return the error [N] of the agent's observation as read from the others' latents."""
        read_nf = self._foresight(MASKED_ERROR)(torch.cat([rounds.others_nw, rounds.number_nk], -1))
        return torch.where(rounds.alone_n, 0, (read_nf - rounds.own_nf).square().mean(-1))

    def _ahead_error(self, rounds: TeamPositions) -> Tensor:
        """Return the error [N] of the agent's next latents as foreseen from its own latent and actions."""
        latent_nw, there_n = rounds.own_nw, torch.ones_like(rounds.follows_n)
        total_n, count_n = (torch.zeros_like(latent_nw[:, 0]) for _ in range(2))
        for step in range(self._ahead):
            latent_nw = self._foresight("step")(torch.cat([latent_nw, rounds.action_na.roll(-step, 0)], -1))
            there_n = there_n & rounds.follows_n.roll(-step, 0)
            target_nw = rounds.target_nw.roll(-step - 1, 0)
            alike_n = nn.functional.cosine_similarity(self._foresight("predictor")(latent_nw), target_nw, -1)
            total_n = total_n + torch.where(there_n, 2 - 2 * alike_n, 0)
            count_n = count_n + there_n
        return total_n / count_n.clamp(min=1)

    def _rounds(self, inputs: ArrayInputs) -> TeamPositions:
        """Return what foresight reads of the positions of rows."""
        seen = inputs.seen(self.device, self.dtype)
        action_n = inputs.by_position(inputs.action_bt).to(self.device)
        done_nka, number_nk = seen.observation["done"].roll(-1, 0), self._number(seen)
        more_n = nn.functional.pad(seen.row_n[1:] == seen.row_n[:-1], (0, 1), value=False)
        follows_n = more_n & ((done_nka * number_nk[..., None]).sum((1, 2)) > 0)
        with torch.no_grad():
            target_nw = self._read(seen, "follower")
        return TeamPositions(
            self._seen(seen),
            self._read(seen),
            number_nk,
            self._others(self.team(seen), seen),
            (seen.observation["there"] * (1 - number_nk)).sum(-1) == 0,
            nn.functional.one_hot(action_n, self._actions).to(self.dtype),
            torch.where(follows_n[:, None], self._others(done_nka, seen), 0),
            follows_n,
            target_nw,
        )

    def _others(self, x_nkd: Tensor, seen: Seen) -> Tensor:
        """Return the mean [N,D] over the others that act; 0 if none does."""
        other_nk = seen.observation["there"] * (1 - self._number(seen))
        return (other_nk[..., None] * x_nkd).sum(1) / other_nk.sum(1, keepdim=True).clamp(min=1)

    def _seen(self, seen: Seen) -> Tensor:
        return features(self._own, seen.observation["own"], self.dtype)

    def _number(self, seen: Seen) -> Tensor:
        return nn.functional.one_hot(seen.observation["agent"], self._agents).to(self.dtype)

    def _foresight(self, name: str) -> nn.Module:
        return cast("nn.ModuleDict", self._module[FORESIGHT])[name]
