"""A policy whose weights and optimiser are divided among several ranks, as rank 0 sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, cast

from torch import Tensor, nn

from grouprl.core.json_types import State
from grouprl.policy.devices import Precision
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.statistics import is_reading
from grouprl.policy.lora import is_adapted
from grouprl.policy.sharded import guide_work
from grouprl.policy.sharded import rank_work as work
from grouprl.policy.sharded.rank_policy import RankPolicy
from grouprl.policy.sharded.rank_work import Builders
from grouprl.policy.sharded.ranks import Ranks
from grouprl.policy.sharded.sharded_model import ShardedModel
from grouprl.policy.sharded.sharded_reference import ShardedFollower, ShardedReference
from grouprl.policy.sharded.sharded_weights import save_sharded
from grouprl.policy.sharded.vector_work import SpreadVectors, forget
from grouprl.policy.state import LogProbs, check_outputs
from grouprl.records.tokens import Tokens

Copies = Literal["none", "leader", "everywhere"]
"""Which ranks have a full copy."""
HEAD_NAMES = ("value_head.weight", "value_head.bias")


class ShardedPolicy(ShardedModel, LogProbs):
    """A transformers causal LM, sharded over ranks by FSDP2; see `ShardedModel`."""

    def __init__(self, ranks: Ranks, builders: Builders) -> None:
        super().__init__(ranks, builders)
        self._copies: Copies = "none"

    # --------------------------------------------------------------------------- what is known without any exchange

    @property
    def _policy(self) -> RankPolicy:
        return cast("RankPolicy", self._part)

    @property
    def temperature(self) -> float:
        """The temperature of log-probs, which are those of softmax(logits / temperature)."""
        return self._policy.temperature

    @temperature.setter
    def temperature(self, temperature: float) -> None:
        self.ranks.each(work.set_temperature, temperature)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs; see `CausalPolicy.outputs`."""
        return self._policy.outputs

    @property
    def whole_precision(self) -> Precision:
        """The precision with which a full copy computes products."""
        return self._part.whole_precision

    def language_models(self) -> dict[str, CausalPolicy]:
        """Return rank 0's full copy of the model, if it has one."""
        return {} if self._copies == "none" else {"": self.whole}

    @property
    def value_head(self) -> nn.Linear | None:
        """Rank 0's part of the value head."""
        return self._policy.value_head

    def value_weights(self) -> tuple[Tensor, Tensor]:
        """Return the weights of the value head, whole: [1,H] and its bias [1]."""
        found = dict(self.gathered(HEAD_NAMES))
        return found[HEAD_NAMES[0]], found[HEAD_NAMES[1]]

    def set_value_weights(self, weight_1d: Tensor, bias_1: Tensor) -> None:
        """Give the value head these weights, [1,H], and this bias, [1]."""
        self.load_state_of(work.POLICY, dict(zip(HEAD_NAMES, (weight_1d, bias_1), strict=True)))

    # ------------------------------------------------------- what a full copy provides: it is built when it is needed

    @property
    def whole(self) -> CausalPolicy:
        """A full copy of the current policy on rank 0, for inspection but not for training."""
        self._copy_on(everywhere=False)
        found: CausalPolicy = self.ranks.station.kept[work.WHOLE]
        return found

    def copy_everywhere(self, name: str = work.POLICY) -> None:
        """Have every rank keep a full copy to sample from, with the current weights of the policy, or of the copy of it
        that the ranks keep as `name`: it takes the place of the policy's until these are asked for.
        """
        self._copy_on(everywhere=True, name=name)

    def _copy_on(self, *, everywhere: bool, name: str = work.POLICY) -> None:
        wanted: Copies = "everywhere" if everywhere else "leader"
        if self._copies not in (wanted, "everywhere"):
            self.ranks.each(work.build_whole, everywhere)
            self._copies, self._held = wanted, None  # of the files, not of the current weights
        if self._held != name:
            self.ranks.each(work.renew_whole, name)
            self._held = name

    def influence(self, tokens: Tokens, group_b: Tensor, correct_b: Tensor, mask_bt: Tensor | None = None) -> Tensor:
        """Return each token's influence on the correct completions of its group, [B,T], computed on rank 0."""
        return self.whole.influence(tokens, group_b, correct_b, mask_bt)

    def hidden(self, tokens: Tokens) -> list[Tensor]:
        """Return each row's last hidden states, [T_b,H]."""
        cut = self.cut(tokens, range(len(tokens)))
        shares = [[None if rows is None else tokens.rows(rows) for rows in own] for own in cut]
        passes = [rows for own in cut[:: self.ranks.team] for rows in own if rows is not None]
        states = [each for own in self.ranks.call(work.hidden, shares)[:: self.ranks.team] for each in own]
        found: dict[int, Tensor] = {}
        for rows, states_md in zip(passes, states, strict=True):
            found |= zip(rows, states_md.split([len(tokens.response_ids[row]) for row in rows]), strict=True)
        return [found[row] for row in range(len(tokens))]

    def top(self, tokens: Tokens, k: int) -> tuple[Tensor, Tensor]:
        """Return ids and log-probs of the `k` likeliest tokens, [B,T,k], computed on rank 0."""
        return self.whole.top(tokens, k)

    # ----------------------------------------------------------------------------------------- what all ranks compute

    def evaluate(self, tokens: Tokens, names: Sequence[str], /, *, grad: bool = False) -> dict[str, Tensor]:
        """Return the outputs `names` of the responses of `tokens`; see `CausalPolicy.evaluate`.

        With `grad` the graph ends here: its backward pass runs the rows again, on all ranks (`backward`). Statistics
        are computed on rank 0.
        """
        check_outputs(self, names)
        own = tuple(name for name in names if not is_reading(name))
        read = [name for name in names if is_reading(name)]
        found = self.whole.evaluate(tokens, read) if read else {}
        found |= super().evaluate(tokens, own, grad=grad)
        return {name: found[name] for name in names}

    # ------------------------------------------------------------------------------------------------- its copies

    def reference(self) -> ShardedReference:
        """Return the frozen policy for KL terms: the base model if there are adapters, else a copy of the current
        policy.
        """
        if is_adapted(self._part.model):
            return ShardedReference(self, work.POLICY, base=True)
        return self.snapshot()

    def snapshot(self) -> ShardedReference:
        """Return a frozen copy of the current policy, adapters included."""
        self.ranks.each(work.keep_copy, work.REFERENCE)
        self.changed()
        return ShardedReference(self, work.REFERENCE)

    def other(self, builders: Builders) -> ShardedReference:
        """Return another model as the frozen reference, of which each rank builds its own part."""
        self.ranks.each(guide_work.build_reference, builders)
        self.changed()
        return ShardedReference(self, work.REFERENCE)

    def follower(self, name: str) -> ShardedFollower:
        """Return a copy of the current policy, in parts on the ranks, whose weights can move towards the policy's."""
        kept = f"follower {name}"
        self.ranks.each(work.keep_copy, kept)
        return ShardedFollower(self, kept)

    def copied(self, *, trainable: bool = True, value_head: bool = False) -> CausalPolicy:
        """Return a full copy of the current policy, only on rank 0."""
        found, names = self.whole.copied(value_head=value_head), {name for name, _ in self.named_parameters()}
        for name, parameter in found.model.named_parameters():
            parameter.requires_grad_(trainable and name in names)
        return found

    @contextmanager
    def vectors(self, store: State) -> Iterator[SpreadVectors]:
        """Open the vectors over the weights, in parts on the ranks; `store` may hold some that one process kept."""
        yield SpreadVectors(self.ranks, self.changed, store)
        self.ranks.each(forget)

    def gradient_norms(self, tokens: Tokens, block: Literal["embedding", "head", "trainable"] = "embedding") -> Tensor:
        """Return the gradient norm of each completion's log-prob, [B], computed on rank 0."""
        return self.copied().gradient_norms(tokens, block)

    def save(self, folder: str | Path, *, adapter_only: bool = False) -> None:
        """Write an ordinary Hugging Face folder from rank 0, tensor by tensor; see `CausalPolicy.save`."""
        save_sharded(self, Path(folder), adapter_only=adapter_only)


def as_sharded(policy: object) -> ShardedPolicy:
    """Return the policy of a process with ranks, which is spread over them."""
    assert isinstance(policy, ShardedPolicy)
    return policy
