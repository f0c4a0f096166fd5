"""Which models' matrices can be cut over ranks, and what is said of the others; the cutting itself runs on ranks."""

from __future__ import annotations

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.orchestrator.make_policy import build_policy
from grouprl.orchestrator.resolve import resolve
from grouprl.policy.language.load import load_policy
from grouprl.policy.language.tiny import build_tiny
from grouprl.policy.sharded.tensor_parallel import _maker, _named, why_not_cut


@pytest.mark.skipif(_maker() is None, reason="this version of transformers has no plans for distributed tensors")
def test_models_that_cannot_be_cut_are_told_why() -> None:
    model, _ = build_tiny("01", hidden=24, layers=1, heads=3, intermediate=48)
    assert why_not_cut(model, 3) is None
    assert "num_attention_heads = 3" in str(why_not_cut(model, 2))
    gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9, n_positions=8))
    assert why_not_cut(gpt2, 2) == "transformers has no plan for GPT2LMHeadModel"
    adapted = load_policy("tiny", alphabet="01", hidden=16, layers=1, heads=2, intermediate=32, lora={"r": 2})
    assert "without adapters" in str(why_not_cut(adapted.model, 2))


def test_a_plan_names_what_it_means_once() -> None:
    model, _ = build_tiny("01", hidden=16, layers=2, heads=2, intermediate=32)
    found = dict(_named(model, model.tp_plan))
    assert found["model.layers.1.self_attn.q_proj"] == found["model.layers.1.self_attn.q_proj.weight"] == "colwise"
    assert found["model.layers.0.mlp.down_proj"] == "rowwise"
    parameters = dict(model.named_parameters())
    assert all(name in parameters for name in found if name.endswith(".weight")), "a tied weight is cut once"
    assert not any("norm" in name for name in found)


@pytest.mark.parametrize(
    ("setting", "said"),
    [({"tensor_parallel": 2}, "launch -n 2"), ({"context_parallel": 3}, "launch -n 3"), ({"offload": True}, "launch")],
)
def test_one_process_refuses_what_needs_several(setting: dict[str, object], said: str) -> None:
    run = resolve(parse_config({"task": "addition", "model": {"name": "tiny", **setting}}))
    with pytest.raises(InputError, match=said):
        build_policy(run)
