"""The local sampler against the model's own generation and forward: seeds, endings, filters, distributions."""

import pytest
import torch
from transformers import GPT2Config, MambaConfig, MistralConfig

from grouprl.core.errors import InputError
from grouprl.policy import CausalPolicy, char_tokenizer
from grouprl.policy.lora import add_lora
from grouprl.rollout import generate
from grouprl.rollout.local import decoder_protocol, key_value_cache
from grouprl.rollout.local import lean_decoder as lean_decoder_module
from grouprl.rollout.local.decoder_protocol import reading_order
from policies import ALPHABET, FAMILIES, SIZES, make_model, make_policy

PROMPTS = [[1, 4, 5, 13], [1, 9], [1, 6, 7, 8, 9, 10, 13], [1, 9, 9]]
ENGINES = ["lean", "transformers"]


@pytest.fixture(params=["slots", "slots, shared", "rows", "rows, shared", "transformers"])
def any_decoder(request, monkeypatch):
    """Each way of decoding in turn; returns the engine's name."""
    monkeypatch.setattr(lean_decoder_module, "slots_pay", lambda *_: "slots" in request.param)
    monkeypatch.setattr(lean_decoder_module, "sharing_pays", lambda *_: "shared" in request.param)
    return "transformers" if request.param == "transformers" else "lean"


def without_end(policy):
    """Let no token end a completion."""
    policy.tokenizer.eos_token = None
    policy.model.generation_config.eos_token_id = None
    return policy


@pytest.mark.parametrize("family", ["llama", "llama-biased", "llama-wide-heads"])
def test_greedy_equals_the_models_own_generate(any_decoder, family):
    policy = make_policy(family, engine=any_decoder)
    ours = generate(policy, PROMPTS, n=1, max_new_tokens=20, seeds=[0] * 4, greedy=True)
    for prompt, response in zip(PROMPTS, ours.response_ids, strict=True):
        own = policy.model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, pad_token_id=0)
        assert own[0, len(prompt) :].tolist() == list(response)


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_and_log_probs_equal_a_fresh_forward(family):
    made = [
        generate(make_policy(family, engine=engine), PROMPTS, n=4, max_new_tokens=12, seeds=range(16), temperature=1.0)
        for engine in ENGINES
    ]
    assert made[0].response_ids == made[1].response_ids
    for rollout, engine in zip(made, ENGINES, strict=True):
        fresh = make_policy(family, engine=engine).evaluate(rollout.tokens, ["log_prob", "entropy"])
        torch.testing.assert_close(rollout.logp_bt, fresh["log_prob"], rtol=0, atol=1e-5)
        torch.testing.assert_close(rollout.entropy_bt, fresh["entropy"], rtol=0, atol=1e-5)


def test_log_probs_are_those_of_the_sampling_temperature_before_top_p_and_top_k(any_decoder):
    policy = make_policy("llama", engine=any_decoder, temperature=1.7)
    rollout = generate(policy, PROMPTS, n=3, max_new_tokens=8, seeds=range(12), temperature=1.7, top_p=0.8, top_k=5)
    torch.testing.assert_close(rollout.logp_bt, policy.logp(rollout.tokens), rtol=0, atol=1e-5)


def test_order_neighbours_and_batch_size_do_not_matter(any_decoder):
    policy = make_policy("llama", engine=any_decoder)
    seeds = list(range(100, 112))
    whole = generate(policy, PROMPTS, n=3, max_new_tokens=15, seeds=seeds)
    assert len(set(whole.response_ids)) > 8
    order = [2, 0, 3, 1]
    mixed = generate(
        policy,
        [PROMPTS[i] for i in order],
        n=3,
        max_new_tokens=15,
        seeds=[s for i in order for s in seeds[3 * i : 3 * i + 3]],
    )
    assert mixed.response_ids == tuple(r for i in order for r in whole.response_ids[3 * i : 3 * i + 3])
    for row in (0, 7, 11):
        alone = generate(policy, [whole.prompt_ids[row]], n=1, max_new_tokens=15, seeds=[seeds[row]])
        assert alone.response_ids[0] == whole.response_ids[row]
    cut = generate(policy, PROMPTS, n=3, max_new_tokens=15, seeds=seeds, rows_at_once=5)
    assert cut.response_ids == whole.response_ids
    torch.testing.assert_close(cut.logp_bt, whole.logp_bt, rtol=0, atol=1e-5)
    longer = generate(policy, PROMPTS, n=3, max_new_tokens=25, seeds=seeds)
    assert all(a[: len(b)] == b for a, b in zip(longer.response_ids, whole.response_ids, strict=True))


def test_rows_are_prompt_major_and_equal_prompts_are_no_matter(any_decoder):
    policy = make_policy("llama", engine=any_decoder)
    rollout = generate(policy, [[1, 4], [1, 5], [1, 4]], n=2, max_new_tokens=6, seeds=[1, 2, 3, 4, 1, 2])
    assert rollout.prompt_ids == ((1, 4), (1, 4), (1, 5), (1, 5), (1, 4), (1, 4))
    assert rollout.response_ids[:2] == rollout.response_ids[4:]
    assert rollout.response_ids[0] != rollout.response_ids[1]


def test_completions_end_with_eos_or_are_truncated(any_decoder):
    policy = make_policy("llama", engine=any_decoder)
    rollout = generate(policy, PROMPTS, n=16, max_new_tokens=20, seeds=range(64))
    ended = [2 in response for response in rollout.response_ids]
    assert 5 < sum(ended) < 64
    assert rollout.truncated_b.tolist() == [not e for e in ended]
    for response, end in zip(rollout.response_ids, ended, strict=True):
        assert response.count(2) == int(end)
        assert response[-1] == 2 if end else len(response) == 20
    present = rollout.tokens.present_bt()
    assert (rollout.logp_bt[~present] == 0).all()
    assert (rollout.logp_bt[present] < 0).all()
    assert (rollout.entropy_bt[~present] == 0).all()
    assert (rollout.entropy_bt[present] > 0).all()


def test_all_truncated(any_decoder):
    policy = without_end(make_policy("llama", engine=any_decoder))
    rollout = generate(policy, PROMPTS, n=2, max_new_tokens=9, seeds=range(8))
    assert rollout.truncated_b.all()
    assert all(len(response) == 9 for response in rollout.response_ids)
    assert rollout.logp_bt.shape == rollout.entropy_bt.shape == (8, 9)


def test_one_token_of_one_completion(any_decoder):
    policy = make_policy("llama", engine=any_decoder)
    rollout = generate(policy, [[1, 4]], n=1, max_new_tokens=1, seeds=[5])
    assert [len(r) for r in rollout.response_ids] == [1]
    assert rollout.truncated_b.item() == (rollout.response_ids[0][0] != 2)


def test_the_longest_completion_gives_the_width(any_decoder):
    policy = make_policy("llama", engine=any_decoder)
    with torch.no_grad():
        policy.model.lm_head.weight[2] *= 6.0
    rollout = generate(policy, PROMPTS, n=8, max_new_tokens=60, seeds=range(32))
    assert not rollout.truncated_b.any()
    assert rollout.logp_bt.shape[1] == max(map(len, rollout.response_ids)) < 60


def test_sampling_follows_the_models_distribution(any_decoder):
    policy = make_policy("llama", engine=any_decoder)
    n = 4000
    rollout = generate(policy, [[1, 6, 7]], n=n, max_new_tokens=1, seeds=range(n), temperature=1.3)
    logits = policy.model(torch.tensor([[1, 6, 7]])).logits[0, -1]
    expected = n * torch.softmax(logits / 1.3, -1)
    counts = torch.bincount(torch.tensor([r[0] for r in rollout.response_ids]), minlength=len(expected))
    often = expected >= 5
    chi2 = ((counts - expected) ** 2 / expected)[often].sum().item()
    assert int(often.sum()) >= 3
    assert chi2 < 37.7  # at most 15 degrees of freedom, p = 0.001


@pytest.mark.parametrize("setting", [{"top_k": 2}, {"top_p": 0.6}])
def test_filters_leave_only_probable_tokens(setting):
    policy = make_policy("llama")
    rollout = generate(policy, [[1, 6, 7]], n=500, max_new_tokens=1, seeds=range(500), **setting)
    order = policy.model(torch.tensor([[1, 6, 7]])).logits[0, -1].softmax(-1).sort(descending=True)
    size = 2 if "top_k" in setting else int((order.values.cumsum(0) < 0.6).sum()) + 1
    assert {r[0] for r in rollout.response_ids} == set(order.indices[:size].tolist())


def test_top_k_of_one_is_greedy():
    policy = make_policy("llama")
    greedy = generate(policy, PROMPTS, n=1, max_new_tokens=10, seeds=[0] * 4, greedy=True)
    assert generate(policy, PROMPTS, n=1, max_new_tokens=10, seeds=[9] * 4, top_k=1).response_ids == greedy.response_ids


def test_stop_sequences_end_a_completion_and_stay_in_it(any_decoder):
    policy = without_end(make_policy("llama", engine=any_decoder))
    free = generate(policy, PROMPTS, n=8, max_new_tokens=20, seeds=range(32))
    stop = free.response_ids[0][4:6]
    single = free.response_ids[1][7]
    held = generate(policy, PROMPTS, n=8, max_new_tokens=20, seeds=range(32), stop=[stop, [single]])
    for long, short, truncated in zip(free.response_ids, held.response_ids, held.truncated_b.tolist(), strict=True):
        hits = [t + 1 for t in range(20) if long[t] == single or (t and long[t - 1 : t + 1] == stop)]
        assert short == long[: hits[0] if hits else 20]
        assert truncated == (not hits)


def test_long_and_short_prompts_are_read_apart_with_the_same_result(any_decoder, monkeypatch):
    """Prompts of very different length, in passes of similar ones, against all of them padded in one pass."""
    policy = make_policy("llama", engine=any_decoder)
    prompts = [[1, *range(3, 17)] * 3, [1, 9], [1, *range(4, 16)] * 3, [1, 4, 5]]
    monkeypatch.setattr(decoder_protocol, "FEW_TOKENS", 0)
    apart = generate(policy, prompts, n=4, max_new_tokens=10, seeds=range(16))
    monkeypatch.setattr(decoder_protocol, "FEW_TOKENS", 10**6)
    together = generate(policy, prompts, n=4, max_new_tokens=10, seeds=range(16))
    assert apart.response_ids == together.response_ids
    torch.testing.assert_close(apart.logp_bt, together.logp_bt, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(vocab_size=17, n_embd=32, n_layer=2, n_head=2, n_positions=64),
        MistralConfig(**{**SIZES, "sliding_window": 4}),
        MambaConfig(vocab_size=17, hidden_size=32, num_hidden_layers=2, state_size=4),
    ],
)
def test_every_kind_of_cache_gives_the_tokens_of_generate(config):
    """Keys and values in preallocated room, in a sliding window, and a recurrent state without either."""
    policy = without_end(CausalPolicy(make_model(config), char_tokenizer(ALPHABET)))
    prompts = [[1, 4, 5, 13, 6], [1, 9, 9, 7, 8]]  # recurrent models do not take padding
    ours = generate(policy, prompts, n=2, max_new_tokens=12, seeds=range(4), greedy=True)
    own = policy.model.generate(
        torch.tensor(prompts), max_new_tokens=12, min_new_tokens=12, do_sample=False, pad_token_id=0
    )
    assert [list(x) for x in ours.response_ids] == [row for row in own[:, 5:].tolist() for _ in range(2)]


def test_adapters_around_another_architecture(recwarn):
    """What wraps a model hides the names of its arguments."""
    pytest.importorskip("peft")
    model = add_lora(make_model(GPT2Config(vocab_size=17, n_embd=32, n_layer=2, n_head=2, n_positions=64)), {"r": 2})
    policy = CausalPolicy(model, char_tokenizer(ALPHABET), engine="transformers")
    rollout = generate(policy, PROMPTS, n=2, max_new_tokens=6, seeds=range(8))
    torch.testing.assert_close(rollout.logp_bt, policy.logp(rollout.tokens), rtol=0, atol=1e-5)


def test_another_architecture():
    model = make_model(GPT2Config(vocab_size=17, n_embd=32, n_layer=2, n_head=2, n_positions=64))
    policy = CausalPolicy(model, char_tokenizer(ALPHABET))
    rollout = generate(policy, PROMPTS, n=3, max_new_tokens=10, seeds=range(12))
    torch.testing.assert_close(rollout.logp_bt, policy.logp(rollout.tokens), rtol=0, atol=1e-5)
    greedy = generate(policy, PROMPTS, n=1, max_new_tokens=10, seeds=[0] * 4, greedy=True)
    own = model.generate(torch.tensor([PROMPTS[2]]), max_new_tokens=10, do_sample=False, pad_token_id=0, eos_token_id=2)
    assert own[0, 7:].tolist() == list(greedy.response_ids[2])


def test_float64_rollouts_keep_their_precision():
    rollout = generate(make_policy("llama", dtype=torch.float64), PROMPTS, n=1, max_new_tokens=4, seeds=range(4))
    assert rollout.logp_bt.dtype == torch.float64
    fresh = make_policy("llama", dtype=torch.float64).logp(rollout.tokens)
    torch.testing.assert_close(rollout.logp_bt, fresh, rtol=0, atol=1e-12)


def test_layouts_are_chosen_by_device_heads_and_rows_per_prompt():
    lean = make_policy("llama").lean
    assert key_value_cache.slots_pay(lean, 32)
    assert not key_value_cache.slots_pay(lean, 31)
    assert not key_value_cache.slots_pay(make_policy("qwen2").lean, 64)
    assert key_value_cache.sharing_pays(lean, 64, 4, 60)  # 60 rows spare 60 keys of 32 numbers
    assert not key_value_cache.sharing_pays(lean, 64, 4, 50)
    assert not key_value_cache.sharing_pays(lean, 64, 17, 600)


def test_prompts_are_read_with_those_of_their_length():
    assert list(reading_order([3, 9, 4])) == [[0, 2, 1]]  # a few tokens: one pass
    assert list(reading_order([100, 1000, 110, 900, 2000])) == [[0, 2], [3, 1], [4]]
    assert [len(batch) for batch in reading_order([4096] * 5)] == [2, 2, 1]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"seeds": range(3)}, "3 seeds for 4 completions"),
        ({"n": 0, "seeds": []}, "n=0"),
        ({"prompts": [], "seeds": []}, "No prompts"),
        ({"prompts": [[1], []], "seeds": range(2)}, "Prompt 1 has no tokens"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"max_new_tokens": 125}, "room for 128 positions"),
        ({"temperature": 0.0}, "temperature=0"),
        ({"top_p": 0.0}, "top_p=0"),
        ({"top_k": -1}, "top_k=-1"),
        ({"stop": [[]]}, "stop sequence"),
    ],
)
def test_bad_settings_are_refused(options, complaint):
    settings = {"prompts": PROMPTS, "n": 1, "max_new_tokens": 4, "seeds": range(4), **options}
    with pytest.raises(InputError, match=complaint):
        generate(make_policy(), settings.pop("prompts"), **settings)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_rows_that_fill_the_positions_by_themselves_are_decoded_together(family):
    """One has a long prompt, the others have a long budget: no row is decoded beyond the model's positions."""
    learned = GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=128, vocab_size=len(char_tokenizer(ALPHABET)))
    config = FAMILIES["llama"] if family == "llama" else learned
    policy = without_end(CausalPolicy(make_model(config), char_tokenizer(ALPHABET)))
    prompts, budgets = [[1] * 120, *[[1, 4 + i] for i in range(7)]], [8, *[126] * 7]
    settings = {"n": 1, "max_new_tokens": 126}
    together = generate(policy, prompts, seeds=range(8), budgets=budgets, **settings)
    assert [len(ids) for ids in together.response_ids] == budgets
    for row, (prompt, budget) in enumerate(zip(prompts, budgets, strict=True)):
        alone = generate(policy, [prompt], seeds=[row], budgets=[budget], **settings)
        assert alone.response_ids[0] == together.response_ids[row]


def test_prompts_may_be_an_array():
    policy, prompts = make_policy(), torch.tensor([[1, 5, 6], [1, 9, 7], [1, 4, 4]])
    settings = {"n": 2, "max_new_tokens": 4, "seeds": range(6)}
    assert generate(policy, prompts, **settings).tokens == generate(policy, prompts.tolist(), **settings).tokens
