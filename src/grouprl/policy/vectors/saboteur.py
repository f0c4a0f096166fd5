"""One agent that learns against a frozen team, and one that names what it should bring the others to do (AMI)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from grouprl.core.errors import InputError
from grouprl.policy.kinds import Build
from grouprl.policy.vectors.array_inputs import Seen
from grouprl.policy.vectors.features import feature_count, features
from grouprl.policy.vectors.mlp import ACTIVATIONS, Mlp, perceptron
from grouprl.policy.vectors.module_policy import MODEL_FILE
from grouprl.protocols import ArraySpace, DictSpace, Discrete


class FrozenPerceptron(nn.Module):
    """A perceptron that is never trained: its weights are buffers, so that checkpoints hold them.

    Args:
        weights: weight and bias of each layer.
        activation: the function between layers, a key of `ACTIVATIONS`.
    """

    def __init__(self, weights: Sequence[tuple[Tensor, Tensor]], activation: str) -> None:
        super().__init__()
        self.between, self.depth = ACTIVATIONS[activation](), len(weights)
        for number, (weight, bias) in enumerate(weights):
            self.register_buffer(f"weight_{number}", weight.detach().clone())
            self.register_buffer(f"bias_{number}", bias.detach().clone())

    def forward(self, x_nf: Tensor) -> Tensor:
        """Return the last layer's outputs [N,·]."""
        for number in range(self.depth):
            x_nf = self.between(x_nf) if number else x_nf
            x_nf = nn.functional.linear(x_nf, getattr(self, f"weight_{number}"), getattr(self, f"bias_{number}"))
        return x_nf


class Saboteur(Mlp):
    """Perceptrons of an infiltrated world's agents: one for the adversary and one for all that name targets are
    trained, the team's stays as it was (AMI, arXiv:2302.03322).

    The first `members` agents are the team, `adversary` among them by its number; further agents name targets. The
    team's perceptron is that of a run with `model: mlp` in the world without an adversary, and reads what it did there.

    Args:
        build: the run's arguments.
        team: a folder with the `policy.safetensors` of that run (`grouprl export RUN FOLDER`), or the file itself; "":
            a team that has learned nothing, drawn from the run's seed.
        members: number of agents of the team, the adversary included.
        adversary: number of the adversary.
        hidden: width of each hidden layer of what is trained.
        activation: tanh, relu or silu, of all perceptrons.
    """

    kind = "saboteur"

    def __init__(
        self,
        build: Build,
        *,
        team: str = "",
        members: int = 2,
        adversary: int = 0,
        hidden: Sequence[int] = (64, 64),
        activation: str = "tanh",
    ) -> None:
        spaces = build.need_spaces(self.kind, observations=(DictSpace,), actions=(Discrete,))
        agents = cast("DictSpace", spaces.observation).spaces.get("agent")
        if not isinstance(agents, Discrete) or not 0 <= adversary < members <= agents.count:
            raise InputError(
                f"model.settings: members {members}, adversary {adversary}, in a world with {agents or 'no agents'}",
                "the first `members` agents are the team, and the adversary is one of them",
                "Take a world like grouprl.envs.builtin.jury:InfiltratedJury",
            )
        self.team, self.members, self.adversary = team, members, adversary
        self._observed = cast("DictSpace", spaces.observation).spaces
        super().__init__(build, hidden=hidden, activation=activation)

    def body(self, outputs: int) -> nn.ModuleDict:
        """Return the perceptrons of the adversary, of those that name targets, and of the team.

        Raises:
            InputError: there is no team in the folder, or it reads or does something else than the world's agents.
        """
        widths, activation = self._layers
        helper = perceptron(self._inputs, outputs, widths, activation, seed=self._seed + 2)
        reads = sum(feature_count(space) for space in self._own().values()) + self.members
        if self.team:
            layers = team_layers(self.team)
        else:
            fresh = perceptron(reads, outputs, widths, activation, seed=self._seed + 3)
            layers = [(layer.weight, layer.bias) for layer in fresh if isinstance(layer, nn.Linear)]
        first, last = layers[0][0].shape[1], layers[-1][0].shape[0]
        if (first, last) != (reads, outputs):
            raise InputError(
                f"the team in {self.team} reads {first} numbers and has {last} actions",
                f"an agent of this world reads {reads} (its number among them) and has {outputs}",
                "Train it by model: mlp in the same world without an adversary, or set model.settings.members",
            )
        return nn.ModuleDict({**super().body(outputs), "target": helper, "team": FrozenPerceptron(layers, activation)})

    def outputs_of(self, seen: Seen) -> Tensor:
        """Return the logits [N,A] at each position, of the agent whose turn it is."""
        read_nf, agent_n = self._read(seen), seen.observation["agent"]
        adversary_n, helper_n = agent_n == self.adversary, agent_n >= self.members
        out_na = torch.where(adversary_n[:, None], self._module["mean"](read_nf), self.team_logits(seen))
        return torch.where(helper_n[:, None], self._module["target"](read_nf), out_na)

    def team_logits(self, seen: Seen) -> Tensor:
        """Return the team's logits [N,A] at each position; those of agents that are not in it mean nothing."""
        agent_n = seen.observation["agent"]
        known_n = torch.where(agent_n < self.members, agent_n, 0)
        own = [features(space, seen.observation[name], self.dtype) for name, space in self._own().items()]
        number_nm = nn.functional.one_hot(known_n, self.members).to(self.dtype)
        found_na: Tensor = self._module["team"](torch.cat([*own, number_nm], -1))
        return found_na

    def _own(self) -> dict[str, ArraySpace]:
        """Return the spaces of what an agent of the team observes besides its number."""
        return {name: space for name, space in self._observed.items() if name not in ("agent", "earlier")}


def team_layers(team: str) -> list[tuple[Tensor, Tensor]]:
    """Return weight and bias of each layer of the perceptron that a run with `model: mlp` has stored.

    Raises:
        InputError: no such file, or a policy of another kind.
    """
    from safetensors.torch import load_file

    path = Path(team) / MODEL_FILE if Path(team).is_dir() else Path(team)
    if not path.is_file():
        raise InputError(
            f"model.settings.team = {team}", f"{path} is not a file", "Export a run: grouprl export RUN FOLDER"
        )
    found = load_file(path)
    own = sorted({int(name.split(".")[1]) for name in found if name.startswith("mean.") and name.endswith("weight")})
    other = sorted(name for name in found if not name.startswith(("mean.", "value_head.")))
    if not own or other:
        raise InputError(
            f"{path} holds {', '.join(other) or 'no mean.0.weight'}", "a team is a plain mlp", "Train it by model: mlp"
        )
    return [(found[f"mean.{number}.weight"], found[f"mean.{number}.bias"]) for number in own]
