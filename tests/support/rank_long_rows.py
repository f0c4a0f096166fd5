"""A script for several ranks: the memory of a pass over one long row that all ranks share, beside one process.

`rank_long_rows.py MODEL TOKENS [option…]` prints, as JSON, what each rank's memory grew by at its peak, what a plan
expects, and the row's mean log-prob. Options: alone (one process, whole rows), anew (layers are computed anew).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import rank_memory
from grouprl.config.run import parse_config
from grouprl.plan.memory import batch_arithmetic, memory
from grouprl.plan.model_facts import ModelFacts
from grouprl.policy import Tokens
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.load import load_policy
from grouprl.policy.language.tiny import char_tokenizer
from grouprl.policy.passes import PassSettings
from grouprl.policy.sharded.outline import outline_of
from grouprl.policy.sharded.rank_policy import RankPolicy
from grouprl.policy.sharded.ranks import Station, follow, leading
from grouprl.policy.sharded.sharded_policy import ShardedPolicy
from grouprl.processes.current_ranks import own_rank

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KEY_HEADS = 64, 176, 2, 2, 1
PROMPT = 8


def write_model(folder: Path, positions: int) -> Path:
    """Write a small random model with room for so many tokens, and a tokenizer of characters."""
    path, tokenizer = folder / f"long-{positions}", char_tokenizer("0123456789")
    if not path.is_dir():
        torch.manual_seed(0)
        config = LlamaConfig(hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, num_hidden_layers=LAYERS,
                             num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS, vocab_size=len(tokenizer),
                             tie_word_embeddings=True, max_position_embeddings=positions,
                             bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id)  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(path)
        tokenizer.save_pretrained(path)
    return path


def row(tokens: int) -> Tokens:
    """One row of so many tokens."""
    ids = torch.randint(3, 12, (tokens,), generator=torch.Generator().manual_seed(0)).tolist()
    return Tokens.of([ids[:PROMPT]], [ids[PROMPT:]])


@dataclass(frozen=True)
class LongRows:
    """Builds parts of a stored model for long rows."""

    model: str
    anew: bool

    @property
    def how(self) -> dict[str, object]:
        """Settings of passes: the row is one pass."""
        passes = PassSettings(packing="off", shared_prefix="off", checkpointing="on" if self.anew else "off")
        return {"passes": passes, "token_budget": 4096}

    def part(self, station: Station) -> RankPolicy:
        """The rank's part."""
        outline = outline_of(self.model, torch.float32)
        return RankPolicy(outline, device=station.device, mesh=station.mesh, context=station.context, **self.how)

    def whole(self, station: Station | None) -> CausalPolicy:
        """A policy of one process."""
        return load_policy(self.model, device="cpu", dtype="float32", engine="transformers", **self.how)


def planned(tokens: int, ranks: int, anew: bool) -> int:
    """Return the bytes that a plan expects of a pass over one row."""
    sizes = {"hidden": HIDDEN, "intermediate": INTERMEDIATE, "layers": LAYERS, "vocabulary": 13}
    facts = ModelFacts(parameters=1, trainable=1, kv_width=KEY_HEADS * HIDDEN // HEADS, positions=tokens,
                       dtype="float32", bytes_each=4, device="cpu", **sizes)  # fmt: skip
    config = parse_config({"model": {"context_parallel": ranks}, "batch": {"prompts": 1, "group_size": 1}})
    batch = batch_arithmetic(config, PROMPT, tokens - PROMPT, 0, 1, facts)
    of_a_pass = ("activations of a pass", "keys of shared rows", "log-prob chunk")
    return sum(c.bytes for c in memory(facts, batch, reference=False, anew=anew) if c.what in of_a_pass)


def learn(policy, tokens: Tokens) -> None:
    """One pass forward and backward."""
    policy.backward(tokens, {"log_prob": tokens.present_bt() / len(tokens.response_ids[0])})


def main(model: str, length: str, *more: str) -> None:
    """Print what was measured."""
    if own_rank():
        return follow(lambda: None)
    builder, tokens, anew = LongRows(model, "anew" in more), row(int(length)), "anew" in more
    if "alone" in more:
        rank_memory.warm()
        policy = builder.whole(None)
        learn(policy, row(64))
        before = rank_memory.begin(None)
        learn(policy, tokens)
        grown, ranks = [rank_memory.peak(None, None) - before], 1
        logp = float(policy.logp(tokens).double().mean())
    else:
        with leading() as led:
            ranks = led.count
            led.begin(1500.0, context=ranks)
            led.each(rank_memory.warm_here)
            policy = ShardedPolicy(led, builder)
            learn(policy, row(64))
            begun = led.each(rank_memory.begin)
            learn(policy, tokens)
            grown = [now - then for now, then in zip(led.each(rank_memory.peak), begun, strict=True)]
            logp = float(policy.logp(tokens).double().mean())
    print(json.dumps({"grown": grown, "planned": planned(int(length), ranks, anew), "logp": logp}))
    return None


if __name__ == "__main__":
    import rank_long_rows

    rank_long_rows.main(*sys.argv[1:])
