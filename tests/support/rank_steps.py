"""A script for several ranks: optimiser steps of methods with different reductions, beside those of one process."""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from grouprl import method
from grouprl.algorithms.references import Iterates, Mixture
from grouprl.config.rates import ratio_of_squares, summed_squares, update_squares
from grouprl.config.sections import Optim
from grouprl.core.outputs import TEACHER_KL
from grouprl.policy import compiled_layers
from grouprl.policy.optimizers import build_optimizer
from grouprl.policy.passes import AUTO
from grouprl.policy.sharded.ranks import Ranks, follow, leading
from grouprl.policy.sharded.sharded_optimizer import ShardedOptimizer
from grouprl.policy.sharded.sharded_policy import ShardedPolicy
from grouprl.processes.current_ranks import own_rank
from grouprl.training.references import References
from grouprl.training.update import Learner
from ranks import TinyBuilders
from updates import make_batch

STEPS = 3
WAYS = {"lora", "anew", "offload", "mixed", "tensor", "small", "compiled", "context", "all", "packed"}


def batch_of(policy, chosen, seed: int):
    """A ragged batch with all that a method reads, from the policy of one process."""
    batch = make_batch(policy, seed=seed)
    values = [] if chosen.critic is None else ["value"]
    out = policy.evaluate(batch.inputs, ["log_prob", *values])
    logp_bt = out["log_prob"]
    rows = len(batch.reward_b)
    extra = {"correct_b": batch.reward_b > 0, "truncated_b": torch.zeros(rows, dtype=torch.bool), "max_length": 8}
    shift_bt = torch.where(batch.mask_bt, 0.1 * torch.sin(torch.arange(batch.mask_bt.numel())).view_as(logp_bt), 0)
    entropy_bt = torch.where(batch.mask_bt, 1.0, 0.0).double()
    extra |= {"value_bt": out["value"]} if values else {}
    return batch.replace(ref_bt=logp_bt + shift_bt, entropy_bt=entropy_bt, **extra)


def taught(one, sharded: ShardedPolicy, builders: TinyBuilders, packing: str) -> dict[str, float]:
    """Give both policies a larger teacher; how far apart its log-probs are, and how much of it a rank holds."""
    how = builders.teacher(packing)
    alone, spread = how.one(engine="transformers"), sharded.other(how)
    one.teacher = alone
    spread.teach()
    tokens = make_batch(one).inputs
    parameters = sum(p.numel() for p in alone.parameters())
    held = sum(p.to_local().numel() for p in spread.parts().values()) / parameters
    kl_bt = one.evaluate(tokens, [TEACHER_KL])[TEACHER_KL]
    found = {"teacher": (alone.logp(tokens) - spread.logp(tokens)).abs().max(), "kl": kl_bt.abs().max()}
    return {name: float(x) for name, x in found.items()} | {"held": held}


def compare(
    ranks: Ranks, name: str, optim: Optim, builders: TinyBuilders, lr: float = 1e-2, packing: str = "auto"
) -> dict[str, float]:
    """Take the same steps in one process and on all ranks; return how far apart they end."""
    chosen = method(name)
    how = {"precision": "mixed"} if builders.mixed else {"engine": "transformers"}
    one = builders.one(value_head=chosen.critic is not None, **how)
    sharded = ShardedPolicy(ranks, builders.with_head(chosen.critic is not None))
    make = partial(build_optimizer, optim, lr=lr, weight_decay=0.01 if optim.name != "rprop" else 0.0)
    learners = [
        Learner(policy, optimizer, chosen, parts=2, grad_clip=0.05, seed=5)
        for policy, optimizer in (
            (one, make(one.parameters())),
            (sharded, ShardedOptimizer(sharded, make, optim.name)),
        )
    ]
    start = {name: tensor + 0.01 for name, tensor in one.trainable_state().items()}  # adapters begin at zero
    one.load_trainable_state(start)
    sharded.load_trainable_state(start)
    apart = {"metrics": 0.0}
    if TEACHER_KL in chosen.outputs:
        apart |= taught(one, sharded, builders, packing)
    for seed in range(STEPS):
        prepared = chosen.compute_advantages(batch_of(one, chosen, seed))
        for steps in zip(*(learner.steps(prepared) for learner in learners), strict=True):
            mine, theirs = (learner.take(step) for learner, step in zip(learners, steps, strict=True))
            assert mine.keys() == theirs.keys()
            found = {k: abs(mine[k] - theirs[k]) / (1 + abs(mine[k])) for k in mine}
            worst = max(found, key=lambda k: found[k])
            if found[worst] > 1e-9:
                apart[f"metric {worst}"] = found[worst]
            apart["metrics"] = max(apart["metrics"], found[worst])
    alone = update_squares(learners[0].optimizer)
    if alone is not None:
        spread = summed_squares([found for found in learners[1].optimizer.measured(update_squares) if found])
        pairs = [(ratio_of_squares([a]) or 0, ratio_of_squares([b]) or 0) for a, b in zip(alone, spread, strict=True)]
        apart["update_ratio"] = max(abs(mine - theirs) for mine, theirs in pairs)
    end, other = one.trainable_state(), sharded.trainable_state()
    apart["weights"] = max(float((end[k] - other[k]).abs().max()) for k in end)
    apart["moved"] = max(float((end[k] - start[k]).abs().max()) for k in end)
    squares = [(float((end[k] - other[k]).square().sum()), float((end[k] - start[k]).square().sum())) for k in end]
    apart["of the way"] = (sum(a for a, _ in squares) / sum(b for _, b in squares)) ** 0.5
    tokens = make_batch(one).inputs
    apart["logp"] = float((one.logp(tokens) - sharded.logp(tokens)).abs().max())
    apart["whole"] = float((one.logp(tokens) - sharded.whole.logp(tokens)).abs().max())
    return apart


def resume(ranks: Ranks, folder: Path) -> dict[str, float]:
    """Go on from a checkpoint of one process, and from the parts that ranks wrote; how far apart the next steps end."""
    chosen, builders = method("grpo"), TinyBuilders()
    one, sharded = builders.one(engine="transformers"), ShardedPolicy(ranks, builders)
    make = partial(build_optimizer, Optim(), lr=1e-2, weight_decay=0.01)
    first = Learner(one, make(one.parameters()), chosen)
    prepared = chosen.compute_advantages(batch_of(one, chosen, 0))
    step = next(iter(first.steps(prepared)))
    first.take(step)
    found: dict[str, float] = {}
    for way in ("whole", "parts"):
        then = Learner(sharded, ShardedOptimizer(sharded, make, "adamw"), chosen)
        if way == "whole":
            sharded.load_trainable_state(one.trainable_state())
            then.optimizer.load_state_dict(first.optimizer.state_dict())
        else:
            sharded.load_parts(folder)
        if way == "whole":
            sharded.save_parts(folder)
            first.take(step)
        then.take(step)
        ends = sharded.trainable_state()
        found[way] = max(float((ends[k] - x).abs().max()) for k, x in one.trainable_state().items())
    return found


def followed(ranks: Ranks, builders: TinyBuilders) -> dict[str, float]:
    """Let references follow a policy of one process and one on all ranks; how far apart they are, also restored."""
    rules = {"late": Iterates(every=2), "mean": Iterates(share=0.25), "mixed": Mixture({"late": 0.5, "mean": 0.5})}
    policies = builders.one(engine="transformers"), ShardedPolicy(ranks, builders)
    start = {name: tensor + 0.01 for name, tensor in policies[0].trainable_state().items()}  # adapters begin at zero
    for policy in policies:
        policy.load_trainable_state({name: start[name] for name, _ in policy.named_parameters()})
    both = [References(rules) for _ in policies]
    for references, policy in zip(both, policies, strict=True):
        references.begin(policy)
    tokens, found = make_batch(policies[0]).inputs, {"logp": 0.0, "moved": 0.0, "restored": 0.0, "state": 0.0}
    before = {name: both[0].logp(name, tokens) for name in rules}
    for step in range(3):
        for references, policy in zip(both, policies, strict=True):
            policy.load_trainable_state({name: x + 0.02 * (step + 1) for name, x in policy.trainable_state().items()})
            references.follow(step)
        for name in rules:
            one, other = (references.logp(name, tokens) for references in both)
            found["logp"] = max(found["logp"], float((one - other).abs().max()))
            found["moved"] = max(found["moved"], float((one - before[name]).abs().max()))
    states = [references.state() for references in both]
    for name, one in states[0]["weights"].items():
        assert one.keys() == states[1]["weights"][name].keys()
        gaps = [float((x - states[1]["weights"][name][key]).abs().max()) for key, x in one.items()]
        found["state"] = max(found["state"], *gaps)
    # What one process wrote continues on the ranks, and what the ranks wrote in one process.
    for state, policy in zip(states, reversed(policies), strict=True):
        restored = References(rules)
        restored.restore(state, policy)
        gaps = [float((restored.logp(name, tokens) - both[0].logp(name, tokens)).abs().max()) for name in rules]
        found["restored"] = max(found["restored"], *gaps)
    return found


def main(names: list[str]) -> None:
    """Print, as JSON, how far apart each `method`, `method:optimiser` or `method+…+…` ends.

    What may be added: lora, anew (layers computed anew), offload, mixed, tensor (matrices cut by two ranks),
    context (rows shared by two ranks; with all: by all), small (a learning rate of 1e-6), compiled (layers traced by
    torch.compile, without its compiler's minute), packed (rows in packs, but padded for a teacher).
    """
    warnings.filterwarnings("error", message=".*returned a view tensor")
    compiled_layers.BACKEND = "aot_eager"
    if own_rank():
        return follow(lambda: None)
    with leading() as ranks:
        found = {}
        for name in names:
            if name == "resume":
                ranks.begin(600.0)
                with tempfile.TemporaryDirectory() as folder:
                    found[name] = resume(ranks, Path(folder) / "parts")
                continue
            if name.startswith("follow"):
                ranks.begin(600.0, 2 if "tensor" in name else 1, 2 if "context" in name else 1)
                lora = (("r", 4),) if "lora" in name else None
                found[name] = followed(ranks, TinyBuilders(lora=lora))
                continue
            plain, _, optimiser = name.partition(":")
            plain, *more = plain.split("+")
            assert not set(more) - WAYS, more
            context = ranks.count if "all" in more else 2 if "context" in more else 1
            ranks.begin(600.0, 2 if "tensor" in more else 1, context)
            builders = TinyBuilders(
                lora=(("r", 4),) if "lora" in more else None,
                passes=replace(
                    AUTO,
                    checkpointing="on" if "anew" in more else "auto",
                    compiled="compiled" in more,
                    packing="on" if "packed" in more else "auto",
                ),
                offload="offload" in more,
                mixed="mixed" in more,
                dtype="float32" if "mixed" in more else "float64",
            )
            rate = 1e-6 if "small" in more else 1e-2
            packing = "off" if "packed" in more else "auto"
            found[name] = compare(ranks, plain, Optim(name=optimiser or "adamw"), builders, rate, packing)
        print(json.dumps({"ranks": ranks.count, "found": found}))
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
