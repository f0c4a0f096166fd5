"""Values of the critic, and old log-probs where those of the sampler are not the policy's own."""

from __future__ import annotations

import torch

from grouprl.core.batch import Batch
from grouprl.protocols import PolicyInputs
from grouprl.train.session import Session


def with_scores(
    session: Session, batch: Batch, inputs: PolicyInputs, foreign_b: torch.Tensor, *, exact: bool = True
) -> Batch:
    """Let the policy compute values, and old log-probs where those of the sampler are not its own.

    `exact`: what the sampler said of its log-probs. Rows from a store keep those that they were stored with.
    """
    policy, critic = session.policy, session.method.critic is not None
    inexact = not exact
    if not (critic or inexact or bool(foreign_b.any())):
        return batch
    if not (critic or inexact):
        rows = foreign_b.nonzero()[:, 0]
        logp_bt = policy.logp(inputs.rows(rows.tolist())).logp_bt.cpu()
        return with_foreign(batch, rows, torch.nn.functional.pad(logp_bt, (0, batch.size[1] - logp_bt.shape[1])))
    unknown = inexact and batch.entropy_bt is not None and not batch.entropy_bt.any()
    out = policy.logp(inputs, values=critic, entropy=True) if unknown else policy.logp(inputs, values=critic)
    batch = batch.replace(value_bt=None if out.value_bt is None else out.value_bt.cpu())
    if out.entropy_bt is not None and batch.entropy_bt is not None:  # the sampler does not know it
        batch = batch.replace(entropy_bt=torch.where(batch.mask_bt, out.entropy_bt.cpu(), batch.entropy_bt))
    stored_b = batch.from_source("replay", "reference")
    rows = ((inexact & ~stored_b) | foreign_b).nonzero()[:, 0]
    return with_foreign(batch, rows, out.logp_bt.cpu()[rows])


def with_foreign(batch: Batch, rows: torch.Tensor, logp_nt: torch.Tensor) -> Batch:
    """Set the old log-probs of `rows` [N]; those that no policy sampled also get them as behaviour."""
    if not len(rows):
        return batch
    old_bt, behavior_bt = batch.need("old_bt", "the trainer").clone(), batch.need("behavior_bt", "the trainer").clone()
    old_bt[rows] = logp_nt
    written = batch.from_source("demonstration", "verification")[rows]
    behavior_bt[rows[written]] = logp_nt[written]
    return batch.replace(old_bt=old_bt, behavior_bt=behavior_bt)
