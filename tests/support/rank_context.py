"""A script for several ranks: models whose rows all ranks share, beside one process, and those that cannot be."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from grouprl.core.errors import InputError
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.load import load_policy
from grouprl.policy.language.tiny import char_tokenizer
from grouprl.policy.passes import Choice, PassSettings
from grouprl.policy.sharded import context_attention
from grouprl.policy.sharded.ranks import Ranks, follow, leading
from grouprl.policy.sharded.sharded_policy import ShardedPolicy
from grouprl.processes.current_ranks import own_rank
from grouprl.records.tokens import Tokens

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 4}
LONG_TURNS = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
MODELS: dict[str, dict[str, Any]] = {
    "starcoder2": {**SIZES, "num_key_value_heads": 2},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40},
    "mistral": {**GROUPED, "sliding_window": 5},
    "qwen2": {**SIZES, "num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 3,
              "layer_types": ["sliding_attention", "full_attention"]},
    "gemma2": {**GROUPED, "attn_logit_softcapping": 2.0},
    "qwen3_next": {**GROUPED, "layer_types": ["linear_attention", "full_attention"], "num_experts": 0,
                   "linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 4,
                   "linear_value_head_dim": 4},
    "bloom": {"hidden_size": 16, "n_layer": 2, "n_head": 2},
    "gpt_neo": {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]],
                "max_position_embeddings": 64, "window_size": 3},
    "llama": {**GROUPED, "rope_parameters": LONG_TURNS},
}  # fmt: skip
"""By their kind in transformers; the first four carry."""
ROWS = {
    "even": Tokens.of([[3, 4, 5, 6]] * 4, [[5, 6, 7, 8, 9, 3]] * 4),
    "ragged": Tokens.of([[3, 4], [5, 6, 7, 8, 9], [4], [3, 9]], [[5] * 20, [6, 7, 8], [9, 3], [4, 5, 6, 7, 8, 9]]),
    "short answers": Tokens.of([[3 + i % 9 for i in range(37)]], [[5, 6]]),
    "one token": Tokens.of([[3]], [[5]]),
}
"""One of them as long as the longest row that GPT-2 has room for."""


def write_model(folder: Path, kind: str) -> Path:
    """Write a small random model of a kind, in float64, with a tokenizer."""
    tokenizer, path = char_tokenizer("0123456789"), folder / kind
    torch.manual_seed(0)
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), **MODELS[kind], **ends)
    AutoModelForCausalLM.from_config(config, dtype=torch.float64).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@dataclass(frozen=True)
class StoredBuilders:
    """Builds the policy of a folder and its parts."""

    folder: Path
    packing: Choice
    budget: int = 4096
    masked: int = 2**21

    def whole(self, station: object) -> CausalPolicy:
        """The policy of a single process."""
        passes = PassSettings("off", "off", "on")
        how = {"engine": "transformers", "value_head": True, "passes": passes, "token_budget": self.budget}
        return load_policy(str(self.folder), dtype="float64", device="cpu", **how)

    def part(self, station):
        from grouprl.policy.sharded.outline import outline_of
        from grouprl.policy.sharded.rank_policy import RankPolicy

        context_attention.MASKED["cpu"] = self.masked
        return RankPolicy(outline_of(self.folder, torch.float64), device=station.device, mesh=station.mesh,
                          context=station.context, passes=PassSettings(self.packing, "off", "auto"), value_head=True,
                          token_budget=self.budget)  # fmt: skip


def apart(ranks: Ranks, builders: StoredBuilders) -> dict[str, float]:
    """How far outputs and gradients of all rows are from those of one process."""
    one, sharded = builders.whole(None), ShardedPolicy(ranks, builders)
    start = {name: x + 0.01 for name, x in one.trainable_state().items()}  # the value head begins at zero
    one.load_trainable_state(start)
    sharded.load_trainable_state(start)
    found = {"outputs": 0.0, "gradients": 0.0, "largest": 0.0}
    for tokens in ROWS.values():
        names = ("log_prob", "entropy", "value")
        outputs = [policy.evaluate(tokens, names) for policy in (one, sharded)]
        found["outputs"] = max(found["outputs"], *(float((outputs[0][n] - outputs[1][n]).abs().max()) for n in names))
        place_bt = torch.arange(tokens.present_bt().numel()).view_as(tokens.present_bt())
        pulls = {n: torch.sin(place_bt + i).double() * tokens.present_bt() for i, n in enumerate(names)}
        for policy in (one, sharded):
            policy.backward(tokens, pulls)
        parts = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in one.parameters()]
        whole = dict(zip(start, parts, strict=True))
        others = ranks.each(gradients)[0]
        found["gradients"] = max(found["gradients"], *(float((whole[n] - others[n]).abs().max()) for n in whole))
        found["largest"] = max(float(x.abs().max()) for x in whole.values())
    return found


def gradients(station, share):
    """The gradients of the ranks' parts, whole."""
    return {name: p.grad.full_tensor() for name, p in station.kept["policy"].named_parameters()}


def main(folder: str, *names: str) -> None:
    """Print, as JSON, how far apart each model is, `kind` or `kind+padded`, or why it is refused."""
    warnings.filterwarnings("error", message=".*returned a view tensor")
    if own_rank():
        return follow(lambda: None)
    with leading() as ranks:
        ranks.begin(300.0, context=ranks.count)
        found: dict[str, object] = {}
        for name in names:
            kind, _, how = name.partition("+")
            path = write_model(Path(folder), kind)
            builders = StoredBuilders(path, "off" if how == "padded" else "on", masked=64 if how == "small" else 2**21)
            try:
                found[name] = apart(ranks, builders)
            except InputError as error:
                found[name] = str(error)
        print(json.dumps(found))
    return None


if __name__ == "__main__":
    import rank_context

    rank_context.main(*sys.argv[1:])
