"""A reference of other weights than the policy's: the guiding model of Pre-DPO, or any stronger one."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from grouprl.core.errors import InputError
from grouprl.orchestrator.make_policy import build_one
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.protocols import Policy, Scorer
from grouprl.training.references import follower_of


def guiding_weights(run: ResolvedRun, policy: Policy) -> dict[str, Tensor]:
    """Return the weights of the model that `model.reference` names, by the names of the policy's own.

    Raises:
        InputError: the policy is no language model or has adapters, or the model has another architecture or tokenizer.
    """
    folder = run.guide
    assert folder is not None
    if not isinstance(policy, CausalPolicy) or run.config.model.lora is not None:
        what = "a policy with adapters" if isinstance(policy, CausalPolicy) else type(policy).__name__
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
    if guide.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
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
