"""Teams of several policies: each row belongs to the policy of its agent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from grouprl.core.errors import InputError
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.text import Message
from grouprl.policy.state import LogProbs, check_cotangents, check_outputs, of_rows
from grouprl.records.tokens import Tokens


class FrozenTeam:
    """The frozen policies of the agents: the reference of KL terms."""

    def __init__(self, members: Sequence[Any]) -> None:
        self._members = list(members)

    def logp(self, tokens: Tokens) -> torch.Tensor:
        """Return the log-prob of every response token, each row's by its agent's policy, without a graph."""
        return _joined(tokens, {agent: self._members[agent].logp(part) for agent, _, part in by_agent(tokens)})


class TeamPolicy(LogProbs):
    """One policy with its own weights for each agent; rows name their agents (`Tokens.agents`).

    The policies may differ in everything but their tokens: an environment's text is encoded once for all. The step
    size and the clipping of gradients are each policy's own; a policy without a gradient takes no step.
    """

    lean = None

    def __init__(self, members: Mapping[str, CausalPolicy]) -> None:
        if len(members) < 2:
            raise InputError(f"a team of {len(members)}", "separate policies are for two agents or more")
        self.members = dict(members)
        self._by_number = list(self.members.values())
        first = self._by_number[0]
        for name, member in self.members.items():
            if member.tokenizer.get_vocab() != first.tokenizer.get_vocab() or member.eos_ids != first.eos_ids:
                raise InputError(
                    f"the agent {name!r} has other tokens than {next(iter(self.members))!r}",
                    "agents read each other's texts as tokens, so all need the same vocabulary and end tokens",
                    "Give them models of one family",
                )
        self.tokenizer, self.temperature = first.tokenizer, first.temperature

    def member(self, agent: int) -> CausalPolicy:
        """Return the policy of agent number `agent`."""
        return self._by_number[agent]

    def of(self, agents: Sequence[str]) -> TeamPolicy | CausalPolicy:
        """Return a team with the policies of `agents`, in their order; for a single agent, its policy.

        Raises:
            InputError: an agent that is not in the team.
        """
        for name in agents:
            if name not in self.members:
                raise InputError(
                    f"the team has no policy for the agent {name!r}",
                    f"its agents are {', '.join(self.members)}",
                    "Choose a task with these agents",
                )
        if len(agents) == 1:
            return self.members[agents[0]]
        return TeamPolicy({name: self.members[name] for name in agents})

    @property
    def widths(self) -> tuple[int, int]:
        """The hidden width of the first model and its number of layers."""
        return self._by_number[0].widths

    def language_models(self) -> dict[str, CausalPolicy]:
        """Return the models by their agents; each is saved in the folder of its name."""
        return dict(self.members)

    @property
    def engine(self) -> str:
        """The engines in use."""
        return ", ".join(dict.fromkeys(member.engine for member in self._by_number))

    @property
    def device(self) -> torch.device:
        """The device of the first model and of all results."""
        return self._by_number[0].device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights; the least exact one if they differ."""
        return min((member.dtype for member in self._by_number), key=lambda kind: torch.finfo(kind).bits)

    @property
    def precision(self) -> str:
        """The precision of products: "mixed" if any member's is, else "onednn" if any member's is."""
        found = {member.precision for member in self._by_number}
        return next((each for each in ("mixed", "onednn") if each in found), "float32")

    @property
    def score_dtype(self) -> torch.dtype:
        """The type of log-probs, entropies and values."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion."""
        return self._by_number[0].eos_ids

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that all models were built for."""
        return min((n for member in self._by_number if (n := member.max_positions) is not None), default=None)

    def encode(self, text: str) -> list[int]:
        """Encode plain text; see `CausalPolicy.encode`."""
        return self._by_number[0].encode(text)

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many plain texts at once."""
        return self._by_number[0].encode_all(texts)

    def encode_prompt(self, prompt: str | Sequence[Message]) -> list[int]:
        """Encode a prompt, text or chat messages."""
        return self._by_number[0].encode_prompt(prompt)

    def encode_prompts(self, prompts: Sequence[str | Sequence[Message]]) -> list[list[int]]:
        """Encode many prompts at once."""
        return self._by_number[0].encode_prompts(prompts)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`; see `CausalPolicy.decode`."""
        return self._by_number[0].decode(ids)

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each row."""
        return self._by_number[0].decode_all(rows)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs that every agent's policy has."""
        first, *others = self._by_number
        return tuple(name for name in first.outputs if all(name in other.outputs for other in others))

    def evaluate(self, tokens: Tokens, names: Sequence[str], /, *, grad: bool = False) -> dict[str, torch.Tensor]:
        """Return the outputs `names`, each row's by its agent's policy; see `CausalPolicy.evaluate`."""
        check_outputs(self, names)
        parts = {agent: self.member(agent).evaluate(part, names, grad=grad) for agent, _, part in by_agent(tokens)}
        return {name: _joined(tokens, {agent: found[name] for agent, found in parts.items()}) for name in names}

    def backward(self, tokens: Tokens, cotangents: Mapping[str, torch.Tensor], /) -> None:
        """Add the gradients of sum(cotangent * output), each row's to its agent's policy.

        Raises InputError for a cotangent that is not [B,T] of `tokens`, or a name that is not an output.
        """
        check_cotangents(self, tokens, cotangents)
        for agent, rows, part in by_agent(tokens):
            self.member(agent).backward(part, of_rows(cotangents, rows, part.max_response))

    def passes(self, tokens: Tokens, rows: Sequence[int]) -> list[list[int]]:
        """Divide `rows` into passes of one agent each that fit its token budget."""
        found = []
        for agent, own, _ in by_agent(tokens.rows(rows)):
            found += self.member(agent).passes(tokens, [rows[i] for i in own])
        return found

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every trainable parameter as agent.name; parameters of value heads are named value_head.agent.name."""
        for agent, member in self.members.items():
            for name, parameter in member.named_parameters():
                head, _, rest = name.partition(".")
                yield (f"value_head.{agent}.{rest}" if head == "value_head" else f"{agent}.{name}"), parameter

    def owners(self) -> list[list[nn.Parameter]]:
        """Return the trainable parameters of each agent."""
        return [member.parameters() for member in self._by_number]

    def save(self, folder: str | Path, *, adapter_only: bool = False) -> None:
        """Write a Hugging Face folder for each agent, named after it."""
        for agent, member in self.members.items():
            member.save(Path(folder) / agent, adapter_only=adapter_only)

    def copied(self, *, trainable: bool = True, value_head: bool = False) -> TeamPolicy:
        """Return a team of copies; see `CausalPolicy.copied`."""
        members = self.members.items()
        return TeamPolicy({agent: x.copied(trainable=trainable, value_head=value_head) for agent, x in members})

    def reference(self) -> FrozenTeam:
        """Return the frozen policies of the agents for KL terms."""
        return FrozenTeam([member.reference() for member in self._by_number])


def by_agent(tokens: Tokens) -> Iterator[tuple[int, list[int], Tokens]]:
    """Yield each agent that has rows, its rows, and their tokens.

    Raises InputError if rows do not name their agents.
    """
    if tokens.agents is None:
        raise InputError("rows without agents", "each row needs an agent, whose policy scores it", "Set Tokens.agents")
    for agent in sorted(set(tokens.agents)):
        rows = [row for row, owner in enumerate(tokens.agents) if owner == agent]
        yield agent, rows, tokens.rows(rows)


def _joined(tokens: Tokens, found: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """Put the agents' rows back into the order of `tokens`, [B,T]."""
    if not found:
        return torch.zeros(0, 0)
    order = [row for agent in sorted(found) for row in _rows_of(tokens, agent)]
    device = found[min(found)].device
    padded = [nn.functional.pad(x, (0, tokens.max_response - x.shape[1])).to(device) for _, x in sorted(found.items())]
    # `order` says where each row comes from; its argsort says where each is now.
    return torch.cat(padded)[torch.tensor(order).argsort().to(device)]


def _rows_of(tokens: Tokens, agent: int) -> list[int]:
    return [row for row, owner in enumerate(tokens.agents or ()) if owner == agent]
