"""A natural gradient step on a rollout and, with actions of the policy's own, on stored states (HNPG)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Protocol, Self, cast, runtime_checkable

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.returns import gae
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.update.papers.action_values import ActionValues, StoredSteps, stored_transitions
from grouprl.algorithms.update.papers.trust_region import TrustRegion
from grouprl.algorithms.update.transitions import actions_apart
from grouprl.algorithms.update.update import Update, UpdateSteps
from grouprl.core.answering import Answering
from grouprl.core.batch import SOURCES, Batch
from grouprl.core.errors import InputError
from grouprl.core.importing import import_object
from grouprl.core.metric import Metric
from grouprl.core.numbers import Count, NonNegative, Positive, Share
from grouprl.protocols import Discrete, PolicyInputs


@runtime_checkable
class PlainStates(Protocol, metaclass=Answering):
    """Inputs that are one array of observations and one of actions (`grouprl.policy.ArrayInputs`)."""

    @property
    def observation_bt(self) -> Tensor:
        """[B,T,…] what was seen before each action."""

    @property
    def action_bt(self) -> Tensor:
        """[B,T] the actions."""

    def apart(self, observation_n: Tensor, action_n: Tensor) -> PolicyInputs:
        """Return a row for each observation and action."""

    def finals(self) -> Self | None:
        """Return rows of the final observations alone; None if they are not known."""


@part("update")
class HybridStep(Update):
    """HNPG: a critic f(s, a) of the rollout and of stored data, and TRPO's step on the states of both.

    f is fitted to mean (f - G)² over the rollout, G its returns, plus mean (f - [r + γ·Σ_a π(a|s')f(s', a)])² over
    `share` times as many stored steps, by `sweeps` times `steps` steps of Adam. The rollout's advantages are
    generalised ones with V(s) = Σ_a π(a|s)f(s, a); in each stored state the policy takes a new action, whose advantage
    is f(s, a) - V(s). One natural gradient step climbs the mean over both. What was done in stored data teaches f
    alone, and the rollout's advantages rest on what it was paid itself.

    `stored` names a function that returns the trajectories. Source: Zhou et al. 2023 (arXiv:2311.08384), and the
    authors' code. *Differs from the authors' code*: one critic and policy for all steps in place of one each, so that
    sweeps stand for the recursion from the last step to the first; the mean over π in place of one sampled action.
    """

    reads_gradients: ClassVar[bool] = True
    positions_alone: ClassVar[bool] = True
    metrics: ClassVar = {
        "own_value_error": Metric(words="mean squared difference of the action values to the rollout's returns"),
        "stored_value_error": Metric(
            words="mean squared difference of the action values to the targets of stored steps", good="falls"
        ),
    }

    stored: str = ""
    share: NonNegative = 1.0
    gamma: Share = 0.99
    lam: Share = 0.95
    sweeps: Count = 5
    steps: Count = 30
    lr: Positive = 3e-3
    width: Count = 64
    delta: Positive = 0.01
    damping: NonNegative = 0.1
    iterations: Annotated[int, Field(ge=1)] = 10
    backtracks: Annotated[int, Field(ge=1)] = 10
    equation = (
        "min_f mean(f(s,a) - G)² + mean_stored(f(s,a) - [r + {gamma:g}·Σ_a' π(a'|s')f(s',a')])²;  then TRPO's step of "
        "mean KL {delta:g} on rollout and stored states, a ~ π in these, A = f(s,a) - Σ_a' π(a'|s)f(s,a')"
    )

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Fit the critic and take the step; yield its metrics."""
        states = BothStates(self, learner, plain_states(prepared, self.name))
        if not bool(prepared.active_bt.any()):
            return
        drawn = states.drawn(int(prepared.active_bt.sum()))
        metrics = states.fit(prepared, drawn)
        ready = prepared.replace(advantage_bt=self.credited(states.valued(prepared)))
        step = learner.method.compute_loss_weights(states.joined(ready, drawn))
        yield {**metrics, **self.climber().climb(learner.without_critic(), step)}

    def credited(self, valued: Batch) -> Tensor:
        """Return generalised advantages [B,T] of rows that have values; 0 where they do not count."""
        adv_bt = gae(valued, self.gamma, torch.full_like(valued.reward_b, self.lam))
        return torch.where(valued.active_bt, adv_bt, 0)

    def climber(self) -> TrustRegion:
        """Return the part that takes the natural gradient step."""
        return TrustRegion(
            delta=self.delta, damping=self.damping, iterations=self.iterations, backtracks=self.backtracks
        )

    @override
    def words(self) -> str:
        return (
            f"fit values of actions to the rollout's returns and to stored steps ({self.stored or 'none yet'}; "
            f"{self.sweeps} sweeps of {self.steps} steps, discount {self.gamma:g}), then one natural gradient step of "
            f"mean KL {self.delta:g} on the rollout and on {self.share:g} times as many stored states with actions of "
            "the policy's own"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Say that stored data have no effect without a share, and the optimiser none on the policy."""
        none = [f"{self.name} has no stored data: its share is 0, which leaves TRPO with a critic of its own"]
        return [*none * (self.share == 0), f"optim.* has no effect: {self.name} sets its step by delta"]

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse to work without stored data, and half precision."""
        where = [f"{self.name} learns from stored trajectories too. Set method.stored to a function, pkg.module:name"]
        found = where * (self.share > 0 and not self.stored)
        return [*found, *TrustRegion().refuse(run)]


class BothStates:
    """The critic f of a step, and the policy's chances in any state."""

    def __init__(self, part: HybridStep, learner: UpdateSteps, inputs: PlainStates) -> None:
        self.part, self.learner, self.inputs = part, learner, inputs
        space = getattr(getattr(learner.policy, "spaces", None), "action", None)
        if not isinstance(space, Discrete):
            raise InputError(
                f"the update '{part.name}' with actions in {space}",
                "it has the value of every action",
                "Take a task whose actions are Discrete, or trpo",
            )
        self.actions, self.luck = space.count, learner.context.rng(part)
        self.numbers = int(inputs.observation_bt[0, 0].numel())
        self.shape = inputs.observation_bt.shape[2:]
        store = learner.context.state_of(part)
        seed = int(self.luck.integers(2**62))
        self.values = ActionValues(store, self.numbers, self.actions, part.width, seed)

    def drawn(self, count: int) -> StoredSteps:
        """Return stored steps for a rollout of `count` actions, without repetition if there are enough."""
        if self.part.share == 0:
            return empty(self.numbers)
        whole = self._whole()
        number = round(self.part.share * count)
        return whole.take(self.luck.choice(len(whole), number, replace=number > len(whole)))

    def _whole(self) -> StoredSteps:
        kept = self.learner.context.cache_of(self.part)
        if "transitions" not in kept:
            found = import_object(self.part.stored, "function of stored trajectories")
            data = found() if callable(found) else found
            kept["transitions"] = stored_transitions(data, self.part.stored, self.actions)
        whole: StoredSteps = kept["transitions"]
        if whole.seen_nd.shape[1] != self.numbers:
            raise InputError(
                f"'{self.part.stored}' has observations of {whole.seen_nd.shape[1]} numbers",
                f"those of the environment have {self.numbers}",
                "Store what this environment shows",
            )
        return whole

    def chances(self, seen_nd: Tensor) -> Tensor:
        """Return the policy's probability of each action, [N,A]."""
        every_na = torch.arange(self.actions).expand(len(seen_nd), -1)
        shown = seen_nd.reshape(-1, *self.shape).repeat_interleave(self.actions, 0)
        logp_n = self.learner.policy.logp(self.inputs.apart(shown, every_na.flatten()))
        found: Tensor = logp_n.reshape(-1, self.actions).exp().cpu().float()
        return found

    def worth(self, seen_nd: Tensor) -> Tensor:
        """Return V(s) = Σ_a π(a|s)f(s, a), [N]."""
        return (self.chances(seen_nd) * self.values(seen_nd)).sum(-1)

    def valued(self, batch: Batch) -> Batch:
        """Return rows with the values of their states, and of the final states of rows that a limit cut off."""
        value_bt = torch.zeros(batch.size, dtype=batch.dtype)
        value_bt[batch.mask_bt] = self.worth(flat_states(self.inputs)[batch.mask_bt]).to(batch.dtype)
        finals = self.inputs.finals()
        known = finals is not None and batch.truncated_b is not None
        last_b = self.worth(flat_states(cast("PlainStates", finals))[:, 0]).to(batch.dtype) if known else None
        return batch.replace(value_bt=value_bt, final_value_b=last_b)

    def fit(self, batch: Batch, drawn: StoredSteps) -> dict[str, float]:
        """Fit f; return the errors it is left with."""
        valued, part = self.valued(batch), self.part
        return_bt = gae(valued, part.gamma, torch.ones_like(valued.reward_b)) + valued.need("value_bt", part.name)
        known_bt = batch.active_bt
        own, others = self.values.fit(
            flat_states(self.inputs)[known_bt],
            self.inputs.action_bt[known_bt],
            return_bt[known_bt].float(),
            drawn,
            self.chances(drawn.next_nd) if len(drawn) else torch.zeros(0, self.actions),
            gamma=part.gamma,
            sweeps=part.sweeps,
            steps=part.steps,
            lr=part.lr,
        )
        return {"own_value_error": own, "stored_value_error": others}

    def joined(self, ready: Batch, drawn: StoredSteps) -> Batch:
        """Return a row for each action of the rollout and for each stored state with an action of the policy's own."""
        apart, count = actions_apart(ready), len(drawn)
        chance_ma = self.chances(drawn.seen_nd) if count else torch.zeros(0, self.actions)
        action_m = sampled(chance_ma, self.luck)
        adv_m = action_advantages(self.values(drawn.seen_nd), chance_ma, action_m)
        known_bt = ready.active_bt
        inputs = self.inputs.apart(
            torch.cat([self.inputs.observation_bt[known_bt], drawn.seen_nd.reshape(-1, *self.shape)]),
            torch.cat([self.inputs.action_bt[known_bt], action_m]),
        )
        index = torch.cat([torch.arange(apart.size[0]), torch.zeros(count, dtype=torch.int64)])
        source_b = torch.full((len(index),), SOURCES["replay"])
        source_b[: apart.size[0]] = 0 if apart.source_b is None else apart.source_b
        return apart.rows(index).replace(
            inputs=inputs,
            group_b=torch.arange(len(index)),
            source_b=source_b,
            old_bt=self.learner.policy.logp(inputs).cpu(),
            advantage_bt=torch.cat([apart.need("advantage_bt", self.part.name), adv_m[:, None].to(ready.dtype)]),
        )


def plain_states(batch: Batch, name: str) -> PlainStates:
    """Return the inputs of a batch, if a row is one array of observations.

    Raises:
        InputError: rows are not arrays, or have named ones, a context or masks.
    """
    inputs = batch.inputs
    masks = [getattr(inputs, name, None) for name in ("legal_bta", "final_legal_ba")]
    more = getattr(inputs, "context_b", None) or any(mask is not None for mask in masks)
    if not isinstance(inputs, PlainStates) or not isinstance(inputs.observation_bt, Tensor) or more:
        raise InputError(
            f"the update '{name}' on {type(inputs).__name__}",
            "a state is one array, without a mask and without a context",
            "Take a task whose observations are one array, and model: mlp",
        )
    return inputs


def flat_states(inputs: PlainStates) -> Tensor:
    """Return the observations as rows of numbers, [B,T,D] float32."""
    return inputs.observation_bt.reshape(*inputs.observation_bt.shape[:2], -1).float()


def sampled(chance_na: Tensor, luck: np.random.Generator) -> Tensor:
    """Return an action for each row of probabilities, [N], by inverting the distribution function."""
    below_na = chance_na.double().cumsum(-1)
    uniform_n = torch.from_numpy(luck.random(len(chance_na)))[:, None] * below_na[:, -1:]
    return torch.searchsorted(below_na, uniform_n, right=True)[:, 0].clamp(max=chance_na.shape[1] - 1)


def action_advantages(value_na: Tensor, chance_na: Tensor, action_n: Tensor) -> Tensor:
    """Return f(s, a) - Σ_a' π(a'|s)f(s, a') of one action in each state, [N]."""
    return value_na.gather(1, action_n[:, None])[:, 0] - (chance_na * value_na).sum(-1)


def empty(numbers: int) -> StoredSteps:
    """Return a collection without stored steps, for observations with so many numbers."""
    none_n = torch.zeros(0)
    return StoredSteps(torch.zeros(0, numbers), none_n.long(), none_n, torch.zeros(0, numbers), none_n.bool())
