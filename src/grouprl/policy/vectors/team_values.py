"""Values of a team's joint actions, mixed from the agents' own (QMIX): the policy of a value-based learner."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from grouprl.core.errors import InputError
from grouprl.core.outputs import ENTROPY, LOG_PROB
from grouprl.policy.kinds import Build
from grouprl.policy.vectors.array_distributions import MultiCategorical
from grouprl.policy.vectors.array_inputs import ArrayInputs, Seen
from grouprl.policy.vectors.array_policy import ArrayPolicy, spread
from grouprl.policy.vectors.mlp import ACTIVATIONS, perceptron
from grouprl.protocols import Box, DictSpace, MultiDiscrete

TEAM_VALUE = "team_value"
"""[B,T]: value of the joint action taken, with a gradient."""
BEST_AFTER = "best_after"
"""[B,T]: the follower's value of the best joint action after each one; 0 where what follows is not known."""
LEAST = 1e-6
"""Least share of random actions and of best ones: log-probs are finite, and the best action is always the likeliest."""
OUTSIDE = -1e9
"""Value of an illegal action among those of which the best is chosen."""


class MonotonicMixer(nn.Module):
    """Q_tot = |W_2(s)|·elu(|W_1(s)|·q + b_1(s)) + b_2(s), which rises with every agent's value (QMIX, section 4).

    Weights come from linear maps of the state, the last bias from two layers of them.

    Args:
        state: numbers of the state.
        agents: number of agents.
        width: numbers of the hidden layer.
    """

    def __init__(self, state: int, agents: int, width: int) -> None:
        super().__init__()
        self.first, self.first_bias = nn.Linear(state, agents * width), nn.Linear(state, width)
        self.second = nn.Linear(state, width)
        self.second_bias = nn.Sequential(nn.Linear(state, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, q_nk: Tensor, state_ns: Tensor) -> Tensor:
        """Return the value [N] of the values [N,K] of the agents' actions in the states [N,S]."""
        first_nkw = self.first(state_ns).abs().unflatten(-1, (q_nk.shape[-1], -1))
        hidden_nw = nn.functional.elu((q_nk[..., None] * first_nkw).sum(1) + self.first_bias(state_ns))
        total_n: Tensor = (hidden_nw * self.second(state_ns).abs()).sum(-1) + self.second_bias(state_ns)[:, 0]
        return total_n


class SumMixer(nn.Module):
    """Q_tot = Σ_k q_k (VDN, arXiv:1706.05296)."""

    def forward(self, q_nk: Tensor, state_ns: Tensor) -> Tensor:
        """Return the sum [N]."""
        return q_nk.sum(-1)


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
    def follow(self, module: nn.Module) -> None:
        """Take the module's weights as they are now."""
        for name, parameter in module.named_parameters():
            self.get_buffer(name.replace(".", "-")).copy_(parameter)


class TeamValues(ArrayPolicy):
    """Perceptron q(o_k, k, ·) of all agents and a mixer of the values of their actions, with a follower of both.

    Every agent takes its own best action, or with the probability `explore` (times the temperature) any one: what it
    does depends on its observation alone. Because the mixer is monotonic, these actions are together the best ones. The
    outputs are `team_value` and `best_after`; log-probs and entropies have no gradient. The state is what all agents
    observe. Sources: QMIX (arXiv:1803.11485); VDN with `mixer: sum`.

    Args:
        build: the run's arguments; observations have an entry `own`, [K,F], and actions are K numbers.
        hidden: width of each hidden layer of the agents' perceptron.
        activation: tanh, relu or silu.
        mixer: monotonic, or sum.
        width: numbers of the mixer's hidden layer.
        explore: share of random actions at first; the update `followed_values` changes it.
    """

    def __init__(
        self,
        build: Build,
        *,
        hidden: Sequence[int] = (64,),
        activation: str = "relu",
        mixer: str = "monotonic",
        width: int = 32,
        explore: float = 1.0,
    ) -> None:
        spaces = build.need_spaces("team_values", observations=(DictSpace,), actions=(MultiDiscrete,))
        own = cast("DictSpace", spaces.observation).spaces.get("own")
        self.counts = cast("MultiDiscrete", spaces.action).counts
        self.agents = len(self.counts)
        if not isinstance(own, Box) or own.shape[:1] != (self.agents,) or len(set(self.counts)) > 1:
            raise InputError(
                f"observations {spaces.observation}, actions {self.counts}",
                "team_values reads an array `own` with a row for each agent, and agents have equally many actions",
                "Take a world like grouprl.envs.joint_world.Together",
            )
        if activation not in ACTIVATIONS or mixer not in ("monotonic", "sum") or not 0 <= explore <= 1:
            raise InputError(
                f"model.settings: activation {activation}, mixer {mixer}, explore {explore}",
                f"the activation is one of {', '.join(ACTIVATIONS)}, the mixer monotonic or sum, explore a probability",
            )
        numbers = sum(own.shape[1:]) if len(own.shape) == 2 else 0
        values = perceptron(numbers + self.agents, self.counts[0], hidden, activation, seed=build.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(build.seed + 1)
            state = self.agents * numbers
            mixed: nn.Module = MonotonicMixer(state, self.agents, width) if mixer == "monotonic" else SumMixer()
        module = nn.ModuleDict(
            {
                "single": values,
                "mixer": mixed,
                "old_single": FollowingModule(values),
                "old_mixer": FollowingModule(mixed),
            }
        )
        module.register_buffer("explore", torch.tensor(explore))
        super().__init__(build, module)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs: log-probs and entropies, and the values of a value learner."""
        return (LOG_PROB, ENTROPY, TEAM_VALUE, BEST_AFTER)

    def explore(self, share: float) -> None:
        """Set the share of random actions."""
        self.module.get_buffer("explore").fill_(share)

    def follow(self) -> None:
        """Let the follower take the values as they are now."""
        for name in ("single", "mixer"):
            cast("FollowingModule", self._part(f"old_{name}")).follow(self._part(name))

    def distribution(self, seen: Seen, temperature: float) -> Distribution:
        """Return the agents' choices: the best action, or any with the probability that is explored."""
        with torch.no_grad():
            q_nka = self.agent_values(seen)
            share = (self.module.get_buffer("explore") * temperature).clamp(LEAST, 1 - LEAST)
            legal_nka = torch.ones_like(q_nka, dtype=torch.bool) if seen.legal_na is None else self._legal(seen)
            best_nka = nn.functional.one_hot(q_nka.argmax(-1), q_nka.shape[-1]).to(self.dtype)
            chance_nka = share * legal_nka / legal_nka.sum(-1, keepdim=True) + (1 - share) * best_nka
            return MultiCategorical(list(chance_nka.log().clamp(min=OUTSIDE).unbind(1)))

    def agent_values(self, seen: Seen, values: str = "single") -> Tensor:
        """Return the value [N,K,A] of each action to each agent, `OUTSIDE` for illegal ones."""
        own_nkf = seen.observation["own"].flatten(2)
        number_kk = torch.eye(self.agents, dtype=self.dtype, device=own_nkf.device)
        read_nkf = torch.cat([own_nkf, number_kk.expand(len(own_nkf), -1, -1)], -1)
        q_nka: Tensor = self._part(values)(read_nkf)
        return q_nka if seen.legal_na is None else torch.where(self._legal(seen), q_nka, OUTSIDE)

    def mixed(self, q_nk: Tensor, seen: Seen, mixer: str = "mixer") -> Tensor:
        """Return the value [N] of joint actions from the values [N,K] of the agents' own."""
        total_n: Tensor = self._part(mixer)(q_nk, seen.observation["own"].flatten(1))
        return total_n

    def score(self, inputs: ArrayInputs, names: Sequence[str]) -> dict[str, Tensor]:
        """Score the actions of rows, and return the values that are asked for."""
        found = super().score(inputs, [name for name in names if name in (LOG_PROB, ENTROPY)])
        if TEAM_VALUE in names:
            seen = inputs.seen(self.device, self.dtype)
            taken_nk = inputs.by_position(inputs.action_bt).to(self.device)
            q_nk = self.agent_values(seen).gather(-1, taken_nk[..., None])[..., 0]
            found[TEAM_VALUE] = spread(self.mixed(q_nk, seen), inputs)
        if BEST_AFTER in names:
            found[BEST_AFTER] = self._best_after(inputs)
        return found

    @torch.no_grad()
    def _best_after(self, inputs: ArrayInputs) -> Tensor:
        """Return [B,T] the follower's value of the best joint action after each one of rows."""
        longer = inputs.extended()
        known = inputs if longer is None else longer
        seen = known.seen(self.device, self.dtype)
        best_nk = self.agent_values(seen, "old_single").amax(-1)
        best_bt = spread(self.mixed(best_nk, seen, "old_mixer"), known)
        after_bt = best_bt[:, 1:] if longer is not None else nn.functional.pad(best_bt[:, 1:], (0, 1))
        return torch.where(inputs.present_bt().to(after_bt.device), after_bt, 0)

    def _legal(self, seen: Seen) -> Tensor:
        """Return [N,K,A] the legal actions; all of an agent's where none is, as after the last action of a row."""
        assert seen.legal_na is not None
        legal_nka = seen.legal_na.unflatten(-1, (self.agents, self.counts[0]))
        return legal_nka | ~legal_nka.any(-1, keepdim=True)

    def _part(self, name: str) -> nn.Module:
        return cast("nn.ModuleDict", self.module)[name]
