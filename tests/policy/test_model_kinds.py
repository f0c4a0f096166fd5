"""Models with layers of unlike sizes, recurrent states or capped logits are read and trained as others are."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers import CpmAntConfig, GPT2Config, LlamaConfig, MistralConfig

from grouprl.config.sections import Lora
from grouprl.core.errors import InputError
from grouprl.plan.model_facts import _adapter_parameters
from grouprl.policy import CausalPolicy, Tokens, char_tokenizer
from grouprl.policy.language.model_checks import positions_of, stray_window
from grouprl.policy.language.transformers_engine import TransformersEngine
from grouprl.policy.layer_sizes import largest, sizes_of
from grouprl.policy.lora import add_lora
from grouprl.rollout.local.sampler import generate
from policies import ALPHABET, SIZES, make_model, make_tokens

LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
KINDS: dict[str, dict[str, Any]] = {
    "Qwen3_5TextConfig": {"head_dim": 8, "num_hidden_layers": 4, **LINEAR},
    "OlmoHybridConfig": {"head_dim": 8, "num_hidden_layers": 4, **LINEAR},
    "Gemma4TextConfig": {"head_dim": 8, "sliding_window": 4, "hidden_size_per_layer_input": 8},
    "Gemma3nTextConfig": {"head_dim": 8, "sliding_window": 4, "num_kv_shared_layers": 0, "laurel_rank": 4},
    "Llama4TextConfig": {"head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 48},
}
"""Recurrent states beside keys; sizes by layer; a list of sizes; logits that are no product of states and the head."""
GROUPS = make_tokens([9, 3], 4, 6, seed=3)
"""Prompts of which one is longer than a window of attention, so long that rows of one prompt share it."""


def config_of(kind: str) -> Any:
    made = getattr(transformers, kind, None)
    if made is None:
        pytest.skip(f"this version of transformers has no {kind}")
    small = {"vocab_size_per_layer_input": SIZES["vocab_size"]} if "Gemma" in kind else {}
    return made(**{**SIZES, "num_hidden_layers": 2, **KINDS[kind], **small})


def row_gradients(policy: CausalPolicy, tokens: Tokens, cotangent_bt: torch.Tensor) -> dict[str, torch.Tensor]:
    """Gradients by transformers' own passes over each row alone."""
    policy.model.zero_grad()
    for row, (prompt, response) in enumerate(zip(tokens.prompt_ids, tokens.response_ids, strict=True)):
        logp_lv = policy.model(input_ids=torch.tensor([[*prompt, *response]])).logits[0].log_softmax(-1)
        at = torch.arange(len(response)) + len(prompt) - 1
        (logp_lv[at, torch.tensor(response)] * cotangent_bt[row, : len(response)]).sum().backward()
    return {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", KINDS)
def test_groups_have_the_gradient_of_their_rows_alone(kind: str) -> None:
    policy = CausalPolicy(make_model(config_of(kind)), char_tokenizer(ALPHABET), engine="transformers")
    shape = (len(GROUPS), GROUPS.max_response)
    cotangent_bt = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = row_gradients(policy, GROUPS, cotangent_bt)
    policy.model.zero_grad()
    policy.backward(GROUPS, {"log_prob": cotangent_bt * GROUPS.present_bt()})
    scale = max(float(g.abs().max()) for g in expected.values())
    for name, parameter in policy.model.named_parameters():
        if name in expected:
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=2e-4 * scale)


GPT = {"vocab_size": 17, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}


def shares_prompts(config: Any) -> bool:
    engine = CausalPolicy(make_model(config), char_tokenizer(ALPHABET), engine="transformers")._engine
    assert isinstance(engine, TransformersEngine)
    return engine.shares_prompts


def test_states_that_are_overwritten_are_not_shared_in_training() -> None:
    """Its recurrent state is changed in place behind the prompt, which the backward pass needs as it was."""
    assert not shares_prompts(config_of("Qwen3_5TextConfig"))
    assert shares_prompts(GPT2Config(**GPT))


def test_the_largest_of_sizes_that_differ_by_layer() -> None:
    config = config_of("Gemma4TextConfig")
    if not getattr(config, "is_heterogeneous", False):
        pytest.skip("in this version of transformers, layers have one size")
    wide = [layer.head_dim for layer in config.per_layer_config]
    assert len(set(wide)) == 2
    assert largest(config, "head_dim") == max(wide)
    assert sizes_of(config)[3] == max(wide) * largest(config, "num_key_value_heads")


def test_the_largest_of_a_list_and_of_a_number() -> None:
    assert largest(LlamaConfig(**SIZES), "intermediate_size") == 40
    assert largest(LlamaConfig(**SIZES), "no_such_size") is None
    assert largest(SimpleNamespace(intermediate_size=[40, 48, 44]), "intermediate_size") == 48


def test_a_model_that_padding_changes_is_refused() -> None:
    """It reads a row together with the padding behind it."""
    config = CpmAntConfig(
        vocab_size=17, hidden_size=32, num_attention_heads=4, dim_head=8, dim_ff=48, num_hidden_layers=2
    )
    with pytest.raises(InputError, match=r"CpmAntForCausalLM gives a token other numbers with padding"):
        CausalPolicy(make_model(config), char_tokenizer(ALPHABET))


def by_width(states_bld: torch.Tensor, mask_bl: torch.Tensor) -> torch.Tensor:
    """Numbers that the width of the pass changes, and no later token of the row."""
    return states_bld * mask_bl.shape[1] / mask_bl.sum(1)[:, None, None]


def by_later_tokens(states_bld: torch.Tensor, mask_bl: torch.Tensor) -> torch.Tensor:
    """Numbers that the other tokens of the row change, and no padding."""
    shown_bl1 = mask_bl[:, :, None]
    return states_bld + (states_bld * shown_bl1).sum(1, keepdim=True) / shown_bl1.sum(1, keepdim=True)


@pytest.mark.parametrize("changed", [by_width, by_later_tokens])
def test_a_model_that_padding_or_later_tokens_change_is_refused(changed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(GPT2Config(**GPT))
    forward = type(model.transformer).forward

    def other(self: Any, *args: Any, **named: Any) -> Any:
        out, mask_bl = forward(self, *args, **named), named.get("attention_mask")
        if mask_bl is not None:
            out.last_hidden_state = changed(out.last_hidden_state, mask_bl)
        return out

    monkeypatch.setattr(type(model.transformer), "forward", other)
    with pytest.raises(InputError, match="a token must not depend on later ones"):
        CausalPolicy(model, char_tokenizer(ALPHABET), engine="transformers")


def test_adapters_leave_out_layers_that_are_no_linear_ones() -> None:
    """Llama 4's router is called a linear layer and gives two tensors."""
    pytest.importorskip("peft")
    policy = CausalPolicy(add_lora(make_model(config_of("Llama4TextConfig")), {"r": 2}), char_tokenizer(ALPHABET))
    policy.backward(GROUPS, {"log_prob": torch.ones(len(GROUPS), GROUPS.max_response)})
    adapted = {name for name, p in policy.model.named_parameters() if p.requires_grad}
    assert adapted
    assert not any("router" in name for name in adapted)
    with pytest.raises(InputError, match=r"holds 'router', which is a Llama4Router.*q_proj"):
        add_lora(make_model(config_of("Llama4TextConfig")), {"target_modules": ["q_proj", "router"]})


@pytest.mark.parametrize("config", [GPT2Config(**GPT), LlamaConfig(**SIZES)])
def test_adapters_are_counted_as_they_are_made(config: Any) -> None:
    """GPT-2's layers are transposed linear ones."""
    pytest.importorskip("peft")
    counted = _adapter_parameters(make_model(config), Lora(r=3), scores=False)
    made = add_lora(make_model(config), {"r": 3})
    assert counted == sum(p.numel() for p in made.parameters() if p.requires_grad)


LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "rope_theta": 10000.0}


@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
def test_only_original_positions_count_where_longer_rows_turn_all_tokens_otherwise(place: str) -> None:
    """Beyond them, the log-prob of a token would depend on the longest row beside it."""
    config = SimpleNamespace(max_position_embeddings=64, **{place: {**LONG, "original_max_position_embeddings": 16}})
    assert positions_of(config) == 16
    by_layer = SimpleNamespace(max_position_embeddings=64, **{place: {"full_attention": config.__dict__[place]}})
    assert positions_of(by_layer) == 16
    beside = SimpleNamespace(max_position_embeddings=64, original_max_position_embeddings=32, **{place: LONG})
    assert positions_of(beside) == 32
    assert positions_of(SimpleNamespace(max_position_embeddings=64, **{place: {"rope_type": "yarn"}})) == 64
    assert positions_of(SimpleNamespace()) is None


def test_a_model_with_long_factors_is_sampled_and_trained_within_its_original_positions() -> None:
    config = LlamaConfig(**SIZES, rope_parameters={**LONG, "original_max_position_embeddings": 16})
    policy = CausalPolicy(make_model(config), char_tokenizer(ALPHABET))
    assert policy.max_positions == 16
    with pytest.raises(InputError, match="room for 16 positions"):
        generate(policy, [[1, 4]], n=1, max_new_tokens=15, seeds=[0])
    rollout = generate(policy, [[1, 4, 5, 6], [1, 9]], n=2, max_new_tokens=12, seeds=range(4))
    torch.testing.assert_close(rollout.logp_bt, policy.logp(rollout.tokens), rtol=0, atol=1e-5)


@pytest.mark.parametrize("positions", [6, 9])
def test_models_with_fewer_positions_than_a_probe_are_read(positions: int) -> None:
    policy = CausalPolicy(make_model(GPT2Config(**{**GPT, "n_positions": positions})), char_tokenizer(ALPHABET))
    rollout = generate(policy, [[1, 4], [1]], n=2, max_new_tokens=4, seeds=range(4))
    torch.testing.assert_close(rollout.logp_bt, policy.logp(rollout.tokens), rtol=0, atol=1e-5)


def test_a_window_that_the_model_does_not_have_drops_nothing() -> None:
    """Llama attends to every token whatever its configuration states of windows, and caches are made by it."""
    config = LlamaConfig(**SIZES, sliding_window=24)
    assert stray_window(config)
    assert not stray_window(LlamaConfig(**SIZES))
    assert not stray_window(MistralConfig(**{**SIZES, "sliding_window": 4}))
    policy = CausalPolicy(make_model(config), char_tokenizer(ALPHABET), engine="transformers")
    assert shares_prompts(LlamaConfig(**SIZES))
    assert not shares_prompts(config)
    prompts = [[1, *range(3, 17)] * 2, [1, 9]]
    rollout = generate(policy, prompts, n=2, max_new_tokens=12, seeds=range(4))
    for row, ids in enumerate(rollout.response_ids):
        with torch.no_grad():
            logp_lv = policy.model(input_ids=torch.tensor([[*prompts[row // 2], *ids]])).logits[0].log_softmax(-1)
        own_t = logp_lv[len(prompts[row // 2]) - 1 :][torch.arange(len(ids)), torch.tensor(ids)]
        torch.testing.assert_close(rollout.logp_bt[row, : len(ids)], own_t, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("moved", "refused"), [(0.3, False), (1.5, True)])
def test_half_precision_refuses_what_is_far_from_right_alone(
    moved: float, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding may send a token to another expert when rows are passed together."""
    model = make_model(GPT2Config(**GPT)).bfloat16()
    forward = type(model.transformer).forward

    def other(self: Any, *args: Any, **named: Any) -> Any:
        out = forward(self, *args, **named)
        if len(out.last_hidden_state) > 1:
            out.last_hidden_state = out.last_hidden_state * (1 + moved)
        return out

    monkeypatch.setattr(type(model.transformer), "forward", other)
    with pytest.raises(InputError, match="padding") if refused else nullcontext():
        CausalPolicy(model, char_tokenizer(ALPHABET), engine="transformers")
