"""Hold every causal language model of transformers against its own passes over single rows: `make architectures`.

Each is built small, at random, and saved; loaded from its folder, it samples a batch of unlike rows, scores it and
takes a gradient. Writes docs/architectures.json: by model type the largest differences of log-probs and gradients, or
why there are none. `python scripts/architectures.py TYPE …` prints some.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as MODELS

from grouprl.core.errors import InputError
from grouprl.policy import CausalPolicy, char_tokenizer, load_policy
from grouprl.rollout.local.sampler import generate
from page_record import fill

DOCS = Path(__file__).parents[1] / "docs"
RECORD, PAGE = DOCS / "architectures.json", DOCS / "models.md"
GAPS, NEAR = ("sampled", "trained", "gradient"), 5e-5
ALPHABET, MOST = "0123456789+=. ", 30_000_000
PROMPTS = [[1, 4, 5, 13, 6], [1, 9, 9], [1, 7, 3, 8, 10, 11, 12, 4, 5, 6, 6, 7], [1, 4]]
WORDS = {
    32: "hidden_size d_model n_embd dim word_embed_proj_dim embedding_size lru_width",
    4: "num_hidden_layers n_layer n_layers num_layers layers num_attention_heads n_head n_heads num_heads "
    "attention_heads num_experts num_local_experts n_routed_experts moe_num_experts state_size mamba_d_state "
    "ssm_state_size laurel_rank sliding_window attention_window linear_num_value_heads index_topk",
    2: "num_key_value_heads num_kv_heads num_experts_per_tok num_experts_per_token moe_topk moe_k n_group "
    "eos_token_id linear_num_key_heads",
    8: "head_dim q_lora_rank kv_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim hidden_size_per_layer_input "
    "linear_key_head_dim linear_value_head_dim index_head_dim",
    48: "intermediate_size ffn_dim d_ff n_inner ffn_hidden_size",
    16: "moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size",
    128: "max_position_embeddings n_positions n_ctx max_seq_len",
    64: "index_n_heads",
    17: "vocab_size vocab_size_per_layer_input",
    1: "topk_group first_k_dense_replace bos_token_id",
    0: "pad_token_id num_kv_shared_layers",
}
"""Sizes by the settings that have them."""
LAYERS = ["linear_attention", "full_attention"] * 2
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"num_key_value_heads": 4},
    {"num_key_value_heads": 4, "head_dim": 16},
    {"num_key_value_heads": 4, "num_experts_per_tok": 1},
    {"mamba_n_heads": 4, "mamba_num_heads": 4, "mamba_d_head": 16, "mamba_head_dim": 16, "num_heads": 8, "n_groups": 1},
    {"num_key_value_heads": 4, "layer_types": LAYERS},
    {"layer_types": LAYERS},
    {"layer_types": ["mamba", "attention"] * 2, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_expand": 2},
    {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "mamba_dt_rank": 4},
    {"attention_types": [[["global", "local"], 2]]},
    {"is_decoder": True},
)
"""Changes of the sizes, tried in turn until transformers itself runs the model."""


def built(kind: str) -> PreTrainedModel | str:
    """Return a small model of a type, or why transformers makes none of these sizes."""
    said = ""
    for change in CHANGES:
        try:
            return _built(kind, change)
        except Exception as error:  # whatever a model of another size than intended raises
            said = said or f"{type(error).__name__}: {error}"
    return said.splitlines()[0][:120]


def _built(kind: str, change: dict[str, Any]) -> PreTrainedModel:
    maker, name = CONFIG_MAPPING[kind], MODELS[kind]
    known = {field.name for field in dataclasses.fields(maker)} | set(inspect.signature(maker.__init__).parameters)
    sizes = {word: size for size, words in WORDS.items() for word in words.split()} | change
    config = maker(**{word: size for word, size in sizes.items() if word in known or word == "is_decoder"})
    model_class = getattr(transformers, name if isinstance(name, str) else name[0])
    config = config if model_class.config_class is maker else config.get_text_config()
    config.pad_token_id = 0
    with torch.device("meta"):
        count = sum(p.numel() for p in model_class(config).parameters())
    if count > MOST:
        raise ValueError(f"{count:,} parameters at these sizes")
    torch.manual_seed(0)
    model: PreTrainedModel = model_class(config).eval()
    for parameter in model.parameters():
        if not parameter.abs().max() > 0:
            torch.nn.init.normal_(parameter, std=0.02)
    if not torch.isfinite(model(input_ids=torch.tensor([[1, 4, 5, 13, 6, 7, 3]])).logits).all():
        raise ValueError("no finite logits at these sizes")
    return model


def compared(model: PreTrainedModel) -> dict[str, Any]:
    """Return the largest differences of a model's rows, or in which words it was refused."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            model.save_pretrained(folder)
        except RuntimeError as error:
            return {"not built": f"transformers does not save it: {error}"}
        char_tokenizer(ALPHABET).save_pretrained(folder)
        try:
            return _differences(load_policy(folder))
        except InputError as error:
            return {"refused": str(error).replace(folder, "it")}


def _differences(policy: CausalPolicy) -> dict[str, Any]:
    rollout = generate(policy, PROMPTS, n=2, max_new_tokens=10, seeds=range(8))
    trained_bt = policy.logp(rollout.tokens)
    present_bt = rollout.tokens.present_bt()
    cotangent_bt = torch.randn(trained_bt.shape, generator=torch.Generator().manual_seed(1)) * present_bt
    own = list(_alone(policy.model, rollout.response_ids))
    own_bt = torch.zeros_like(trained_bt)
    for row, logp_t in enumerate(own):
        own_bt[row, : len(logp_t)] = logp_t.detach()
    policy.backward(rollout.tokens, {"log_prob": cotangent_bt})
    found = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in policy.model.parameters()]
    policy.model.zero_grad()
    torch.stack([(x * cotangent_bt[row, : len(x)]).sum() for row, x in enumerate(own)]).sum().backward()
    wanted = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.model.parameters()]
    scale = max(float(g.abs().max()) for g in wanted)
    return {
        "engine": policy.engine,
        "sampled": float(((rollout.logp_bt - own_bt) * present_bt).abs().max()),
        "trained": float(((trained_bt - own_bt) * present_bt).abs().max()),
        "gradient": max(float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True)) / scale,
    }


def _alone(model: PreTrainedModel, responses: Sequence[Sequence[int]]) -> Iterator[torch.Tensor]:
    """Yield the log-probs of each response by a pass of transformers over its row alone."""
    for row, response in enumerate(responses):
        prompt = PROMPTS[row // 2]
        logp_lv = model(input_ids=torch.tensor([[*prompt, *response]])).logits[0].log_softmax(-1)
        yield logp_lv[torch.arange(len(response)) + len(prompt) - 1, torch.tensor(response)]


def counts(record: dict[str, dict[str, Any]]) -> str:
    """Return what a record counts, and the types that are not as they should be."""
    made = {kind: row for kind, row in record.items() if "not built" not in row}
    told = [kind for kind, row in made.items() if "refused" in row]
    near = [kind for kind, row in made.items() if "sampled" in row and max(row[k] for k in GAPS) <= NEAR]
    far = sorted(made.keys() - set(told) - set(near))
    lean = sum(made[kind]["engine"] == "lean" for kind in near)
    apart = ", ".join(f"`{kind}` ({max(made[kind][k] for k in GAPS):.2g})" for kind in far)
    return "\n".join(
        [
            "| | types |",
            "| --- | --- |",
            f"| within {NEAR:g} of rows alone in all three | {len(near)}, {lean} of them by `lean` |",
            f"| further apart: {apart or 'none'} | {len(far)} |",
            f"| refused in words: {', '.join(f'`{kind}`' for kind in told)} | {len(told)} |",
            f"| not built: `transformers` does not run it at these sizes | {len(record) - len(made)} |",
        ]
    )


def main(kinds: Sequence[str]) -> None:
    """Compare all, or print some."""
    found = {} if kinds or not RECORD.exists() else json.loads(RECORD.read_text())
    for kind in kinds or sorted(set(MODELS) - found.keys()):
        model = built(kind)
        found[kind] = {"not built": model} if isinstance(model, str) else compared(model)
        print(kind, found[kind], flush=True)
        if not kinds:
            RECORD.write_text(json.dumps(dict(sorted(found.items())), indent=0) + "\n")
    if not kinds:
        fill(PAGE, {"counts of models": counts(found)})


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    main(sys.argv[1:])
