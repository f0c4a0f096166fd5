"""Teams whose policies share everything but their output layers: a head for each of several objectives."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from grouprl.core.errors import InputError
from grouprl.policy.engine import output_layer
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.lora import is_adapted
from grouprl.policy.teams.team_policy import FrozenTeam, TeamPolicy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TRUNK = "trunk"
"""Beginning of the names of the shared parameters."""
NOISE = 1e-3
"""Standard deviation of the noise on each head at first (pearls-lab/multiobj-align, equal_init)."""


class SharedTrunk(TeamPolicy):
    """A team of one language model with an output layer of its own for each agent (MAH-DPO, arXiv:2510.01167).

    A row is scored, and a completion sampled, by its agent's head. A head has a gradient from its own rows alone, the
    trunk from all. Where the model's output layer is its embedding, the heads are copies, and the embedding stays with
    the trunk.

    Raises:
        InputError: members that do not share their trunk.
    """

    def __init__(self, members: Mapping[str, CausalPolicy]) -> None:
        super().__init__(members)
        trunks = [dict(_trunk(member.model)) for member in self._by_number]
        if any(own.keys() != trunks[0].keys() for own in trunks) or any(
            parameter is not trunks[0][name] for own in trunks for name, parameter in own.items()
        ):
            raise InputError("heads of several models", "the heads of a team share one trunk", "Use TeamPolicy")

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the trunk's parameters as trunk.name, then those of each head as agent.name."""
        yield from ((f"{TRUNK}.{name}", p) for name, p in _trunk(self._by_number[0].model) if p.requires_grad)
        for agent, member in self.members.items():
            own = _head(member.model).named_parameters()
            yield from ((f"{agent}.{name}", p) for name, p in own if p.requires_grad)

    def owners(self) -> list[list[nn.Parameter]]:
        """Return all parameters together: gradients are clipped as one model's."""
        return [self.parameters()]

    def of(self, agents: Sequence[str]) -> TeamPolicy | CausalPolicy:
        """Return a team with the heads of `agents` on the same trunk; for a single agent, its policy."""
        found = super().of(agents)
        return SharedTrunk(found.members) if isinstance(found, TeamPolicy) else found

    def copied(self, *, trainable: bool = True, value_head: bool = False) -> SharedTrunk:
        """Return a copy with one trunk; see `CausalPolicy.copied`.

        Raises:
            InputError: `value_head`, as heads of values are not shared.
        """
        if value_head:
            raise InputError("a value head on several heads", "a critic has a model of its own", "Leave it out")
        # All in one call, whose memo keeps what they share shared.
        models = copy.deepcopy({agent: member.model for agent, member in self.members.items()})
        if not trainable:
            for model in models.values():
                model.requires_grad_(False)
        return SharedTrunk({agent: self.members[agent].around(model) for agent, model in models.items()})

    def reference(self) -> FrozenTeam:
        """Return the frozen policies of the agents, whose trunk is one copy."""
        frozen = self.copied(trainable=False)
        return FrozenTeam([frozen.members[agent] for agent in frozen.members])

    def mixed(self, weights: Mapping[str, float]) -> CausalPolicy:
        """Return a policy whose logits are the weighted mean of the heads' logits, Σ_d w_d·z_d / Σ_d w_d.

        Logits are linear in the output layer, so it is an ordinary model whose output layer is the weighted mean. It
        shares the trunk with the team, and its head is a copy.

        Raises:
            InputError: an agent without a head, a negative weight, or weights of which none is above 0.
        """
        unknown = [agent for agent in weights if agent not in self.members]
        total = sum(weights.values())
        if unknown or not weights or min(weights.values()) < 0 or not 0 < total < float("inf"):
            raise InputError(
                f"heads mixed by {dict(weights)}",
                f"weights are 0 or more, not all 0, and name heads: {', '.join(self.members)}",
                "Give the heads that count a weight above 0",
            )
        shares = {agent: weight / total for agent, weight in weights.items() if weight}
        model = _with_head(self._by_number[0].model)
        with torch.no_grad():
            for name, parameter in _head(model).named_parameters():
                each = {agent: dict(_head(self.members[agent].model).named_parameters())[name] for agent in shares}
                parameter.copy_(_mean(shares, each))
        return self._by_number[0].around(model)


def with_heads(policy: CausalPolicy, agents: Sequence[str], seed: int = 0, noise: float = NOISE) -> SharedTrunk:
    """Return a team with one head for each of `agents`, all near the output layer of `policy`, whose trunk it takes.

    Heads are copies with normal noise drawn from `seed`.

    Raises:
        InputError: a policy with adapters or a value head, a model without a linear output layer, or fewer than two
            agents.
    """
    if is_adapted(policy.model) or policy.value_head is not None or output_layer(policy.model) is None:
        raise InputError(
            "model.agents: heads with adapters, a value head or a model without a linear output layer",
            "agents have copies of the output layer, and all else is shared and trained whole",
            "Set model.lora: null, leave out the critic, or set model.agents: separate",
        )
    generator = torch.Generator().manual_seed(seed)
    members = {agent: policy.around(_with_head(policy.model)) for agent in agents}
    for member in members.values():
        weight = _head(member.model).weight
        with torch.no_grad():
            weight += (noise * torch.randn(weight.shape, generator=generator)).to(weight)
    return SharedTrunk(members)


def _with_head(model: PreTrainedModel) -> PreTrainedModel:
    """Return the same model with a copy of its output layer in place of its own; all other modules are shared."""
    twin, head = copy.copy(model), output_layer(model)
    assert head is not None, "with_heads checks it"
    # A shallow copy has the same dictionary of modules: to set the head there would set the original's.
    twin._modules, twin.config = dict(model._modules), copy.deepcopy(model.config)
    own = copy.deepcopy(head).requires_grad_(head.weight.requires_grad)
    twin.set_output_embeddings(own)
    twin.config.tie_word_embeddings = False
    twin.all_tied_weights_keys = twin.get_expanded_tied_weights_keys(all_submodels=True)
    return twin


def _trunk(model: PreTrainedModel) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters that are not those of the output layer."""
    own = {id(parameter) for parameter in _head(model).parameters()}
    yield from ((name, parameter) for name, parameter in model.named_parameters() if id(parameter) not in own)


def _head(model: PreTrainedModel) -> nn.Linear:
    """Return the output layer."""
    found = output_layer(model)
    assert found is not None, "with_heads checks it"
    return found


def _mean(shares: Mapping[str, float], each: Mapping[str, Tensor]) -> Tensor:
    """Return the weighted sum of tensors, computed in float64."""
    return torch.stack([share * each[agent].double() for agent, share in shares.items()]).sum(0)
