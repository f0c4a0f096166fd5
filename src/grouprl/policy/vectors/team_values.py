"""Values of a team's joint actions, mixed from the agents' own (QMIX): the policy of a value-based learner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from grouprl.core.errors import InputError
from grouprl.policy.kinds import Build
from grouprl.policy.vectors.acting_values import OUTSIDE, ValuePolicy, open_actions
from grouprl.policy.vectors.array_distributions import MultiCategorical
from grouprl.policy.vectors.array_inputs import Seen
from grouprl.policy.vectors.mlp import ACTIVATIONS, perceptron
from grouprl.protocols import Box, DictSpace, MultiDiscrete


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


class TeamValues(ValuePolicy):
    """Perceptron q(o_k, k, ·) of all agents and a mixer of the values of their actions, with a follower of both.

    Every agent takes its own best action, or with the probability `explore` (times the temperature) any one: what it
    does depends on its observation alone. Because the mixer is monotonic, these actions are together the best ones. The
    outputs are `action_value` and `best_after`; log-probs and entropies have no gradient. The state is what all agents
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
        if activation not in ACTIVATIONS or mixer not in ("monotonic", "sum"):
            raise InputError(
                f"model.settings: activation {activation}, mixer {mixer}",
                f"the activation is one of {', '.join(ACTIVATIONS)}, the mixer monotonic or sum",
            )
        numbers = sum(own.shape[1:]) if len(own.shape) == 2 else 0
        values = perceptron(numbers + self.agents, self.counts[0], hidden, activation, seed=build.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(build.seed + 1)
            state = self.agents * numbers
            mixed: nn.Module = MonotonicMixer(state, self.agents, width) if mixer == "monotonic" else SumMixer()
        super().__init__(build, {"single": values, "mixer": mixed}, explore)

    def distribution(self, seen: Seen, temperature: float) -> Distribution:
        """Return the agents' choices: the best action, or any with the probability that is explored."""
        with torch.no_grad():
            q_nka = self.agent_values(seen)
            legal_nka = None if seen.legal_na is None else self._legal(seen)
            return MultiCategorical(list(self.log_chances(q_nka, legal_nka, temperature).unbind(1)))

    def taken_value(self, seen: Seen, action_n: Tensor) -> Tensor:
        """Return the value [N] of the joint actions taken, [N,K]."""
        q_nk = self.agent_values(seen).gather(-1, action_n[..., None])[..., 0]
        return self.mixed(q_nk, seen)

    def best_value(self, seen: Seen) -> Tensor:
        """Return the follower's value [N] of the best joint action, which is each agent's best."""
        return self.mixed(self.agent_values(seen, "old_single").amax(-1), seen, "old_mixer")

    def agent_values(self, seen: Seen, values: str = "single") -> Tensor:
        """Return the value [N,K,A] of each action to each agent, `OUTSIDE` for illegal ones."""
        own_nkf = seen.observation["own"].flatten(2)
        number_kk = torch.eye(self.agents, dtype=self.dtype, device=own_nkf.device)
        read_nkf = torch.cat([own_nkf, number_kk.expand(len(own_nkf), -1, -1)], -1)
        q_nka: Tensor = self.part(values)(read_nkf)
        return q_nka if seen.legal_na is None else torch.where(self._legal(seen), q_nka, OUTSIDE)

    def mixed(self, q_nk: Tensor, seen: Seen, mixer: str = "mixer") -> Tensor:
        """Return the value [N] of joint actions from the values [N,K] of the agents' own."""
        total_n: Tensor = self.part(mixer)(q_nk, seen.observation["own"].flatten(1))
        return total_n

    def _legal(self, seen: Seen) -> Tensor:
        """Return a mask [N,K,A] of the legal actions."""
        assert seen.legal_na is not None
        return open_actions(seen.legal_na.unflatten(-1, (self.agents, self.counts[0])))
