"""The lean engine and the model's own forward give the same numbers and gradients."""

import copy

import numpy as np
import pytest
import torch
from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen2Config

from engine_results import assert_same, results
from grouprl.core.errors import InputError
from grouprl.policy import CausalPolicy, Tokens, build_tiny, char_tokenizer
from grouprl.policy.engine import head_is_plain
from grouprl.policy.fast_forward.forward import why_not_lean
from grouprl.policy.fast_forward.token_plan import length_classes, plan_pass
from grouprl.policy.passes import PassSettings
from policies import ALPHABET, FAMILIES, SIZES, make_model, make_policy, make_tokens, precise_norms

BATCHES = {
    "shared prompts": make_tokens([5, 5, 5], 4, 7),
    "ragged shared prompts": make_tokens([3, 9, 1, 6], 3, 8, seed=1),
    "each prompt once": make_tokens([4, 7, 2, 5], 1, 6, seed=2),
    "one long row": make_tokens([70], 2, 40, seed=3, shortest=30),
    "single tokens": make_tokens([4, 2], 3, 1, seed=4),
    "empty responses": Tokens.of([[1, 5], [1, 5], [1, 6, 7]], [[], [4, 2], []]),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch", BATCHES)
def test_engines_agree_in_float64(family, batch):
    model = precise_norms(make_model(FAMILIES[family], torch.float64))
    tokenizer = char_tokenizer(ALPHABET)
    lean = CausalPolicy(model, tokenizer, engine="lean", temperature=0.8)
    own = CausalPolicy(copy.deepcopy(model), tokenizer, engine="transformers", temperature=0.8)
    precise_norms(own.model)
    assert_same(results(lean, BATCHES[batch]), results(own, BATCHES[batch]), 1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_engines_agree_in_float32(family):
    lean, own = (make_policy(family, engine=engine) for engine in ("lean", "transformers"))
    tokens = BATCHES["ragged shared prompts"]
    assert_same(results(lean, tokens), results(own, tokens), 2e-5)


@pytest.mark.parametrize("budget", [10_000, 40])
def test_padding_that_is_sampled_has_the_gradient_that_the_model_gives_it(budget):
    """The model's own embedding has no gradient at its padding token, however many tokens a pass takes."""
    model = precise_norms(make_model(LlamaConfig(**SIZES | {"pad_token_id": 3}), torch.float64))
    tokens = make_tokens([5, 5, 5], 8, 9)
    assert sum(ids.count(3) for ids in tokens.response_ids) > 5
    lean = CausalPolicy(model, char_tokenizer(ALPHABET), engine="lean", token_budget=budget)
    own = CausalPolicy(precise_norms(copy.deepcopy(model)), char_tokenizer(ALPHABET), engine="transformers")
    assert_same(results(lean, tokens), results(own, tokens), 1e-10)


@pytest.mark.parametrize("engine", ["lean", "transformers"])
def test_token_budget_does_not_matter(engine):
    tokens = BATCHES["ragged shared prompts"]
    whole, cut = (make_policy(dtype=torch.float64, engine=engine, token_budget=n) for n in (10_000, 13))
    assert len(cut.passes(tokens, range(len(tokens)))) > 5
    assert_same(results(whole, tokens), results(cut, tokens), 1e-6 if engine == "transformers" else 1e-11)


def test_a_prompt_costs_a_pass_once():
    tokens = make_tokens([40], 8, 4, shortest=4)
    repeated = PassSettings(shared_prefix="off")
    lean, own = (make_policy(token_budget=112, passes=passes) for passes in (PassSettings(), repeated))
    assert [len(rows) for rows in lean.passes(tokens, range(8))] == [8]  # 44 + 7 * (4 + 40 // 8)
    assert [len(rows) for rows in own.passes(tokens, range(8))] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (GPT2Config(vocab_size=17, n_embd=32, n_layer=1, n_head=2, n_positions=64), "not one of the families"),
        (LlamaConfig(**SIZES, hidden_act="gelu"), "gelu"),
        (LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}), "rotary"),
        (MistralConfig(**SIZES, sliding_window=16), "sliding"),
        (Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=16, max_window_layers=1), "sliding"),
    ],
)
def test_models_the_lean_engine_does_not_compute_take_the_other(config, reason):
    model = make_model(config)
    assert reason in why_not_lean(model)
    assert CausalPolicy(model, char_tokenizer(ALPHABET)).engine == "transformers"
    with pytest.raises(InputError, match=reason):
        CausalPolicy(model, char_tokenizer(ALPHABET), engine="lean")


def test_unknown_engine_gets_a_suggestion():
    with pytest.raises(InputError, match="Did you mean 'lean'"):
        make_policy(engine="leen")


@pytest.mark.parametrize("family", FAMILIES)
def test_supported_families_take_the_lean_engine(family):
    assert make_policy(family).engine == "lean"


def test_rotary_base_is_read_from_the_model():
    config = LlamaConfig(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": 100.0})
    lean, own = (CausalPolicy(make_model(config), char_tokenizer(ALPHABET), engine=e) for e in ("lean", "transformers"))
    tokens = BATCHES["shared prompts"]
    assert_same(results(lean, tokens), results(own, tokens), 2e-5)


def test_weights_changed_in_place_are_seen():
    policy, tokens = make_policy(), BATCHES["shared prompts"]
    before = policy.logp(tokens)
    with torch.no_grad():
        policy.model.model.layers[0].self_attn.q_proj.weight.mul_(1.5)
    after = policy.logp(tokens)
    assert (before - after).abs().max() > 1e-3
    torch.testing.assert_close(
        after,
        CausalPolicy(policy.model, policy.tokenizer, engine="transformers").logp(tokens),
        rtol=0,
        atol=2e-5,
    )


def gpt2():
    return make_model(GPT2Config(vocab_size=17, n_embd=32, n_layer=2, n_head=2, n_positions=64))


def test_another_architecture_equals_full_logits():
    policy, tokens = CausalPolicy(gpt2(), char_tokenizer(ALPHABET)), make_tokens([3, 6], 2, 5)
    logp_bt = policy.logp(tokens)
    for row in range(len(tokens)):
        prompt, response = tokens.prompt_ids[row], tokens.response_ids[row]
        logp = policy.model(torch.tensor([prompt + response])).logits[0].log_softmax(-1)
        expected = [logp[len(prompt) - 1 + t, token].item() for t, token in enumerate(response)]
        assert logp_bt[row, : len(response)].tolist() == pytest.approx(expected, abs=1e-5)
        assert (logp_bt[row, len(response) :] == 0).all()


def test_logits_changed_after_the_head_are_noticed_and_scored_as_the_model_gives_them():
    from transformers import Gemma2Config

    config = Gemma2Config(**{**SIZES, "head_dim": 8, "final_logit_softcapping": 1.0})
    model = make_model(config)
    assert not head_is_plain(model)
    assert head_is_plain(gpt2())
    policy, tokens = CausalPolicy(model, char_tokenizer(ALPHABET)), make_tokens([3], 1, 4, shortest=4)
    ids = torch.tensor([tokens.prompt_ids[0] + tokens.response_ids[0]])
    expected = model(ids).logits[0, 2:-1].log_softmax(-1)[torch.arange(4), ids[0, 3:]]
    torch.testing.assert_close(policy.logp(tokens)[0], expected.detach(), rtol=0, atol=1e-5)


def test_rows_of_very_different_length_are_padded_in_classes():
    """Short and long rows of own tokens, with and without a prompt, and the numbers of the model's own forward."""
    assert [rows.tolist() for rows in length_classes(np.array([2, 30, 2, 2, 2, 2, 2, 2]), 4)] == [
        [0, 2, 3, 4, 5, 6, 7],
        [1],
    ]
    assert [rows.tolist() for rows in length_classes(np.array([5, 6, 5, 6]), 4)] == [[0, 1, 2, 3]]
    assert length_classes(np.array([], dtype=int), 4) == []
    generator = np.random.default_rng(0)
    prompts = [[1, 5, 6, 7]] * 8 + [[1, 9]] * 8
    responses = [generator.integers(3, 12, size=25 if i % 8 == 0 else 3).tolist() for i in range(16)]
    tokens = Tokens.of(prompts, responses)
    model, tokenizer = build_tiny("0123456789", hidden=16, layers=2, heads=2, intermediate=24, seed=3)
    lean = CausalPolicy(model, tokenizer, engine="lean")
    plain = CausalPolicy(model, tokenizer, engine="transformers")
    assert len(plan_pass(tokens, torch.float32, torch.device("cpu")).blocks) == 4
    torch.testing.assert_close(lean.logp(tokens), plain.logp(tokens), rtol=2e-5, atol=2e-5)
    cotangent_bt = torch.from_numpy(generator.normal(size=(16, 25))).float()
    found = []
    for policy in (lean, plain):
        policy.backward(tokens, {"log_prob": cotangent_bt})
        found.append([p.grad.clone() for p in policy.parameters()])
        for p in policy.parameters():
            p.grad = None
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4)
