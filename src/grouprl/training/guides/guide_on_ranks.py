"""References of other weights than the policy's on several ranks: each rank builds, averages and reads its own part."""

from __future__ import annotations

from pathlib import Path

from grouprl.orchestrator.make_policy import teacher_options
from grouprl.orchestrator.make_sharded_policy import builders_of
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.policy.sharded.rank_work import POLICY, REFERENCE
from grouprl.policy.sharded.sharded_policy import ShardedPolicy, as_sharded
from grouprl.policy.sharded.sharded_reference import ShardedReference, add_to_average, averaged
from grouprl.protocols import Policy
from grouprl.storage.tensors import described_tensors
from grouprl.training.guides.guide_checks import alike, check_alone, check_tokenizer


def guide_on_ranks(run: ResolvedRun, policy: Policy) -> ShardedReference:
    """Have the ranks keep what `model.reference` names; see `grouprl.training.first_reference.begin_guide`."""
    spread = as_sharded(policy)
    own = ShardedReference(spread, POLICY).parts()
    for folder, share in run.guides.items():
        if folder == "initial":
            add_to_average(spread, POLICY, share)
            continue
        model = _model_in(folder, run, spread)
        if not alike(model.parts(), own):
            check_alone(folder, run)
            return model
        add_to_average(spread, REFERENCE, share)
    return averaged(spread)


def kept_on_ranks(run: ResolvedRun, policy: Policy, path: Path) -> ShardedReference:
    """Have the ranks keep the same reference with the weights that the run has kept in `path`."""
    spread = as_sharded(policy)
    same = alike(described_tensors(path), ShardedReference(spread, POLICY).parts())
    found = spread.snapshot() if same else _model_in(next(iter(run.guides)), run, spread)
    found.read(path)
    return found


def _model_in(folder: str, run: ResolvedRun, policy: ShardedPolicy) -> ShardedReference:
    """Return the model in a folder, in parts, whose tokenizer must be the policy's."""
    model = policy.other(builders_of(run, teacher_options(run, folder), folder))
    check_tokenizer(folder, model.tokenizer, run, policy.tokenizer)
    return model
