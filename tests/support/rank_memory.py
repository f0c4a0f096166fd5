"""A script for several ranks: how much memory each takes to build a stored model, and for an optimiser step.

`rank_memory.py MODEL [option…]` prints, as JSON, what each rank's memory grew by at its peak. Options: lora, tensor
(matrices cut by all ranks), reference (a frozen copy), save (the model is written).
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from grouprl.config.sections import Optim
from grouprl.policy import Tokens
from grouprl.policy.allocator import keep_freed_memory, return_freed_memory
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.load import load_policy
from grouprl.policy.language.tiny import char_tokenizer
from grouprl.policy.optimizers import build_optimizer
from grouprl.policy.passes import PassSettings
from grouprl.policy.sharded.outline import outline_of
from grouprl.policy.sharded.rank_policy import RankPolicy
from grouprl.policy.sharded.ranks import Station, follow, leading
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


def step(policy, optimizer) -> None:
    """One optimiser step on four rows."""
    tokens = rows()
    optimizer.zero_grad()
    policy.backward(tokens, {"log_prob": torch.full((4, 24), 0.01, dtype=policy.score_dtype)})
    optimizer.step()


def largest_layers(model: torch.nn.Module) -> int:
    """Bytes of the two largest layers in float32: blocks, or the embedding."""
    sizes = [sum(p.numel() for p in block.parameters()) for block in model.model.layers]
    return 4 * sum(sorted([*sizes, model.get_input_embeddings().weight.numel()])[-2:])


def alone(builder: Stored) -> dict[str, object]:
    """Measure one process."""
    keep_freed_memory()
    warm()
    before = begin(None)
    policy = builder.one()
    built = peak(None, before) - before
    optimizer = build_optimizer(Optim(), policy.parameters(), lr=1e-3, weight_decay=0.0)
    begin(None)
    step(policy, optimizer)
    stepped = peak(None, before) - before
    core = policy.model.get_base_model() if builder.lora else policy.model
    return {"weights": 4 * sum(p.numel() for p in policy.model.parameters()),
            "trained": 4 * sum(p.numel() for p in policy.parameters()), "layers": largest_layers(core),
            "build": [built], "step": [stepped]}  # fmt: skip


def on_ranks(builder: Stored, more: set[str]) -> dict[str, object]:
    """Measure all ranks; called on rank 0."""
    with leading() as ranks:
        ranks.begin(600.0, ranks.count if "tensor" in more else 1)
        ranks.each(rank_memory.warm_here)
        step(tiny := ShardedPolicy(ranks, TinyBuilders()), ShardedOptimizer(tiny, partial(torch.optim.AdamW), "adamw"))
        before = ranks.each(rank_memory.begin)

        def grown() -> list[int]:
            return [now - then for now, then in zip(ranks.each(rank_memory.peak), before, strict=True)]

        policy = ShardedPolicy(ranks, builder)
        model = policy.model.get_base_model() if builder.lora else policy.model
        found: dict[str, object] = {"build": grown(), "layers": largest_layers(model)}
        found |= {"weights": 4 * sum(p.numel() for p in policy.model.parameters())}
        found |= {"trained": 4 * sum(p.numel() for p in policy.parameters())}
        make = partial(build_optimizer, Optim(), lr=1e-3, weight_decay=0.0)
        optimizer = ShardedOptimizer(policy, make, "adamw")
        reference = policy.snapshot() if "reference" in more else None
        ranks.each(rank_memory.begin)
        step(policy, optimizer)
        if reference is not None:
            reference.logp(rows())
        found["step"] = grown()
        if "save" in more:
            ranks.each(rank_memory.begin)
            with tempfile.TemporaryDirectory() as folder:
                policy.save(Path(folder) / "saved")
                policy.save_parts(Path(folder) / "parts")
                found["save"] = grown()
                ranks.each(rank_memory.begin)
                policy.load_parts(Path(folder) / "parts")
                found["load"] = grown()
                found["alike"] = _alike(policy.trainable_state(), Path(folder) / "saved")
        return found


def bounds(found: dict[str, object], ranks: int, a_pass: int) -> dict[str, float]:
    """Return what a rank may take at most for each thing: its share of what is kept and 15 %, two layers, a pass.

    Kept are weights in float32, and from the first step on a gradient and two moments of what is trained.
    """
    weights, beside = found["weights"], found["layers"] + a_pass
    kept = {"build": weights, "step": weights + 3 * found["trained"]}
    return {name: 1.15 * whole / ranks + beside for name, whole in kept.items()}


def _alike(state: dict[str, Tensor], folder: Path) -> bool:
    saved = dict(LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters())
    return all(torch.equal(saved[name], x) for name, x in state.items() if "lora" not in name)


def main(model: str, *more: str) -> None:
    """Print what was measured."""
    if own_rank():
        return follow()
    builder = Stored(model, "lora" in more)
    print(json.dumps(alone(builder) if "alone" in more else on_ranks(builder, set(more))))
    return None


if __name__ == "__main__":
    import rank_memory

    main(*sys.argv[1:])
