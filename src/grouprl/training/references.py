"""The reference policies of a run, by name, and their log-probs of rows that return in later steps."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from grouprl.algorithms.references import FROZEN, Iterates, ReferenceRule
from grouprl.core.errors import RunError
from grouprl.core.json_types import State
from grouprl.policy.state import between
from grouprl.protocols import FollowingScorer, Policy, PolicyInputs, Scorer, distributed_policy

KEPT_POSITIONS = 2**22
"""Number of positions whose log-probs are kept for each reference: 16 MiB in float32. The least recently used row is
dropped first."""

NATS = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.05}
"""Nats by which the log-prob of a token may differ between two ways to compute it, by the type of the weights."""


class KnownRows:
    """Cached log-probs of rows, by their fingerprints, under a policy that does not change."""

    def __init__(self, positions: int = KEPT_POSITIONS) -> None:
        self.most, self.positions = positions, 0
        self.rows: OrderedDict[bytes, Tensor] = OrderedDict()
        self.allowed: float | None = None
        """Nats by which restored log-probs may differ from those computed again; None: nothing is to be compared."""

    def logp(self, scorer: Scorer[PolicyInputs], inputs: PolicyInputs) -> Tensor:
        """Return log-probs [B,T] on the CPU; only unknown rows are scored, and after `restore` one that is known.

        Raises:
            RunError: the known row has other log-probs than the checkpoint says.
        """
        keys = inputs.fingerprints()
        length_b = inputs.present_bt().sum(1).tolist()
        new = [row for row, key in enumerate(keys) if key not in self.rows]
        # Taken out first: `_keep` may drop rows of this very batch from the cache.
        found = {key: self.rows[key] for key in keys if key in self.rows}
        again = [row for row, key in enumerate(keys) if key in found and length_b[row]][: int(self.allowed is not None)]
        asked = sorted([*new, *again])
        if asked:
            logp_nt = scorer.logp(inputs if len(asked) == len(keys) else inputs.rows(asked)).cpu()
            # A view would keep the log-probs of the whole pass in memory as long as one of its rows is known.
            scored = {row: logp_nt[n, : length_b[row]].clone() for n, row in enumerate(asked)}
            self._compare([(found[keys[row]], scored[row]) for row in again])
            found |= {keys[row]: scored[row] for row in new}
        self._keep({key: found[key] for key in keys})
        return torch.nn.utils.rnn.pad_sequence([found[key] for key in keys], batch_first=True)

    def _keep(self, found: Mapping[bytes, Tensor]) -> None:
        for key, logp_t in found.items():
            self.positions += len(logp_t) if key not in self.rows else 0
            self.rows[key] = logp_t
            self.rows.move_to_end(key)
        while self.positions > self.most:
            self.positions -= len(self.rows.popitem(last=False)[1])

    def clear(self) -> None:
        """Remove all rows, because the policy has changed."""
        self.rows.clear()
        self.positions, self.allowed = 0, None

    def state(self) -> State:
        """Return the state for a checkpoint."""
        return {"keys": list(self.rows), "logp": list(self.rows.values())}

    def _compare(self, rows: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Compare restored log-probs with what the reference says now, once."""
        for restored_t, now_t in rows:
            worst, allowed = float((restored_t - now_t).abs().max()), self.allowed or 0.0
            # Not `worst > allowed`, which is false for NaN.
            if not worst <= allowed:
                raise RunError(
                    "the reference is not the one of the checkpoint: the log-prob of a token that was kept there "
                    f"differs by {worst:.3g} nats, where at most {allowed:g} are due to arithmetic. Its weights, or "
                    "what runs them, have changed since. Give the run the reference that it began with "
                    "(model.reference), or begin a new one"
                )
            self.allowed = None

    def restore(self, state: State, allowed: float) -> None:
        """Replace the rows by those of a checkpoint's `state`; one is compared when rows are read again."""
        self.clear()
        self.allowed = allowed
        self._keep(dict(zip(state["keys"], state["logp"], strict=True)))


class CopiedFollower:
    """A copy of a policy in this process that follows it."""

    def __init__(self, policy: Policy[PolicyInputs]) -> None:
        self._policy, self._model = policy, policy.copied()

    def logp(self, inputs: PolicyInputs) -> Tensor:
        """Return the log-prob of every action under the copy."""
        return self._model.logp(inputs)

    def whole(self) -> Policy[PolicyInputs]:
        """Return the copy as a policy to sample from."""
        return self._model

    def move(self, share: float) -> None:
        """Move the weights by `share` of the way towards the policy's."""
        now, before = self._policy.trainable_state(), self._model.trainable_state()
        self._model.load_trainable_state({name: between(x, now[name], share) for name, x in before.items()})

    def trainable_state(self) -> dict[str, Tensor]:
        """Return the weights by name."""
        return self._model.trainable_state()

    def load_trainable_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy what `trainable_state` returned into the weights."""
        self._model.load_trainable_state(state)


def follower_of(policy: Policy[PolicyInputs], name: str) -> FollowingScorer[PolicyInputs]:
    """Return a copy of the policy as it is now that follows it: in parts where the policy is distributed."""
    spread = distributed_policy(policy)
    return CopiedFollower(policy) if spread is None else spread.follower(name)


class References:
    """The references of a run, by name: the frozen one, those that follow the policy, and their mixtures.

    Args:
        rules: the rule of each reference that parts of the method name.
        rows_return: whether rows return in later steps, so that their log-probs are kept.
    """

    def __init__(self, rules: Mapping[str, ReferenceRule], *, rows_return: bool = False) -> None:
        self.rules = dict(rules)
        self.frozen: Scorer[PolicyInputs] | None = None
        self.followers: dict[str, FollowingScorer[PolicyInputs]] = {}
        names = [FROZEN, *(name for name, rule in self.rules.items() if isinstance(rule, Iterates))]
        self.known = {name: KnownRows() for name in names} if rows_return else {}

    def __bool__(self) -> bool:
        return self.frozen is not None or bool(self.rules)

    def freeze(self, scorer: Scorer[PolicyInputs]) -> None:
        """Make `scorer` the frozen reference."""
        self.frozen = scorer
        if self.known:
            self.known[FROZEN].clear()

    def begin(self, policy: Policy[PolicyInputs]) -> None:
        """Start every reference that follows the policy as a copy of the current policy."""
        for name, rule in self.rules.items():
            if isinstance(rule, Iterates):
                self.followers[name] = follower_of(policy, name)

    def logp(self, name: str, inputs: PolicyInputs) -> Tensor:
        """Return the log-probs of rows under the reference `name`, [B,T] on the CPU, exactly 0 beyond a row's end."""
        rule = self.rules.get(name)
        if rule is not None and not isinstance(rule, Iterates):
            present_bt = inputs.present_bt()
            each = [self.logp(part, inputs) + math.log(weight) for part, weight in rule.weights.items()]
            return torch.where(present_bt, torch.stack(each).logsumexp(0), 0)
        scorer = self.frozen if name == FROZEN else self.followers[name]
        assert scorer is not None, "the plan keeps a frozen reference where a part reads it"
        return self.known[name].logp(scorer, inputs) if self.known else scorer.logp(inputs).cpu()

    def follow(self, step: int) -> None:
        """Move the references that are due at `step` towards the current policy, before its update."""
        due = {name: rule for name, rule in self.rules.items() if isinstance(rule, Iterates) and step % rule.every == 0}
        for name, rule in due.items():
            self.followers[name].move(rule.share)
            if self.known:
                self.known[name].clear()

    def state(self) -> State:
        """Return the state for a checkpoint, without the frozen reference: weights, and log-probs of known rows."""
        weights = {name: model.trainable_state() for name, model in self.followers.items()}
        return {"weights": weights, "known": {name: rows.state() for name, rows in self.known.items()}}

    def restore(self, state: State, policy: Policy[PolicyInputs]) -> None:
        """Restore the followers and the known rows from a checkpoint's state."""
        for name, weights in cast("dict[str, dict[str, Tensor]]", state["weights"]).items():
            self.followers[name] = follower_of(policy, name)
            self.followers[name].load_trainable_state(weights)
        for name, rows in state["known"].items():
            self.known[name].restore(rows, NATS.get(getattr(policy, "dtype", torch.float32), NATS[torch.float32]))
