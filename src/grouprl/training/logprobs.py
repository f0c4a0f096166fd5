"""Scores of a rollout by the policy before the update: values, statistics, and old log-probs if they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F

from grouprl.algorithms.data_part import data_parts
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.part import Part
from grouprl.algorithms.references import FROZEN
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.outputs import ENTROPY, LOG_PROB, VALUE
from grouprl.protocols import FinalInputs, GroupInfluence, Policy, PolicyInputs, Trainable, has_memory
from grouprl.training.session import Session

if TYPE_CHECKING:
    from grouprl.policy.vectors.array_inputs import ArrayInputs

PLAIN_ZERO_ROWS = (Objective.zero_rows, Regularizer.zero_rows)


def with_scores(
    session: Session, batch: Batch, inputs: PolicyInputs, foreign_b: torch.Tensor, *, exact: bool = True
) -> Batch:
    """Let the policy compute values, and old log-probs where the sampler's differ from its own.

    `exact` is the sampler's statement that its log-probs are the policy's. Rows from a store keep their stored
    log-probs. If the update itself computes the old log-probs (`left_to_update`), they are None.
    """
    if LOG_PROB not in session.model.outputs:
        return batch.replace(old_bt=None, behavior_bt=None)
    policy, values = session.policy, () if session.method.critic is None else (VALUE,)
    inexact = not exact
    if not (values or inexact or bool(foreign_b.any())):
        return batch
    if left_to_update(session, batch, foreign_b):
        return batch.replace(old_bt=None)
    if not (values or inexact):
        rows = foreign_b.nonzero()[:, 0]
        logp_bt = policy.logp(inputs.rows(rows.tolist())).cpu()
        return with_foreign(batch, rows, F.pad(logp_bt, (0, batch.size[1] - logp_bt.shape[1])))
    # A sampler that knows no entropies leaves zeros.
    unknown = inexact and batch.entropy_bt is not None and not batch.entropy_bt.any()
    stored_b = batch.from_source("replay", "reference")
    rows = ((inexact & ~stored_b) | foreign_b).nonzero()[:, 0]
    known = (LOG_PROB,) if len(rows) else ()
    found = policy.evaluate(inputs, (*known, *((ENTROPY,) if unknown else ()), *values))
    batch = batch.replace(value_bt=found[VALUE].cpu() if values else None)
    batch = with_final_values(policy, batch, inputs) if values else batch
    if unknown and batch.entropy_bt is not None:  # the sampler does not compute it
        batch = batch.replace(entropy_bt=torch.where(batch.mask_bt, found[ENTROPY].cpu(), batch.entropy_bt))
    return with_foreign(batch, rows, found[LOG_PROB].cpu()[rows]) if len(rows) else batch


def with_references(session: Session, batch: Batch, inputs: PolicyInputs) -> Batch:
    """Return the batch with log-probs of the references that the method reads, and of one kept by configuration."""
    needs, references = session.method.needs(), session.references
    if references.frozen is not None and ("ref_bt" in needs or session.config.model.reference not in ("auto", "none")):
        batch = batch.replace(ref_bt=references.logp(FROZEN, inputs))
    names = [name.removeprefix("refs.") for name in needs if name.startswith("refs.")]
    return batch.replace(refs={name: references.logp(name, inputs) for name in names}) if names else batch


def with_final_values(policy: Policy, batch: Batch, inputs: PolicyInputs) -> Batch:
    """Return the batch with values of the final observations of truncated rows, if the inputs contain them."""
    finals = inputs.finals() if isinstance(inputs, FinalInputs) else None
    if finals is None or batch.truncated_b is None:
        return batch
    rows = batch.truncated_b.nonzero()[:, 0]
    value_b = torch.zeros_like(batch.reward_b)
    if len(rows):
        value_b[rows] = _last_values(policy, inputs, finals, rows.tolist()).cpu().to(value_b)
    return batch.replace(final_value_b=value_b)


def _last_values(policy: Policy, inputs: PolicyInputs, finals: PolicyInputs, rows: list[int]) -> torch.Tensor:
    """Return the values of the final observations of `rows`, which a policy that remembers reads after all others."""
    # A memory has to have read the row before it sees the final observation.
    if not has_memory(policy):
        return policy.evaluate(finals.rows(rows), (VALUE,))[VALUE][:, 0]
    whole = cast("ArrayInputs", inputs.rows(rows)).extended()
    assert whole is not None
    value_bt = policy.evaluate(whole, (VALUE,))[VALUE]
    return value_bt[torch.arange(len(rows)), whole.length_b - 1]


def left_to_update(session: Session, batch: Batch, foreign_b: torch.Tensor) -> bool:
    """Return whether the update itself computes the old log-probs of the rows just sampled.

    It does if a rollout is used for one optimiser step of the same policy, without dropout in an adapter. A separate
    pass is still needed for the metrics of a reference or of unknown entropies, and for anything that reads old
    log-probs before the loss.
    """
    config, method = session.config, session.method
    one_step = config.updates_per_rollout == 1 and method.update is None
    drops = config.model.lora is not None and config.model.lora.dropout > 0
    others = bool(foreign_b.any()) or bool((~batch.from_source("sampled")).any())
    known = batch.entropy_bt is None or bool(batch.entropy_bt.any())
    own = method.critic is None and not session.references
    return one_step and own and known and not (drops or others or reads_old_early(method))


def reads_old_early(method: Method) -> bool:
    """Return whether a part reads old log-probs before the loss: a part outside the loss, or one that does more."""
    in_loss = (method.objective, *method.token_gate, *method.regularize)
    early = [part for part in method.parts() if not any(part is own for own in in_loss) or _counts_rows(part)]
    fills_early = any(part.reads_old for part in data_parts(method.parts()))
    return fills_early or method.buffer is not None or any("old_bt" in part.needs() for part in early)


def _counts_rows(part: Part) -> bool:
    """Return whether a part of the loss weights tokens or leaves out rows in its own way."""
    own_rows = getattr(type(part), "zero_rows", Objective.zero_rows) not in PLAIN_ZERO_ROWS
    return own_rows or getattr(part, "aggregate", None) is not None


def with_foreign(batch: Batch, rows: torch.Tensor, logp_nt: torch.Tensor) -> Batch:
    """Set the old log-probs of `rows` [N]; rows that no policy sampled also get them as behaviour log-probs."""
    if not len(rows):
        return batch
    # Copies: where the sampler's log-probs are taken as the old ones, both fields are one tensor.
    old_bt, behavior_bt = batch.need("old_bt", "the trainer").clone(), batch.need("behavior_bt", "the trainer").clone()
    logp_nt = logp_nt.to(old_bt)  # an engine may give its numbers in double precision
    old_bt[rows] = logp_nt
    written = batch.from_source("demonstration", "verification")[rows]
    behavior_bt[rows[written]] = logp_nt[written].to(behavior_bt)
    return batch.replace(old_bt=old_bt, behavior_bt=behavior_bt)


def add_statistics(policy: Trainable, batch: Batch, names: Sequence[str]) -> Batch:
    """Return the batch with the outputs that `names` (a method's needs) calls "stats.NAME", padded to its width.

    Other names, and outputs that the batch has already, are skipped. "stats.influence" is computed over whole groups.

    Raises:
        InputError: there is no such output, or "stats.influence" is needed without `correct_b` or with a policy
        that cannot compute it.
    """
    wanted = [name.removeprefix("stats.") for name in names if name.startswith("stats.")]
    missing = [name for name in dict.fromkeys(wanted) if name not in batch.stats]
    if not missing:
        return batch
    inputs = cast("PolicyInputs", batch.need("inputs", "statistics"))
    spare = batch.size[1] - inputs.width
    found = policy.evaluate(inputs, [name for name in missing if name != "influence"])
    if "influence" in missing:
        correct_b = batch.need("correct_b", "stats.influence")
        mask_bt = F.pad(batch.mask_bt, (0, -spare))
        found["influence"] = _with_influence(policy).influence(inputs, batch.group_b, correct_b, mask_bt)
    return batch.replace(stats={**batch.stats, **{name: F.pad(x.cpu(), (0, spare)) for name, x in found.items()}})


def _with_influence(policy: Trainable) -> GroupInfluence:
    if not isinstance(policy, GroupInfluence):
        raise InputError(
            f"{type(policy).__name__} is to give batch.stats['influence']",
            "a policy with a method `influence` can (grouprl.protocols.GroupInfluence)",
            "Take a method without it",
        )
    return policy
