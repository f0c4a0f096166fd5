"""Log-probs and gradients of a language model against plain autograd, row by row."""

import math

import pytest
import torch

from grouprl.core.errors import InputError
from grouprl.policy import CausalPolicy, Tokens, build_tiny, char_tokenizer, load_policy
from policies import ALPHABET, make_policy, make_tokens

TOKENS = make_tokens([3, 6, 6], 3, 6, seed=5)
SHAPE = (len(TOKENS), TOKENS.max_response)


def cotangent(seed=0, dtype=torch.float64):
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def gradients(policy):
    return {name: None if p.grad is None else p.grad.clone() for name, p in policy.named_parameters()}


# ---- tokens ----------------------------------------------------------------------------------------------------------


def test_tokens_shapes():
    tokens = Tokens.of([[1, 2], torch.tensor([1])], [[3], [4, 5, 6]])
    assert (len(tokens), tokens.max_response, tokens.lengths) == (2, 3, (3, 4))
    assert tokens.present_bt().tolist() == [[True, False, False], [True, True, True]]
    assert tokens.targets().tolist() == [3, 4, 5, 6]
    assert tokens.rows(torch.tensor([1])) == Tokens(((1,),), ((4, 5, 6),))
    with pytest.raises(InputError, match="prompt of row 1 has no tokens"):
        Tokens.of([[1], []], [[2], [3]])
    with pytest.raises(InputError, match="1 prompts and 2 responses"):
        Tokens.of([[1]], [[2], [3]])


# ---- log-probs -------------------------------------------------------------------------------------------------------


def test_temperature_divides_the_logits():
    warm, cold = (make_policy(temperature=t) for t in (1.0, 0.5))
    ids = torch.tensor([TOKENS.prompt_ids[0] + TOKENS.response_ids[0]])
    at, target = len(TOKENS.prompt_ids[0]) - 1, TOKENS.response_ids[0][0]
    logits = warm.model(ids).logits[0, at]
    assert warm.logp(TOKENS)[0, 0].item() == pytest.approx(logits.log_softmax(-1)[target].item(), abs=1e-5)
    assert cold.logp(TOKENS)[0, 0].item() == pytest.approx((2 * logits).log_softmax(-1)[target].item(), abs=1e-5)


def test_beyond_a_rows_end_everything_is_zero():
    policy = make_policy(value_head=True)
    torch.nn.init.ones_(policy.value_head.bias)
    out = policy.evaluate(TOKENS, ["log_prob", "entropy", "value"])
    absent = ~TOKENS.present_bt()
    assert absent.any()
    for tensor in out.values():
        assert tensor.shape == SHAPE
        assert (tensor[absent] == 0).all()
        assert (tensor[~absent] != 0).all()


def test_nothing_but_the_requested_is_given_and_it_carries_no_graph():
    out = make_policy().evaluate(TOKENS, ["entropy"])
    assert set(out) == {"entropy"}
    assert not out["entropy"].requires_grad


@pytest.mark.parametrize("engine", ["lean", "transformers"])
def test_rows_do_not_see_each_other(engine):
    policy = make_policy(dtype=torch.float64, engine=engine)
    order = [8, 2, 5, 0]
    all_of_them, some = policy.logp(TOKENS), policy.logp(TOKENS.rows(order))
    torch.testing.assert_close(all_of_them[order][:, : some.shape[1]], some, rtol=0, atol=1e-6)


def test_no_rows_and_no_tokens():
    policy = make_policy()
    assert policy.logp(Tokens((), ())).shape == (0, 0)
    assert policy.evaluate(Tokens.of([[1, 4]], [[]]), ["entropy"])["entropy"].shape == (1, 0)
    policy.backward(Tokens.of([[1, 4]], [[]]), {"log_prob": torch.zeros(1, 0)})


# ---- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["lean", "transformers"])
def test_backward_equals_autograd_through_logp(engine):
    policy = make_policy(dtype=torch.float64, engine=engine, value_head=True, token_budget=20)
    parts = [cotangent(i) for i in range(3)]
    names = ["log_prob", "entropy", "value"]
    policy.backward(TOKENS, dict(zip(names, parts, strict=True)))
    recomputed = gradients(policy)
    for parameter in policy.parameters():
        parameter.grad = None
    torch.autograd.backward(list(policy.evaluate(TOKENS, names, grad=True).values()), parts)
    for name, grad in gradients(policy).items():
        torch.testing.assert_close(grad, recomputed[name], rtol=0, atol=1e-10, msg=name)


def test_gradient_equals_a_finite_difference():
    policy = make_policy(dtype=torch.float64)
    weight, at, step = policy.model.model.layers[0].mlp.up_proj.weight, (3, 5), 1e-4
    g = cotangent()
    policy.backward(TOKENS, {"log_prob": g})
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            weight[at] += sign * step
            values.append((policy.logp(TOKENS) * g).sum().item())
            weight[at] -= sign * step
    assert weight.grad[at].item() == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5, abs=1e-7)


def test_gradients_accumulate():
    policy = make_policy(dtype=torch.float64)
    policy.backward(TOKENS, {"log_prob": cotangent()})
    once = gradients(policy)
    policy.backward(TOKENS, {"log_prob": cotangent()})
    for name, grad in gradients(policy).items():
        torch.testing.assert_close(grad, 2 * once[name], rtol=1e-12, atol=0)


def test_rows_without_cotangent_are_never_run_and_the_result_is_the_same(monkeypatch):
    policy, run = make_policy(dtype=torch.float64), []
    g = cotangent()
    g[[0, 1, 4, 7]] = 0.0
    length = TOKENS.response_lengths[2]
    g[2, :length] = 0.0  # what lies beyond the end of a row does not make it live
    assert length < SHAPE[1]
    read = policy._engine.read
    monkeypatch.setattr(policy._engine, "read", lambda tokens: (run.append(tokens), read(tokens))[1])
    policy.backward(TOKENS, {"log_prob": g})
    assert sorted(p + r for t in run for p, r in zip(t.prompt_ids, t.response_ids, strict=True)) == sorted(
        TOKENS.prompt_ids[i] + TOKENS.response_ids[i] for i in (3, 5, 6, 8)
    )
    skipped = gradients(policy)
    for parameter in policy.parameters():
        parameter.grad = None
    policy.evaluate(TOKENS, ["log_prob"], grad=True)["log_prob"].backward(g)
    for name, grad in gradients(policy).items():
        torch.testing.assert_close(skipped[name], grad, rtol=0, atol=1e-11, msg=name)


def test_nothing_is_run_for_zero_cotangents(monkeypatch):
    policy = make_policy()
    monkeypatch.setattr(policy._engine, "read", lambda *_a, **_k: pytest.fail("ran the model"))
    policy.backward(TOKENS, {"log_prob": torch.zeros(SHAPE)})
    assert all(p.grad is None for p in policy.parameters())


def test_entropy_alone_makes_a_row_live():
    policy = make_policy()
    policy.backward(TOKENS, {"log_prob": torch.zeros(SHAPE), "entropy": cotangent(dtype=torch.float32)})
    assert policy.model.model.norm.weight.grad.abs().sum() > 0


def test_a_cotangent_of_another_shape_is_refused():
    with pytest.raises(InputError, match=r"\[B,T\]"):
        make_policy().backward(TOKENS, {"log_prob": torch.zeros(SHAPE[0], SHAPE[1] + 1)})


# ---- values ----------------------------------------------------------------------------------------------------------


def test_values_begin_at_zero_and_read_the_state_before_each_token():
    policy = make_policy(value_head=True, dtype=torch.float64, engine="transformers")
    assert (policy.evaluate(TOKENS, ["value"])["value"] == 0).all()
    torch.nn.init.normal_(policy.value_head.weight)
    prompt, response = TOKENS.prompt_ids[4], TOKENS.response_ids[4]
    states = policy.model.model(torch.tensor([prompt + response])).last_hidden_state[0]
    expected = policy.value_head(states)[len(prompt) - 1 : -1, 0]
    torch.testing.assert_close(
        policy.evaluate(TOKENS, ["value"])["value"][4, : len(response)], expected, rtol=0, atol=1e-6
    )


def test_values_without_a_head_are_refused():
    with pytest.raises(InputError, match="no output 'value'"):
        make_policy().evaluate(TOKENS, ["value"])


# ---- states, references, files ---------------------------------------------------------------------------------------


def test_state_is_a_copy_and_goes_back_in():
    policy = make_policy(value_head=True)
    state, before = policy.trainable_state(), policy.logp(TOKENS)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1)
    assert not torch.equal(policy.logp(TOKENS), before)
    policy.load_trainable_state(state)
    assert torch.equal(policy.logp(TOKENS), before)
    assert {"value_head.weight", "value_head.bias"} < state.keys()
    with pytest.raises(InputError, match=r"value_head\.bias"):
        make_policy().load_trainable_state(state)


def test_a_reference_stays_where_it_was():
    policy = make_policy()
    reference, before = policy.reference(), policy.logp(TOKENS)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.1)
    assert torch.equal(reference.logp(TOKENS), before)
    assert not torch.equal(policy.logp(TOKENS), before)


def test_value_head_is_saved_beside_the_model(tmp_path):
    policy = load_policy("tiny", alphabet=ALPHABET, value_head=True)
    torch.nn.init.normal_(policy.value_head.weight)
    policy.save(tmp_path)
    again = load_policy(tmp_path, value_head=True)
    assert torch.equal(again.evaluate(TOKENS, ["value"])["value"], policy.evaluate(TOKENS, ["value"])["value"])
    assert load_policy(tmp_path).value_head is None


# ---- LoRA ------------------------------------------------------------------------------------------------------------


def adapted(engine="auto", **lora):
    pytest.importorskip("peft")
    policy = load_policy("tiny", alphabet=ALPHABET, lora={"r": 4, "alpha": 8, **lora}, engine=engine)
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=g))
    return policy


def test_only_adapters_are_trained():
    policy = adapted()
    names = [name for name, _ in policy.named_parameters()]
    assert len(names) == 3 * 7 * 2
    assert all("lora_" in name for name in names)
    assert policy.trainable_state().keys() == set(names)


def test_both_engines_apply_adapters():
    lean, own = adapted("lean"), adapted("transformers")
    for policy in (lean, own):
        policy.backward(TOKENS, {"log_prob": cotangent(dtype=torch.float32)})
    torch.testing.assert_close(lean.logp(TOKENS), own.logp(TOKENS), rtol=0, atol=1e-5)
    for (name, a), (_, b) in zip(lean.named_parameters(), own.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4, msg=name)


def test_reference_is_the_model_without_adapters():
    policy = adapted()
    plain = load_policy("tiny", alphabet=ALPHABET)
    torch.testing.assert_close(policy.reference().logp(TOKENS), plain.logp(TOKENS), rtol=0, atol=1e-6)
    assert (policy.logp(TOKENS) - plain.logp(TOKENS)).abs().max() > 1e-3


def test_adapters_are_merged_when_saved_or_saved_alone(tmp_path):
    policy = adapted()
    policy.save(tmp_path / "merged")
    merged = load_policy(tmp_path / "merged")
    torch.testing.assert_close(merged.logp(TOKENS), policy.logp(TOKENS), rtol=0, atol=1e-5)
    policy.save(tmp_path / "adapter", adapter_only=True)
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    with pytest.raises(InputError, match="no LoRA adapters"):
        merged.save(tmp_path / "x", adapter_only=True)


def test_adapter_dropout_acts_only_where_gradients_are_taken():
    policy = adapted(dropout=0.5)
    assert policy.engine == "transformers"
    assert torch.equal(policy.logp(TOKENS), policy.logp(TOKENS))
    first, second = (policy.evaluate(TOKENS, ["log_prob"], grad=True)["log_prob"] for _ in range(2))
    assert not torch.equal(first, second)


def test_unknown_lora_setting():
    with pytest.raises(InputError, match="Did you mean 'alpha'"):
        load_policy("tiny", lora={"r": 4, "alhpa": 1})


# ---- loading and chat ------------------------------------------------------------------------------------------------


def test_loading_errors(tmp_path):
    with pytest.raises(InputError, match=r"no config\.json"):
        load_policy(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        load_policy(tmp_path / "nowhere")
    with pytest.raises(InputError, match="'bfloat16'"):
        load_policy("tiny", dtype="bflot16")
    with pytest.raises(InputError, match="device='tpu0'"):
        load_policy("tiny", device="tpu0")
    with pytest.raises(InputError, match="only for the tiny model"):
        load_policy(tmp_path, hidden=3)
    with pytest.raises(InputError, match="temperature=0"):
        load_policy("tiny", temperature=0.0)


def test_dtype_and_device_are_overridable():
    assert load_policy("tiny").dtype == torch.float32
    policy = load_policy("tiny", dtype="float64", device="cpu")
    assert (policy.dtype, policy.device.type) == (torch.float64, "cpu")
    assert policy.logp(TOKENS).dtype == torch.float64
    half = load_policy("tiny", dtype="bfloat16", alphabet=ALPHABET)
    full = load_policy("tiny", alphabet=ALPHABET)
    assert half.logp(TOKENS).dtype == torch.float32
    torch.testing.assert_close(half.logp(TOKENS), full.logp(TOKENS), rtol=0, atol=0.1)


def test_tokenizer_without_pad_uses_eos_and_without_eos_is_refused(tmp_path):
    model, tokenizer = build_tiny("ab")
    tokenizer.pad_token = None
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert load_policy(tmp_path).tokenizer.pad_token == "<eos>"
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="no end-of-sequence token"):
        load_policy(tmp_path)


def test_chat_messages():
    policy = make_policy()
    messages = [{"role": "user", "content": "1+2"}]
    with pytest.raises(InputError, match="no chat template"):
        policy.encode_prompt(messages)
    policy.tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}{{ m['content'] }}.{% endfor %}"
        "{% if add_generation_prompt %}={% endif %}"
    )
    assert policy.encode_prompt(messages) == [1, *policy.encode("1+2.=")]


def test_eos_ids_include_the_models_own():
    policy = make_policy()
    policy.model.generation_config.eos_token_id = [9, 1, 2]
    assert policy.eos_ids == (2, 9, 1), "the tokenizer's own first: it is the one that is written behind texts"


def test_a_uniform_model_scores_every_token_alike():
    model, _ = build_tiny(ALPHABET)
    torch.nn.init.zeros_(model.lm_head.weight)
    out = CausalPolicy(model, char_tokenizer(ALPHABET)).evaluate(TOKENS, ["log_prob", "entropy"])
    present, v = TOKENS.present_bt(), 3 + len(ALPHABET)
    torch.testing.assert_close(out["log_prob"][present], torch.full((int(present.sum()),), -math.log(v)))
    torch.testing.assert_close(out["entropy"][present], torch.full((int(present.sum()),), math.log(v)))
