"""The reference at the first step of a run: which weights it is, and a check that the policy agrees with it.

Where both agree, every margin is 0 and a loss of pairs or labels has its analytic value: log 2 of DPO, 1/(4β²) of IPO,
1 of a hinge. Anything else means that the reference is another model than the run says, or that the two are computed
differently. A run may name a reference of other weights: the guiding model of Pre-DPO, any stronger one, or an average
of several.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from grouprl.algorithms.method import Method
from grouprl.algorithms.references import scores_against_frozen
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError, RunError
from grouprl.core.outputs import LOG_PROB
from grouprl.orchestrator.make_policy import build_one
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.protocols import Policy, Scorer, Trainable
from grouprl.training.references import NATS, follower_of


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


def check_first_pass(method: Method, batch: Batch, model: Trainable) -> None:
    """Check that policy and reference agree on the first group also in a pass that takes gradients, where dropout acts.

    Raises:
        RunError: a token's log-probs differ, because adapters that are not new drop out.
    """
    if batch.ref_bt is None or batch.inputs is None or not scores_against_frozen(method.parts()):
        return
    rows = torch.nonzero(batch.group_b == batch.group_b[0])[:, 0]
    with torch.random.fork_rng():
        logp_bt = model.evaluate(batch.inputs.rows(rows), (LOG_PROB,), grad=True)[LOG_PROB].detach()
    width = logp_bt.shape[1]
    own_bt = (batch.mask_bt & ~batch.from_source("replay", "reference")[:, None])[rows, :width]
    worst = float(torch.where(own_bt, logp_bt - batch.ref_bt[rows, :width], 0).abs().max())
    if worst > NATS.get(logp_bt.dtype, NATS[torch.float32]):
        raise RunError(
            f"at the first step model.lora.dropout changes the log-prob of a token by {worst:.3g} nats: the adapters "
            "are not new, and the reference has no dropout. Every margin would begin above or below 0, and the loss of "
            f"{method.name} not at its value for equal policies. Set model.lora.dropout: 0, or warm up every weight in "
            "a run of its own (steps: 0, without model.lora) and begin with new adapters on its folder"
        )


def guiding_weights(run: ResolvedRun, policy: Policy) -> dict[str, Tensor]:
    """Return the weights of the model that `model.reference` names, by the names of the policy's own.

    Of several models it is the average of their weights by their shares, a soup (SALSA);
    `initial` among them is the policy itself. Averaged in float64, so that a soup of equal weights has those.

    Raises:
        InputError: the policy is no language model or has adapters, or a model has another architecture or tokenizer.
    """
    soup: dict[str, Tensor] = {}
    for folder, share in run.guides.items():
        weights = policy.trainable_state() if folder == "initial" else _weights_in(folder, run, policy)
        for name, x in weights.items():
            soup[name] = soup.get(name, 0) + share * x.double()
    own = policy.trainable_state()
    return {name: x.to(own[name].dtype) for name, x in soup.items()}


def _weights_in(folder: str, run: ResolvedRun, policy: Policy) -> dict[str, Tensor]:
    """Return the weights of the model in a folder, which must fit the policy."""
    tokenizer = getattr(policy, "tokenizer", None)
    if tokenizer is None or run.config.model.lora is not None:
        what = type(policy).__name__ if tokenizer is None else "a policy with adapters"
        raise InputError(
            f"model.reference names a model, beside {what}",
            "a reference of other weights is put into a copy of a language model that is trained whole",
            "Train every weight (no model.lora), or use model.reference: initial",
        )
    guide = build_one(run, folder, run.config.seed)
    own, found = policy.trainable_state(), guide.trainable_state()
    if {name: x.shape for name, x in own.items()} != {name: x.shape for name, x in found.items()}:
        raise InputError(
            f"the reference {folder} has other layers than the model {run.config.model.name}",
            "a reference of other weights has the policy's architecture",
            "Name a model that was trained from the same one",
        )
    if guide.tokenizer.get_vocab() != tokenizer.get_vocab():
        raise InputError(
            f"the reference {folder} has another tokenizer than the model {run.config.model.name}",
            "both score the same tokens",
            "Name a model of the same family",
        )
    return found


def with_weights(policy: Policy, weights: Mapping[str, Tensor]) -> Scorer:
    """Return a copy of the policy with other weights, which is not trained."""
    copy = follower_of(policy, "guide")
    copy.load_trainable_state(weights)
    return copy
