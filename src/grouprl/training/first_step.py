"""A check of the first step of a run that compares with a reference: the policy must still be its reference.

Where both agree, every margin is 0 and a loss of pairs or labels has its analytic value: log 2 of DPO, 1/(4β²) of IPO,
1 of a hinge. Anything else means that the reference is another model than the run says, or that the two are computed
differently.
"""

from __future__ import annotations

import torch

from grouprl.algorithms.method import Method
from grouprl.algorithms.references import scores_against_frozen
from grouprl.core.batch import Batch
from grouprl.core.errors import RunError

NATS = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.05}
"""By how much the log-prob of a token may differ between two ways to compute it, by the type of the weights."""


def check_first_step(method: Method, batch: Batch, dtype: torch.dtype) -> None:
    """Check that policy and reference agree on every row that the policy scored itself.

    Raises:
        RunError: a token's log-probs differ by more than two ways to compute them may.
    """
    if batch.ref_bt is None or batch.old_bt is None or not scores_against_frozen(method.parts()):
        return
    own_bt = batch.mask_bt & ~batch.from_source("replay", "reference")[:, None]
    gap_bt = torch.where(own_bt, batch.old_bt - batch.ref_bt, 0).abs()
    worst, allowed = float(gap_bt.max()), NATS.get(dtype, NATS[torch.float32])
    if worst > allowed:
        row = int(gap_bt.amax(1).argmax())
        raise RunError(
            f"at the first step the policy is not its reference: the log-prob of a token in row {row} differs by "
            f"{worst:.3g} nats, where at most {allowed:g} are due to arithmetic. Every margin would begin above or "
            f"below 0, and the loss of {method.name} not at its value for equal policies. Causes: weights that changed "
            "after the reference was kept, an adapter that is part of the policy alone, dropout while scoring. A "
            "reference of other weights is named: model.reference: FOLDER"
        )
