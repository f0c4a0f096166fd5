"""A method: a composition of parts, as data. It sees a Batch and log-probs, never a model."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.aggregate.aggregate import Aggregate
from grouprl.algorithms.filter.filter import unmasked
from grouprl.algorithms.losses import TokenLoss, at_tokens, means, paired, with_shares
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.objective.ratio import LOG_LIMIT
from grouprl.algorithms.part import KINDS, Part
from grouprl.algorithms.references import ReferenceRule, references_of
from grouprl.algorithms.stage_checks import (
    call,
    changed_batch,
    check_part,
    losses_of,
    one_of,
    pairs_found,
    rows_of,
    token_values,
)
from grouprl.core.batch import Batch
from grouprl.core.batch_rules import check_whole, numbered
from grouprl.core.errors import InputError
from grouprl.core.outputs import ENTROPY, LOG_PROB, VALUE

if TYPE_CHECKING:  # only names of types: what composes a method does not load what samples and trains
    from torch import Tensor

    from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
    from grouprl.algorithms.critic.critic import Critic
    from grouprl.algorithms.data_part import Allocation, Augmentation, Buffer, Curriculum, Pretraining, SamplingRule
    from grouprl.algorithms.filter.filter import Filter
    from grouprl.algorithms.prune.prune import Prune
    from grouprl.algorithms.refill.refill import Refill
    from grouprl.algorithms.regularize.regularize import Regularizer
    from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
    from grouprl.algorithms.token_gate.token_gate import TokenGate
    from grouprl.algorithms.token_weight.token_weight import TokenWeight
    from grouprl.algorithms.update.update import Update


P = ParamSpec("P")
T = TypeVar("T")


def _without_gradients(act: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function like `torch.no_grad()`, which would need torch where this module is imported."""

    @functools.wraps(act)
    def acted(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch.no_grad():
            return act(*args, **kwargs)

    return acted


@dataclass(frozen=True)
class Loss:
    """A scalar to minimise and its metrics; both add up over the micro-batches of one optimiser step."""

    value: Tensor
    metrics: Mapping[str, Tensor]


@dataclass(frozen=True)
class Method:
    """A composition of parts, in the order in which they act.

    `prepare` runs reward_transform, filter, advantage, advantage_transform, prune, token_weight and aggregate; `loss`
    runs objective, token_gate and regularize.
    """

    objective: Objective
    advantage: Advantage
    aggregate: Aggregate
    reward_transform: tuple[RewardTransform, ...] = ()
    filter: tuple[Filter, ...] = ()
    advantage_transform: tuple[AdvantageTransform, ...] = ()
    prune: tuple[Prune, ...] = ()
    token_weight: tuple[TokenWeight, ...] = ()
    token_gate: tuple[TokenGate, ...] = ()
    regularize: tuple[Regularizer, ...] = ()
    critic: Critic | None = None
    curriculum: Curriculum | None = None
    allocation: Allocation | None = None
    sampling: SamplingRule | None = None
    augment: tuple[Augmentation, ...] = ()
    refill: Refill | None = None
    buffer: Buffer | None = None
    pretrain: tuple[Pretraining, ...] = ()
    update: Update | None = None
    greedy_baseline: bool = False
    """Whether one greedy completion per prompt must be sampled and scored (ReMax)."""
    on_policy: bool = False
    """Whether the method is only right with exactly one update per rollout."""
    name: str = "custom"
    settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise InputError if a stage holds something that is not a part of its kind."""
        for stage in KINDS:
            value = getattr(self, stage)
            for each in value if isinstance(value, tuple) else (value,):
                if each is not None or stage in ("objective", "advantage", "aggregate"):
                    check_part(stage, each, self.name)
        beside = [p.name for p in (*self.token_gate, *self.regularize) if p.log_probs and not self.reads_log_probs]
        if beside or (self.critic is not None and not self.reads_log_probs):
            raise InputError(
                f"{(*beside, 'the critic')[0]} reads tokens, but the objective {self.objective.name} does not",
                "it reads scores of whole rows, and a model that gives these has no log-probs",
                "Leave it out",
            )

    def parts(self) -> Iterator[Part]:
        """Yield every part in the order in which it acts, each before the parts that it holds."""
        yield from self._whole

    @cached_property
    def _whole(self) -> tuple[Part, ...]:
        return tuple(each for part in self._by_stage() for each in part.whole())

    def _by_stage(self) -> Iterator[Part]:
        yield from (
            *self.reward_transform,
            *self.filter,
            self.advantage,
            *self.advantage_transform,
            *self.prune,
            *self.token_weight,
            *self.token_gate,
        )
        yield self.objective
        yield self.aggregate
        yield from self.regularize
        data = (self.curriculum, self.allocation, self.sampling, *self.augment, self.refill, self.buffer)
        yield from (p for p in (self.critic, *data, *self.pretrain, self.update) if p is not None)

    def _in_loss(self) -> tuple[Part, ...]:
        """Return the parts that see the policy's current log-probs."""
        return tuple(each for p in (self.objective, *self.token_gate, *self.regularize) for each in p.whole())

    @cached_property
    def couples(self) -> str:
        """The rows that the loss must see together: 'sequence', 'group' or 'batch'."""
        order = ("sequence", "group", "batch")
        return max((p.couples for p in self._in_loss()), key=order.index)

    @cached_property
    def reads_log_probs(self) -> bool:
        """True if the loss reads log-probs of tokens; if not, it reads scores of whole rows."""
        return all(p.log_probs for p in self.objective.whole())

    @property
    def phases(self) -> int:
        """Number of times that the optimiser steps of a rollout are taken."""
        return 1 if self.update is None else self.update.phases

    @property
    def cuts_rows(self) -> bool:
        """True if optimiser steps take single actions, so that batch.minibatches does not say how many there are."""
        return self.update is not None and self.update.cuts_rows

    def steps_of(self, epochs: int, minibatches: int, actions: int) -> int:
        """Return how many optimiser steps a rollout gets that has at most so many actions."""
        return epochs * minibatches if self.update is None else self.update.steps_of(epochs, minibatches, actions)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the model's outputs that the loss reads: log-probs, values of a critic, and what parts ask for."""
        asked = [name for p in self._in_loss() for name in p.outputs()]
        first = [LOG_PROB] if self.reads_log_probs else []
        return tuple(dict.fromkeys([*first, *asked, *([] if self.critic is None else [VALUE])]))

    def references(self) -> dict[str, ReferenceRule]:
        """Return the rule of each reference that the parts name besides the frozen one."""
        return references_of(self.parts())

    def of_own_samples(self) -> list[Part]:
        """Return the parts whose formula is right only for completions that the policy samples.

        The objective is not among them where no advantage is negative: it is then a likelihood of chosen completions.
        """
        likelihood = self.advantage.imitates()
        return [each for each in self.parts() if each.own_samples and not (likelihood and each.kind == "objective")]

    def needs(self) -> tuple[str, ...]:
        """Return the names of the Batch fields that the method reads besides mask, group and reward."""
        return self._needs

    @cached_property
    def _needs(self) -> tuple[str, ...]:
        names = [name for p in self.parts() for name in p.needs()]
        return tuple(dict.fromkeys([*names, *(["greedy_reward_b"] if self.greedy_baseline else [])]))

    def prepare(self, batch: Batch) -> Batch:
        """Compute advantages of a whole rollout batch and the weights of one optimiser step of all its rows.

        Fills advantage_bt and weight_bt. Warns if the method also changes how optimiser steps are taken (`update`),
        which `prepare` and `loss` leave out.
        """
        if self.update is not None:
            warnings.warn(
                f"the method '{self.name}' acts in its optimiser steps too, and prepare and loss leave that out: "
                f"{self.update.words()}. Train with grouprl's trainer, or take the steps with method.update",
                stacklevel=2,
            )
        return self.compute_loss_weights(self.compute_advantages(batch))

    @_without_gradients
    def compute_advantages(self, batch: Batch) -> Batch:
        """Transform rewards, filter rows and compute advantages and multipliers with statistics of the whole batch."""
        batch = _blank_outside(batch).replace(raw_reward_b=batch.reward_b)
        for step in (*self.reward_transform, *self.filter):
            batch = changed_batch(step, batch)
        if self.critic is not None:
            return_bt = token_values(self.critic, batch.active_bt, self.critic.targets, batch)
            batch = batch.replace(return_bt=return_bt)
        adv_bt = token_values(self.advantage, batch.active_bt, self.advantage, batch)
        for normalize in self.advantage_transform:
            adv_bt = token_values(normalize, batch.active_bt, normalize, adv_bt, batch)
        batch = batch.replace(advantage_bt=torch.where(batch.active_bt, adv_bt, 0))
        for prune in self.prune:
            batch = changed_batch(prune, batch)
            batch = batch.replace(advantage_bt=torch.where(batch.active_bt, batch.need("advantage_bt", "prune"), 0))
        for weight in self.token_weight:
            factor_bt = token_values(weight, batch.mask_bt, weight, batch)
            known_bt = batch.multiplier_bt
            batch = batch.replace(multiplier_bt=factor_bt if known_bt is None else known_bt * factor_bt)
        return batch

    @_without_gradients
    def compute_loss_weights(self, batch: Batch) -> Batch:
        """Compute the aggregation weights of one optimiser step from all its rows."""
        weight_bt = unmasked(token_values(self.aggregate, batch.active_bt, self.aggregate, batch), batch)
        batch = batch.replace(weight_bt=weight_bt, **numbered(batch.group_b))
        if (index_e2 := pairs_found(self.objective, batch)) is not None:
            batch = paired(batch, index_e2)
        for term in self.regularize:
            batch = one_of(term, Batch, term.compute_loss_weights, batch)
        batch = with_shares(batch, ~self.zero_rows(batch))
        return one_of(self.objective, Batch, self.objective.compute_loss_weights, batch)

    def loss(
        self,
        logp_bt: Tensor | None,
        batch: Batch,
        entropy_bt: Tensor | None = None,
        *,
        outputs: Mapping[str, Tensor] | None = None,
    ) -> Loss:
        """Return the loss of (part of) an optimiser step, differentiable in `logp_bt`, `entropy_bt` and `outputs`
        ([B,T] each, or [B] for an output of whole rows).

        `outputs` are the model's outputs besides entropies that parts ask for (`Method.outputs`), by name; parts read
        them in batch.stats, or those of whole rows in batch.row_outputs. `logp_bt` is None for a method that reads
        none.

        `batch` holds rows of a batch that went through `prepare` (or `compute_advantages` and `compute_loss_weights`).
        Values and metrics of the micro-batches of one step add up to those of the whole step; a method with `couples`
        'group' needs whole groups, one with 'batch' the whole step.

        Raises: InputError: wrong shapes; an incomplete group or step whose rows the loss couples.
        """
        check_whole(batch, self.couples, self.name)
        weight_bt = batch.need("weight_bt", "method.loss (call method.prepare first)")
        logp_bt = self._log_probs(logp_bt, batch)
        if logp_bt.shape != batch.mask_bt.shape:
            raise InputError(f"logp_bt has shape {list(logp_bt.shape)}", f"it must be {list(batch.mask_bt.shape)}")
        whole_bt, logp_bt = logp_bt, torch.where(batch.mask_bt, logp_bt, 0)
        if entropy_bt is not None:
            entropy_bt = torch.where(batch.mask_bt, entropy_bt, 0)
        if outputs:
            batch = _with_outputs(batch, outputs)
        if entropy_bt is not None and ENTROPY in self.objective.outputs():
            batch = batch.replace(stats={**batch.stats, ENTROPY: entropy_bt})
        surrogate = losses_of(self.objective, batch, self.objective, logp_bt, batch)
        policy_bt = weight_bt * at_tokens(surrogate, batch)
        if batch.multiplier_bt is not None:
            policy_bt = policy_bt * batch.multiplier_bt
        gate_bts = self._gates(logp_bt.detach(), batch, entropy_bt)
        for gate_bt in gate_bts.values():
            policy_bt = policy_bt * gate_bt
        value = policy_bt.sum()
        gated = {f"gated/{name}": (gate_bt == 0).to(batch.dtype) for name, gate_bt in gate_bts.items()}
        found = TokenLoss(policy_bt, {**gated, **_drift(logp_bt, batch)})
        metrics = {"policy_loss": value.detach(), **means(surrogate, batch), **means(found, batch)}
        for term in self.regularize:
            extra = losses_of(term, batch, term, whole_bt if term.beyond else logp_bt, batch, entropy_bt)
            term_value = (unmasked(call(term, term.weights, batch), batch) * at_tokens(extra, batch)).sum()
            value = value + term_value
            name = term.name.removesuffix("_loss")
            metrics |= {f"{name}_loss": term_value.detach(), **means(extra, batch)}
        return Loss(value, metrics)

    def _log_probs(self, logp_bt: Tensor | None, batch: Batch) -> Tensor:
        """Return the log-probs, or zeros that nothing reads where the loss needs none."""
        if logp_bt is not None:
            return logp_bt
        if self.reads_log_probs:
            raise InputError("logp_bt is None", f"the loss of '{self.name}' reads log-probs of tokens", "Pass them")
        return torch.zeros(batch.mask_bt.shape, dtype=batch.dtype, device=batch.mask_bt.device)

    def _gates(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None) -> dict[str, Tensor]:
        """Yield the factors [B,T] of each gate, without gradient."""
        given_bt = None if entropy_bt is None else entropy_bt.detach()
        return {
            gate.name: token_values(gate, batch.active_bt, gate, logp_bt, batch, given_bt) for gate in self.token_gate
        }

    def value_loss(self, value_bt: Tensor, batch: Batch) -> Loss:
        """Return the critic's loss of (part of) an optimiser step, already multiplied by its coefficient."""
        if self.critic is None:
            raise InputError(f"method '{self.name}' has no critic", "only a method with a critic has a value loss")
        out = losses_of(self.critic, batch, self.critic, torch.where(batch.mask_bt, value_bt, 0), batch)
        value = (batch.need("weight_bt", "value_loss") * at_tokens(out, batch)).sum()
        return Loss(value, {"value_loss": value.detach(), **means(out, batch)})

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows of a weighted step whose gradient is exactly zero whatever the log-probs are."""
        if self.critic is not None:
            return torch.zeros_like(batch.group_b, dtype=torch.bool)
        weight_bt = batch.need("weight_bt", "zero_rows")
        scaled_bt = weight_bt if batch.multiplier_bt is None else weight_bt * batch.multiplier_bt
        policy_b = rows_of(self.objective, batch, self.objective.zero_rows, batch) | ~(scaled_bt != 0).any(1)
        for term in self.regularize:
            own_bt = unmasked(call(term, term.weights, batch), batch)
            policy_b = policy_b & (rows_of(term, batch, term.zero_rows, batch) | ~(own_bt != 0).any(1))
        return policy_b

    def with_parts(self, **changes: Any) -> Method:
        """Return a copy with some parts exchanged."""
        return replace(self, **changes)


def _blank_outside(batch: Batch) -> Batch:
    """Zero the values outside the action mask, so that garbage on padding cannot reach a sum."""
    names = (
        *("old_bt", "behavior_bt", "ref_bt", "entropy_bt", "value_bt", "token_reward_bt", "advantage_bt"),
        *("multiplier_bt", "return_bt"),
    )
    present: dict[str, Tensor] = {name: getattr(batch, name) for name in names if getattr(batch, name) is not None}
    blank: dict[str, object] = {name: torch.where(batch.mask_bt, x, 0) for name, x in present.items()}
    for name in ("stats", "refs"):
        if mapping := getattr(batch, name):
            blank[name] = {key: torch.where(batch.mask_bt, x, 0) for key, x in mapping.items()}
    if batch.loss_mask_bt is not None:
        blank["loss_mask_bt"] = batch.loss_mask_bt & batch.mask_bt
    return batch.replace(**blank)


def _with_outputs(batch: Batch, outputs: Mapping[str, Tensor]) -> Batch:
    """Return the batch with a model's outputs: of positions among `stats`, of whole rows among `row_outputs`."""
    stats = {name: torch.where(batch.mask_bt, x, 0) for name, x in outputs.items() if x.dim() > 1}
    rows = {name: x for name, x in outputs.items() if x.dim() == 1}
    return batch.replace(stats={**batch.stats, **stats}, row_outputs={**batch.row_outputs, **rows})


def _drift(logp_bt: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Return how far the policy has moved since the start of the update: k3 estimate of KL(old || new) and the mean
    ratio.
    """
    if batch.old_bt is None:
        return {}
    log_bt = torch.where(batch.mask_bt, logp_bt.detach() - batch.old_bt, 0).clamp(-LOG_LIMIT, LOG_LIMIT)
    return {"kl_old": torch.expm1(log_bt) - log_bt, "ratio_mean": log_bt.exp()}
