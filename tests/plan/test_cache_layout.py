"""What a plan says that sampling keeps of a row is what transformers' caches and the decoder hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from architectures import _built
from grouprl.config.run import parse_config
from grouprl.plan.cache_layout import _tensors, cache_layout
from grouprl.plan.kept_numbers import KeptNumbers
from grouprl.plan.plan import plan
from grouprl.policy.language.model_checks import STATES, state_name
from grouprl.policy.language.tiny import char_tokenizer
from grouprl.rollout.local.unpadded_decoder import UnpaddedDecoder

STATE = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_expand": 2, "mamba_d_ssm": 64, "mamba_n_groups": 1}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"] * 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {},
    "falcon": {},
    "gpt_bigcode": {},
    "mistral": {},
    "gemma3_text": WINDOWS,
    "gpt_oss": WINDOWS,
    "llama4_text": {"num_key_value_heads": 4},
    "qwen3_moe": {"num_key_value_heads": 4},
    "qwen3_next": {"num_key_value_heads": 2},
    "jamba": {"attn_layer_period": 4, "attn_layer_offset": 1, "expert_layer_period": 2, "mamba_dt_rank": 4},
    "mamba": {},
    "mamba2": {"num_heads": 8, "n_groups": 1},
    "falcon_h1": STATE,
    "bamba": {**STATE, "attn_layer_indices": [1, 3]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2, **STATE},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "deepseek_v2": {"num_key_value_heads": 4},
    "deepseek_v3": {"num_key_value_heads": 4},
    "deepseek_v32": {"num_key_value_heads": 4},
    "minimax": {"num_key_value_heads": 4},
}
"""Attention of many, few and one key, windows, chunks, states beside it or in its place, compressed keys."""
TOKENS = 24


def planned(model: PreTrainedModel) -> KeptNumbers:
    with torch.device("meta"):
        found = cache_layout(type(model)(model.config))
    assert found is not None
    return found


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    try:
        return _built(request.param, FAMILIES[request.param])
    except KeyError:
        pytest.skip(f"this version of transformers has no {request.param}")


@torch.no_grad()
def test_the_layout_is_that_of_the_cache_of_a_pass(model: PreTrainedModel) -> None:
    layout = planned(model)
    for tokens in (5, TOKENS):
        out = model(input_ids=torch.arange(tokens)[None] % 13 + 3, use_cache=True)
        cache = getattr(out, state_name(model) or STATES[0])
        held = {id(each): each.numel() for each in _tensors(cache)}
        assert layout.numbers(tokens) == sum(held.values())


def test_the_decoder_holds_what_the_layout_says(model: PreTrainedModel) -> None:
    """Windows hold one token more until the next one has been read."""
    layout, decoder = planned(model), UnpaddedDecoder(model)
    decoder.start([[n % 13 + 3 for n in range(TOKENS - 1)]], [0], 1)
    decoder.step(torch.tensor([5]))
    held: dict[int, int] = {}
    for each in _tensors(decoder._parts[0][0]._cache):
        held[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes() // each.element_size()
    least = layout.numbers(TOKENS)
    assert least <= sum(held.values()) <= least + sum(each for room, each in layout.windows if room < TOKENS)


def test_layers_without_keys_are_not_counted() -> None:
    jamba, whole = planned(_built("jamba", FAMILIES["jamba"])), planned(_built("llama", {}))
    assert 4 * jamba.per_token == whole.per_token, "one of four layers attends"
    assert jamba.state > 0
    latent = planned(_built("deepseek_v3", FAMILIES["deepseek_v3"]))
    assert latent.per_token == 4 * (8 + 8), "a compressed key and one of positions, for all heads"


def test_a_row_within_its_windows_is_said_as_any_other() -> None:
    layout = KeptNumbers(8, ((3, 4), (10, 2)), 7)
    assert (layout.numbers(2), layout.said(2)) == (2 * 14 + 7, "(2 tokens × 14 numbers + 7 of states)")
    assert (layout.numbers(20), layout.whole.numbers(20)) == (8 * 20 + 3 * 4 + 10 * 2 + 7, 14 * 20 + 7)
    assert layout.said(20) == "(20 tokens × 8 numbers + 3 tokens × 4 + 10 tokens × 2 + 7 of states)"
    assert KeptNumbers(8).said(1000) == "1,000 tokens × 8 numbers"


def test_windows_drop_nothing_that_another_turn_continues(tmp_path: Path) -> None:
    model = _built("gemma3_text", {**WINDOWS, "max_position_embeddings": 4096})
    model.save_pretrained(tmp_path)
    char_tokenizer("0123456789+=. ").save_pretrained(tmp_path)
    layout, size = planned(model), {}
    for task in ("addition", "guess"):
        given = {"task": task, "method": "grpo", "warmup": {"steps": 0}, "model": {"name": str(tmp_path)}}
        found = plan(parse_config({**given, "sampling": {"max_new_tokens": 16}}))
        (size[task],) = [cost.bytes for cost in found.costs if cost.what == "rollout cache"]
        kept = layout.whole if task == "guess" else layout
        assert size[task] == found.batch.completions * kept.numbers(found.batch.row) * 4
    assert layout.whole.numbers(30) > layout.numbers(30)
