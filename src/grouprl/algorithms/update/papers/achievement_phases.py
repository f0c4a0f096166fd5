"""PPO's steps, and every few rollouts a phase in which the policy's encoder learns to tell achievements (PPO-AD)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple, Protocol, Self, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.update.papers.achievement_steps import (
    Arrays,
    StepInputs,
    Unlockings,
    matched,
    next_unlocks,
    paid_by_action,
    shuffled_in_rows,
    steps_of,
    trajectories,
)
from grouprl.algorithms.update.transitions import Transitions
from grouprl.algorithms.update.update import UpdateSteps
from grouprl.core.answering import Answering
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.json_types import State
from grouprl.core.metric import Metric
from grouprl.core.numbers import Count, NonNegative, Positive
from grouprl.core.outputs import VALUE
from grouprl.protocols import PolicyInputs
from grouprl.records.serialize import packed_inputs, unpacked_inputs


@runtime_checkable
class AchievementPolicy(Protocol, metaclass=Answering):
    """A policy that represents achievements (`grouprl.policy.Achievements`)."""

    def represent(self, before: Arrays, after: Arrays, /) -> Tensor:
        """Return φ [N,H] of steps from one observation to another, of length 1."""

    def foresee(self, inputs: PolicyInputs, /) -> Tensor:
        """Return h [N,H] at every position, of length 1."""

    def kl_to(self, earlier: Self, inputs: PolicyInputs, /) -> Tensor:
        """Return KL(policy || earlier) at every position, [B,T], with a graph."""


class Term(NamedTuple):
    """The contrastive loss of one step, and what the policy is held to beside it."""

    name: str
    loss: Tensor
    inputs: PolicyInputs
    """[N] rows of one action."""
    target_n: Tensor
    """[N] targets of their values."""


@part("update")
class AchievementPhases(Transitions):
    """PPO-AD: after every `every`-th rollout, `passes` passes in which the encoder learns to tell achievements.

    An achievement is a step that was paid more than `above`. Two contrastive losses, each the cross entropy of which of
    two has the larger cosine to an anchor, at `temperature`: φ of an achievement has that of the same one of another
    trajectory nearer than that of any (the anchor has the gradient), and h at a time has φ of what its trajectory
    unlocks next nearer than h at another time (h has the gradient). Which ones are the same is found by entropic
    partial transport (`reg`, `iterations`) to up to `targets` other trajectories. Both hold the policy by `kl_coef`
    times KL(π || π before the phase), and its values by `value_coef` times (V - G)², G those of PPO. Trajectories are
    the rows since the last phase. Source: Moon et al. 2023 (arXiv:2307.03486), and the authors' code.

    *Differs from the authors' code*: a step takes `together` achievements or actions of any trajectories, theirs one
    trajectory; matches are found once a pass; the optimiser is that of PPO, theirs are of their own; an achievement by
    a trajectory's last action counts; values are not normalised.
    """

    reads_gradients = True
    needs_policy = AchievementPolicy, "achievements"
    metrics: ClassVar = {
        "match_loss": Metric(
            unit="nats",
            words="cross entropy of the same achievement of another trajectory against any achievement of it",
            good="falls; log 2 is that of a guess",
        ),
        "next_loss": Metric(
            unit="nats",
            words="cross entropy of the moment before an achievement against another moment of its trajectory",
            good="falls; log 2 is that of a guess",
        ),
        "matches": Metric(unit="pairs", words="achievements that were paired with one of another trajectory, a pass"),
        "phase_kl": Metric(unit="nats", words="mean KL of the policy from itself before the phase", good="near 0"),
        "phase_value_error": Metric(words="mean squared error of the values within the phase", good="falls"),
    }

    every: Count = 8
    passes: Count = 6
    together: Count = 512
    above: NonNegative = 0.1
    temperature: Positive = 0.1
    reg: Positive = 0.05
    iterations: Count = 100
    targets: Count = 16
    kl_coef: NonNegative = 1.0
    value_coef: NonNegative = 1.0
    equation = (
        "∇ over {size} actions;  after {every} rollouts, {passes} passes on log(1+exp((cos(φ,φ_any)-cos(φ,φ_same))/τ)) "
        "and log(1+exp((cos(h_s,φ_next)-cos(h_t,φ_next))/τ)),  each + {kl_coef:g}·KL(π||π_k) + {value_coef:g}·(V-G)²,  "
        "τ = {temperature:g}"
    )
    says = (
        "take the rollout's actions in random order, {size} per optimiser step; after every "
        "{every} rollouts make {passes} passes over them in which the encoder learns which achievements "
        "of different trajectories are the same, and which one comes next, while policy and values are held where "
        "they are"
    )

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take PPO's steps, and those of a phase where one is due; yield the metrics of each."""
        yield from super().__call__(learner, prepared)
        step, store = learner.context.step, learner.context.state_of(self)
        store.setdefault("rollouts", []).append(self.kept(learner, prepared))
        if (step + 1) % self.every == 0:
            found = self.stored(store.pop("rollouts"))
            if len(found.row_n):
                yield from Phase(self, learner, found).steps()

    def kept(self, learner: UpdateSteps, prepared: Batch) -> State:
        """Return what a phase needs of a rollout, as plain data."""
        if not isinstance(learner.policy, AchievementPolicy) or not isinstance(prepared.inputs, StepInputs):
            raise InputError(
                f"the update '{self.name}' on {type(learner.policy).__name__}",
                "it trains an encoder whose change represents achievements",
                "Take model: achievements",
            )
        inputs = prepared.inputs
        columns = {"paid": paid_by_action(prepared, self.name), "target": prepared.need("return_bt", self.name)}
        flat = {name: inputs.by_position(value_bt).clone() for name, value_bt in columns.items()}
        return {"inputs": packed_inputs(inputs), **flat}

    def stored(self, rollouts: Sequence[State]) -> Unlockings:
        """Return the trajectories of stored rollouts that unlock something."""
        first, *rest = (cast("StepInputs", unpacked_inputs(each["inputs"])) for each in rollouts)
        paid_n, target_n = (torch.cat([each[name] for each in rollouts]) for name in ("paid", "target"))
        return trajectories(first.joined(rest), paid_n, target_n, self.above)

    def contrast(self, anchor_nh: Tensor, near_nh: Tensor, far_nh: Tensor) -> Tensor:
        """Return the mean cross entropy of `near` against `far`, by their cosines with the anchor."""
        return contrast(anchor_nh, near_nh, far_nh, self.temperature)

    def idle(self, run: RunFacts) -> list[str]:
        """Say that no phase is ever due in a run of too few steps."""
        late = f"{self.name} has no phase: every = {self.every}, and the run has {run.steps} steps"
        return [late] * (self.every > run.steps)


def contrast(anchor_nh: Tensor, near_nh: Tensor, far_nh: Tensor, temperature: float) -> Tensor:
    """Return the mean cross entropy of `near` against `far`, by their cosines with the anchor; rows have length 1."""
    return softplus(((far_nh - near_nh) * anchor_nh).sum(-1) / temperature).mean()


class Phase:
    """One auxiliary phase: the policy as it was before it, and the steps."""

    def __init__(self, part: AchievementPhases, learner: UpdateSteps, found: Unlockings) -> None:
        self.part, self.learner, self.found = part, learner, found
        self.luck = learner.context.rng(part)
        self.before = learner.policy.copied(trainable=False)

    def steps(self) -> Iterator[dict[str, float]]:
        """Take the steps of all passes; yield the metrics of each."""
        for _ in range(self.part.passes):
            for term in self.matches():
                yield self.take(term)
            for term in self.foresights():
                yield self.take(term)

    def matches(self) -> Iterator[Term]:
        """Yield the terms of achievements that are paired across trajectories."""
        part, policy, found = self.part, self.learner.policy, self.found
        with torch.no_grad():
            phi_kh = policy.represent(*steps_of(found, found.unlocked_n.nonzero()[:, 0]))
        pairs = matched(found, phi_kh, part.targets, part.reg, part.iterations, self.luck)
        self.learner.context.note("matches", len(pairs.source_p), "mean")
        for chunk in self.chunks(len(pairs.source_p)):
            anchor_nh = policy.represent(*steps_of(found, pairs.source_p[chunk]))
            with torch.no_grad():
                same_nh, other_nh = (policy.represent(*steps_of(found, x[chunk])) for x in pairs[1:])
            held_n = torch.from_numpy(self.luck.integers(len(found.row_n), size=len(chunk)))
            yield self.term("match_loss", part.contrast(anchor_nh, same_nh, other_nh), held_n)

    def foresights(self) -> Iterator[Term]:
        """Yield the terms that pair each action with the achievement that its trajectory unlocks next."""
        found, policy = self.found, self.learner.policy
        next_n, known_n = next_unlocks(found.row_n, found.unlocked_n)
        other_n = shuffled_in_rows(found.row_n, self.luck)
        for chunk in self.chunks(len(found.row_n)):
            with torch.no_grad():
                anchor_nh = policy.represent(*steps_of(found, next_n[chunk], known_n[chunk]))
            both_n = torch.cat([chunk, other_n[chunk]])
            here_nh, there_nh = policy.foresee(found.inputs.rows(both_n.tolist())).chunk(2)
            yield self.term("next_loss", self.part.contrast(anchor_nh, here_nh, there_nh), both_n)

    def term(self, name: str, loss: Tensor, held_n: Tensor) -> Term:
        """Return a loss, with the actions in whose states the policy is kept as it was."""
        return Term(name, loss, self.found.inputs.rows(held_n.tolist()), self.found.target_n[held_n])

    def take(self, term: Term) -> dict[str, float]:
        """Take the step of a term; return its metrics."""
        part, policy = self.part, self.learner.policy
        kl = policy.kl_to(self.before, term.inputs).mean()
        value_n = policy.evaluate(term.inputs, (VALUE,), grad=True)[VALUE][:, 0]
        error = (value_n - term.target_n.to(value_n)).square().mean()
        (term.loss + part.kl_coef * kl + part.value_coef * error).backward()
        self.learner.apply()
        pairs = {term.name: float(term.loss.detach())}
        return {**pairs, "phase_kl": float(kl.detach()), "phase_value_error": float(error.detach())}

    def chunks(self, count: int) -> Iterator[Tensor]:
        """Yield the numbers of the pairs that each step takes, in random order."""
        for chunk in np.array_split(self.luck.permutation(count), -(-count // self.part.together) or 1):
            if len(chunk):
                yield torch.from_numpy(chunk)
