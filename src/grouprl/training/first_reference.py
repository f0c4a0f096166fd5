"""The reference at the first step of a run: which weights it is, and a check that the policy agrees with it.

Where both agree, every margin is 0 and a loss of pairs or labels has its analytic value: log 2 of DPO, 1/(4β²) of IPO,
1 of a hinge. Anything else means that the reference is another model than the run says, or that the two are computed
differently. A run may name a reference of other weights: the guiding model of Pre-DPO, any stronger one, or an average
of several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import torch
from safetensors.torch import save_file
from torch import Tensor

from grouprl.algorithms.method import Method
from grouprl.algorithms.references import scored_followers, scores_against_frozen
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError, RunError
from grouprl.core.outputs import LOG_PROB
from grouprl.orchestrator.make_policy import build_teacher
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.reference import no_teacher
from grouprl.protocols import Policy, Scorer, Trainable, distributed
from grouprl.records.tokens import Tokens
from grouprl.storage.tensors import load_weights
from grouprl.training.guides.guide_checks import alike, check_alone, check_tokenizer
from grouprl.training.references import NATS, follower_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check_first_step(method: Method, batch: Batch, dtype: torch.dtype) -> None:
    """Check that the policy agrees with each reference that a score reads on every row that the policy scored itself.

    Raises:
        RunError: a token's log-probs differ by more than two ways to compute them may.
    """
    for ref_bt in _scored_references(method, batch):
        _check_agreement(method, batch, ref_bt, dtype)


def _scored_references(method: Method, batch: Batch) -> list[Tensor]:
    """Return the log-probs [B,T] of every reference that a score compares the policy with."""
    followers = [batch.refs[name] for name in scored_followers(method.parts()) if name in batch.refs]
    frozen = batch.ref_bt if scores_against_frozen(method.parts()) else None
    return followers if frozen is None else [*followers, frozen]


def _check_agreement(method: Method, batch: Batch, ref_bt: Tensor, dtype: torch.dtype) -> None:
    if batch.old_bt is None:
        return
    own_bt = batch.mask_bt & ~batch.from_source("replay", "reference")[:, None]
    gap_bt = torch.where(own_bt, batch.old_bt - ref_bt, 0).abs()
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
    references = _scored_references(method, batch)
    if not references or batch.inputs is None:
        return
    rows = torch.nonzero(batch.group_b == batch.group_b[0])[:, 0]
    # Dropout draws random numbers here, and the run must draw the same ones as without this check.
    with torch.random.fork_rng():
        logp_bt = model.evaluate(batch.inputs.rows(rows), (LOG_PROB,), grad=True)[LOG_PROB].detach()
    width = logp_bt.shape[1]
    own_bt = (batch.mask_bt & ~batch.from_source("replay", "reference")[:, None])[rows, :width]
    worst = float(torch.where(own_bt, logp_bt - references[0][rows, :width], 0).abs().max())
    if worst > NATS.get(logp_bt.dtype, NATS[torch.float32]):
        raise RunError(
            f"at the first step model.lora.dropout changes the log-prob of a token by {worst:.3g} nats: the adapters "
            "are not new, and the reference has no dropout. Every margin would begin above or below 0, and the loss of "
            f"{method.name} not at its value for equal policies. Set model.lora.dropout: 0, or warm up every weight in "
            "a run of its own (steps: 0, without model.lora) and begin with new adapters on its folder"
        )


def begin_guide(run: ResolvedRun, policy: Policy, path: Path) -> Scorer:
    """Return what `model.reference` names as the reference, and write its weights to `path`, which the run keeps.

    Of several models it is the average of their weights by their shares, a soup (SALSA); `initial` among them is the
    policy itself. The average is computed in float64, so that a soup of equal weights has exactly these. One model of
    other layers than those that are trained, such as a larger teacher, is a reference of its own. On several ranks it
    is in parts, as the policy is.

    Raises:
        InputError: the policy is not a language model, or a model has another tokenizer, or other layers and is to be
            averaged.
    """
    if distributed(policy) is not None:
        from grouprl.training.guides.guide_on_ranks import guide_on_ranks

        spread = guide_on_ranks(run, policy)
        spread.write(path)
        return spread
    weights, reference = guide_of(run, policy)
    save_file(weights, path)
    return reference


def guide_of(run: ResolvedRun, policy: Policy) -> tuple[dict[str, Tensor], Scorer]:
    """Return the weights of what `model.reference` names, and the reference with them, in one process; see
    `begin_guide`.
    """
    own, soup = weights_of(policy), dict[str, Tensor]()
    for folder, share in run.guides.items():
        weights = own
        if folder != "initial":
            model = _model_in(folder, run, policy)
            weights = model.trainable_state()
            if not alike(weights, own):
                check_alone(folder, run)
                return weights, FrozenModel(model)
        for name, x in weights.items():
            soup[name] = soup.get(name, 0) + share * x.double()
    averaged = {name: x.to(own[name].dtype) for name, x in soup.items()}
    return averaged, with_weights(policy, averaged)


def kept_guide(run: ResolvedRun, policy: Policy, path: Path) -> Scorer:
    """Return the same reference with the weights that the run has kept in `path`; a model of other layers is built as
    its folder says.
    """
    if distributed(policy) is not None:
        from grouprl.training.guides.guide_on_ranks import kept_on_ranks

        return kept_on_ranks(run, policy, path)
    weights = load_weights(path)
    if alike(weights, weights_of(policy)):
        return with_weights(policy, weights)
    model = _model_in(next(iter(run.guides)), run, policy)
    model.load_trainable_state(weights)
    return FrozenModel(model)


def weights_of(policy: Policy) -> dict[str, Tensor]:
    """Return the trained weights of a policy in this process without its critic's, which no reference has."""
    return {name: x for name, x in policy.trainable_state().items() if not name.startswith("value_head.")}


class Taught(Protocol):
    """A policy that compares its distributions with those of a teacher."""

    teacher: CausalPolicy | None


class Teaches(Protocol):
    """A reference on several ranks, each of which has a part of it beside its part of the policy."""

    def teach(self) -> None:
        """Have the policy compare its distributions with those of this model."""
        ...


def teach(policy: Policy, reference: Scorer) -> None:
    """Make the model of a reference the teacher of a language model, which then has the output `teacher_kl`.

    Raises:
        InputError: the reference has no weights of its own.
    """
    if distributed(policy) is not None:
        cast("Teaches", reference).teach()
    else:
        cast("Taught", policy).teacher = teacher_of(reference)


def teacher_of(reference: Scorer) -> CausalPolicy:
    """Return the model of a reference, whose distributions over the whole vocabulary are read.

    Raises:
        InputError: it has no weights of its own.
    """
    whole: Callable[[], CausalPolicy] | None = getattr(reference, "whole", None)
    try:
        if whole is not None:
            return whole()
    except InputError:
        pass  # the adapters' base, which is the model in training
    raise no_teacher()


class FrozenModel:
    """A language model that is never trained, with layers of its own."""

    def __init__(self, model: CausalPolicy) -> None:
        self._model = model
        model.model.requires_grad_(False)

    def whole(self) -> CausalPolicy:
        """Return the model as a policy to sample from."""
        return self._model

    def logp(self, inputs: Tokens) -> Tensor:
        """Return the log-prob of every response token, [B,T], without a graph."""
        return self._model.logp(inputs)


def _model_in(folder: str, run: ResolvedRun, policy: Policy) -> CausalPolicy:
    """Return the model in a folder, whose tokenizer must be the policy's."""
    tokenizer: PreTrainedTokenizerBase | None = getattr(policy, "tokenizer", None)
    if tokenizer is None:
        raise InputError(
            f"model.reference names a model, beside {type(policy).__name__}",
            "a reference of other weights is a language model that reads what another language model reads",
            "Use model.reference: initial",
        )
    model = build_teacher(run, folder)
    check_tokenizer(folder, model.tokenizer, run, tokenizer)
    return model


def with_weights(policy: Policy, weights: Mapping[str, Tensor]) -> Scorer:
    """Return a copy of the policy with other weights, which is not trained."""
    copy = follower_of(policy, "guide")
    copy.load_trainable_state(weights)
    return copy
