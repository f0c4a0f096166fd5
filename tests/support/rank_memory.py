"""A script for several ranks: how much memory each takes to build a stored model, and for an optimiser step.

`rank_memory.py MODEL [option…]` prints, as JSON, what each rank's memory grew by at its peak. Options: alone
(one process without any of this), lora, tensor (matrices cut by all ranks), reference (a frozen copy), teacher (whose
distributions the step reads; it has the same sizes), save (the model is written).
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from grouprl.config.run import parse_config
from grouprl.config.sections import Optim
from grouprl.plan.memory import batch_arithmetic, gathered, memory, memory_on_ranks
from grouprl.plan.memory import peak as peak_of
from grouprl.plan.model_facts import ModelFacts, ReferenceFacts
from grouprl.policy import Tokens
from grouprl.policy.allocator import keep_freed_memory, return_freed_memory
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.load import load_policy
from grouprl.policy.language.tiny import char_tokenizer
from grouprl.policy.optimizers import build_optimizer
from grouprl.policy.passes import PassSettings
from grouprl.policy.sharded.outline import outline_of
from grouprl.policy.sharded.piece_optimizer import OPTIMIZER
from grouprl.policy.sharded.rank_policy import RankPolicy
from grouprl.policy.sharded.rank_work import POLICY, REFERENCE
from grouprl.policy.sharded.ranks import Ranks, Station, follow, leading
from grouprl.policy.sharded.sharded_optimizer import ShardedOptimizer
from grouprl.policy.sharded.sharded_policy import ShardedPolicy
from grouprl.processes.current_ranks import own_rank
from ranks import TinyBuilders

MIB = 2**20
SIZES = {
    "20M": {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 10},
    "50M": {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 14},
    "110M": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 14},
    "190M": {"hidden_size": 1024, "intermediate_size": 2752, "num_hidden_layers": 14},
}
PASSES = PassSettings(packing="off", shared_prefix="off", checkpointing="off")
BUDGET = 64


def write_model(folder: Path, size: str, dtype: torch.dtype = torch.float32) -> Path:
    """Write a random model of about so many parameters, and a tokenizer of characters; return its folder."""
    path = folder / f"model-{size}"
    if not path.is_dir():
        tokenizer = char_tokenizer("0123456789+= ")
        ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
        heads = SIZES[size]["hidden_size"] // 64
        torch.manual_seed(0)
        config = LlamaConfig(**SIZES[size], num_attention_heads=heads, num_key_value_heads=heads, vocab_size=4096,
                             tie_word_embeddings=True, max_position_embeddings=256, **ends)  # fmt: skip
        LlamaForCausalLM(config).to(dtype).save_pretrained(path)
        tokenizer.save_pretrained(path)
    return path


def rows() -> Tokens:
    """Four rows of 32 tokens."""
    ids = torch.randint(3, 13, (4, 32), generator=torch.Generator().manual_seed(0)).tolist()
    return Tokens.of([row[:8] for row in ids], [row[8:] for row in ids])


@dataclass(frozen=True)
class Stored:
    """Builds parts of a stored model."""

    model: str
    lora: bool = False

    def part(self, station: Station) -> RankPolicy:
        """The rank's part."""
        lora = {"r": 8} if self.lora else None
        outline = outline_of(self.model, torch.float32, lora=lora)
        return RankPolicy(outline, device=station.device, mesh=station.mesh, passes=PASSES, token_budget=BUDGET)

    def one(self) -> CausalPolicy:
        """The policy of one process."""
        lora = {"r": 8} if self.lora else None
        return load_policy(self.model, lora=lora, device="cpu", dtype="float32", engine="transformers", passes=PASSES,
                           token_budget=BUDGET)  # fmt: skip

    def whole(self, station: Station) -> CausalPolicy:
        """A full copy."""
        return self.one()


def begin(station: Station | None, share: object = None) -> int:
    """Forget the peak so far; return the memory in use, in bytes."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak(station: Station | None, before: object) -> int:
    """Return the peak since `begin`, in bytes."""
    return _status("VmHWM")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def warm() -> None:
    """Load what a first model loads: code, not weights."""
    policy = load_policy("tiny", device="cpu", engine="transformers")
    step(policy, build_optimizer(Optim(), policy.parameters(), lr=1e-3, weight_decay=0.0))


def warm_here(station: Station, share: object) -> None:
    """Warm up on a rank, as `RunBuilders` prepares one."""
    return_freed_memory()
    warm()


def step(policy, optimizer, output: str = "log_prob") -> None:
    """Two optimiser steps on four rows: in the second, a pass meets the moments."""
    tokens = rows()
    for _ in range(2):
        optimizer.zero_grad()
        policy.backward(tokens, {output: torch.full((4, 24), 0.01, dtype=policy.score_dtype)})
        optimizer.step()


def largest_layers(model: torch.nn.Module) -> int:
    """Bytes of the two largest layers in float32: blocks, or the embedding."""
    sizes = [sum(p.numel() for p in block.parameters()) for block in model.model.layers]
    return 4 * sum(sorted([*sizes, model.get_input_embeddings().weight.numel()])[-2:])


def sizes_of(policy) -> dict[str, int]:
    """Bytes in float32: all weights, the trained ones, and the two largest layers."""
    core = policy.model.get_base_model() if hasattr(policy.model, "get_base_model") else policy.model
    weights, trained = (sum(p.numel() for p in each) for each in (policy.model.parameters(), policy.parameters()))
    return {"weights": 4 * weights, "trained": 4 * trained, "layers": largest_layers(core)}


def alone(builder: Stored) -> dict[str, object]:
    """Measure one process."""
    before = begin(None)
    policy = builder.one()
    built = peak(None, before) - before
    optimizer = build_optimizer(Optim(), policy.parameters(), lr=1e-3, weight_decay=0.0)
    begin(None)
    step(policy, optimizer)
    return {**sizes_of(policy), "build": [built], "step": [peak(None, before) - before]}


def forget(station: Station, share: object) -> None:
    """Drop what the rank keeps of a model."""
    for name in (POLICY, REFERENCE, OPTIMIZER):
        station.kept.pop(name, None)


def on_ranks(ranks: Ranks, builder: Stored, more: set[str]) -> dict[str, object]:
    """Measure all ranks; called on rank 0."""
    before = ranks.each(rank_memory.begin)

    def grown() -> list[int]:
        return [now - then for now, then in zip(ranks.each(rank_memory.peak), before, strict=True)]

    policy = ShardedPolicy(ranks, builder)
    found: dict[str, object] = {**sizes_of(policy), "build": grown()}
    optimizer = ShardedOptimizer(policy, partial(build_optimizer, Optim(), lr=1e-3, weight_decay=0.0), "adamw")
    reference = policy.snapshot() if "reference" in more else None
    if "teacher" in more:
        policy.other(builder).teach()
    ranks.each(rank_memory.begin)
    step(policy, optimizer, "teacher_kl" if "teacher" in more else "log_prob")
    if reference is not None:
        reference.logp(rows())
    found["step"] = grown()
    if "save" in more:
        with tempfile.TemporaryDirectory() as folder:
            found |= _stored(ranks, policy, Path(folder), grown)
    return found


def _stored(ranks: Ranks, policy: ShardedPolicy, folder: Path, grown: Callable[[], list[int]]) -> dict[str, object]:
    """Measure how a model and a checkpoint are written, and how it is read."""
    ranks.each(rank_memory.begin)
    policy.save(folder / "saved")
    policy.save_parts(folder / "parts")
    found: dict[str, object] = {"save": grown()}
    ranks.each(rank_memory.begin)
    policy.load_parts(folder / "parts")
    return found | {"load": grown(), "alike": _alike(policy.trainable_state(), folder / "saved")}


def bounds(found: dict[str, object], ranks: int, a_pass: int) -> dict[str, float]:
    """Return the bytes that a rank may take at most: its share and 15 %, the two largest layers, and a pass.

    Kept are weights in float32, and from the first step on a gradient and two moments of what is trained.
    """
    weights, beside = found["weights"], found["layers"] + a_pass
    kept = {"build": weights, "step": weights + 3 * found["trained"]}
    return {name: 1.15 * whole / ranks + beside for name, whole in kept.items()}


def row(found: dict[str, object], ranks: int, a_pass: int) -> dict[str, float]:
    """Return the peaks of the rank that takes most and of rank 0, beside what they may be."""
    most = bounds(found, ranks, a_pass)
    peaks = {what: max(found[what]) for what in ("build", "step", "save", "load") if what in found}
    return peaks | {"step_0": found["step"][0]} | {f"{what}_most": most[what] for what in most}


def planned(name: str, ranks: int, *, teacher: bool = False) -> int:
    """Return the bytes that a plan expects of a rank in these steps."""
    sizes = SIZES[name.removeprefix("model-")]
    hidden, layers, vocabulary = sizes["hidden_size"], sizes["num_hidden_layers"], 4096
    block = 4 * hidden**2 + 3 * hidden * sizes["intermediate_size"] + 2 * hidden
    count = vocabulary * hidden + layers * block + hidden
    facts = ModelFacts(parameters=count, trainable=count, layers=layers, hidden=hidden, kv_width=hidden,
                       intermediate=sizes["intermediate_size"], vocabulary=vocabulary, positions=256, dtype="float32",
                       bytes_each=4, device="cpu")  # fmt: skip
    config = parse_config({"task": "addition", "steps": 1, "batch": {"prompts": 1, "group_size": 4,
                           "tokens_per_microbatch": BUDGET}})  # fmt: skip
    costs = memory(facts, batch_arithmetic(config, 8, 24, 0, 1, facts), reference=count if teacher else 0)
    kept = [cost for cost in costs if cost.what != "rollout cache"]
    layers = gathered(facts, ReferenceFacts(count, layers, vocabulary * hidden, True), teaches=teacher)
    return peak_of(memory_on_ranks((*kept, *([layers] if ranks > 1 else [])), ranks, 1, 0))


def _alike(state: dict[str, Tensor], folder: Path) -> bool:
    saved = dict(LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters())
    return all(torch.equal(saved[name], x) for name, x in state.items() if "lora" not in name)


def main(model: str, *more: str) -> None:
    """Print what was measured of a model, by its name."""
    if own_rank():
        return follow(lambda: None)
    name, builder = Path(model).name, Stored(model, "lora" in more)
    if "alone" in more:
        keep_freed_memory()
        warm()
        print(json.dumps({name: alone(builder)}))
        return None
    with leading() as ranks:
        ranks.begin(1500.0, ranks.count if "tensor" in more else 1)
        ranks.each(rank_memory.warm_here)
        step(tiny := ShardedPolicy(ranks, TinyBuilders()), ShardedOptimizer(tiny, partial(torch.optim.AdamW), "adamw"))
        ranks.each(rank_memory.forget)
        print(json.dumps({name: on_ranks(ranks, builder, set(more))}))
    return None


if __name__ == "__main__":
    import rank_memory

    main(*sys.argv[1:])
