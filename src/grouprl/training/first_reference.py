"""The reference at the first step of a run: which weights it is, and a check that the policy agrees with it.

Where both agree, every margin is 0 and a loss of pairs or labels has its analytic value: log 2 of DPO, 1/(4β²) of IPO,
1 of a hinge. Anything else means that the reference is another model than the run says, or that the two are computed
differently. A run may name a reference of other weights: the guiding model of Pre-DPO, any stronger one, or an average
of several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, cast

import torch
from torch import Tensor

from grouprl.algorithms.method import Method
from grouprl.algorithms.references import scores_against_frozen
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError, RunError
from grouprl.core.outputs import LOG_PROB
from grouprl.orchestrator.make_policy import build_teacher
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.protocols import Policy, Scorer, Trainable, distributed
from grouprl.records.tokens import Tokens
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


def guide_of(run: ResolvedRun, policy: Policy) -> tuple[dict[str, Tensor], Scorer]:
    """Return what `model.reference` names: its weights, which the run keeps, and the reference with them.

    Of several models it is the average of their weights by their shares, a soup (SALSA); `initial` among them is the
    policy itself. Averaged in float64, so that a soup of equal weights has those. One model of other layers than those
    that are trained, such as a larger teacher, is a reference of its own.

    Raises:
        InputError: the policy is no language model, or a model has another tokenizer, or has other layers and is to be
            averaged, or stands beside a policy that is divided among processes.
    """
    own, soup = policy.trainable_state(), dict[str, Tensor]()
    for folder, share in run.guides.items():
        weights = own
        if folder != "initial":
            model = _model_in(folder, run, policy)
            weights = model.trainable_state()
            if not _alike(weights, own):
                _check_alone(folder, run, policy)
                return weights, FrozenModel(model)
        for name, x in weights.items():
            soup[name] = soup.get(name, 0) + share * x.double()
    averaged = {name: x.to(own[name].dtype) for name, x in soup.items()}
    return averaged, with_weights(policy, averaged)


def kept_guide(run: ResolvedRun, policy: Policy, weights: Mapping[str, Tensor]) -> Scorer:
    """Return the same reference with the weights that the run has kept; a model of other layers is built as its folder
    says.
    """
    if _alike(weights, policy.trainable_state()):
        return with_weights(policy, weights)
    model = _model_in(next(iter(run.guides)), run, policy)
    model.load_trainable_state(weights)
    return FrozenModel(model)


class Taught(Protocol):
    """A policy that compares its distributions with those of a teacher."""

    teacher: CausalPolicy | None


def teach(policy: Policy, reference: Scorer) -> None:
    """Make the model of a reference the teacher of a language model, which then has the output `teacher_kl`."""
    cast("Taught", policy).teacher = teacher_of(reference)


def teacher_of(reference: Scorer) -> CausalPolicy:
    """Return the model of a reference, whose distributions over the whole vocabulary are read.

    Raises:
        InputError: it has no weights of its own in this process.
    """
    whole: Callable[[], CausalPolicy] | None = getattr(reference, "whole", None)
    try:
        if whole is not None:
            return whole()
    except InputError:
        pass  # the adapters' base, which is the model in training
    raise InputError(
        "the KL to a teacher is asked for, and the reference is the model in training without its adapters, or divided",
        "whole distributions are compared with a model of its own in this process",
        "Name the teacher: model.reference: FOLDER",
    )


class FrozenModel:
    """A language model that is never trained, with layers of its own."""

    def __init__(self, model: CausalPolicy) -> None:
        self._model = model
        model.model.requires_grad_(False)

    def whole(self) -> CausalPolicy:
        """Return the model, for sampling."""
        return self._model

    def logp(self, inputs: Tokens) -> Tensor:
        """Return the log-prob of every response token, [B,T], without a graph."""
        return self._model.logp(inputs)


def _alike(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> bool:
    return {name: x.shape for name, x in weights.items()} == {name: x.shape for name, x in own.items()}


def _model_in(folder: str, run: ResolvedRun, policy: Policy) -> CausalPolicy:
    """Return the model in a folder, whose tokenizer must be the policy's."""
    tokenizer = getattr(policy, "tokenizer", None)
    if tokenizer is None:
        raise InputError(
            f"model.reference names a model, beside {type(policy).__name__}",
            "a reference of other weights is a language model that reads what another language model reads",
            "Use model.reference: initial",
        )
    model = build_teacher(run, folder)
    if model.tokenizer.get_vocab() != tokenizer.get_vocab():
        raise InputError(
            f"the reference {folder} has another tokenizer than the model {run.config.model.name}",
            "both score the same tokens",
            "Name a model of the same family",
        )
    return model


def _check_alone(folder: str, run: ResolvedRun, policy: Policy) -> None:
    """Check that a model of other layers than the trained ones may be the reference."""
    trained = "adapters" if run.config.model.lora is not None else f"the layers of {run.config.model.name}"
    what = f"the reference {folder} has other layers than what is trained, {trained}"
    if len(run.guides) > 1:
        raise InputError(
            what,
            "weights are averaged where all models have the same layers",
            "Name models that were trained from the same one and train every weight (no model.lora), or name one model",
        )
    if distributed(policy) is not None:
        raise InputError(
            f"{what}, in several processes",
            "a model of other layers is kept whole in one process",
            "Train in one process, or name a model that was trained from the same one",
        )


def with_weights(policy: Policy, weights: Mapping[str, Tensor]) -> Scorer:
    """Return a copy of the policy with other weights, which is not trained."""
    copy = follower_of(policy, "guide")
    copy.load_trainable_state(weights)
    return copy
