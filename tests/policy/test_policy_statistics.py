"""Statistics of a policy's distributions against the model's own full logits."""

import math

import pytest
import torch
import torch.nn.functional as F
from transformers import Gemma2Config, GPT2Config, LlamaConfig

from grouprl import Batch, method
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.part import part
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core.errors import InputError
from grouprl.policy import CausalPolicy, Tokens, char_tokenizer, passes
from grouprl.policy.language.statistics import certainty
from grouprl.policy.lora import add_lora
from grouprl.training.logprobs import add_statistics
from largest_tensor import Largest
from policies import ALPHABET, FAMILIES, SIZES, make_model, make_policy, make_tokens, precise_norms
from updates import accumulate

OTHERS = {
    "gpt2": GPT2Config(vocab_size=17, n_embd=32, n_layer=2, n_head=2, n_positions=64),
    "gemma2": Gemma2Config(**{**SIZES, "head_dim": 8, "final_logit_softcapping": 1.0}),
}
CASES = [
    *[(family, "lean") for family in FAMILIES],
    *[(family, "transformers") for family in ("llama-gqa-tied", "qwen3", *OTHERS)],
]
BOTH = pytest.mark.parametrize("engine", ["lean", "transformers"])
_sampled = make_tokens([3, 6, 6], 3, 6, seed=5)
TOKENS = Tokens.of([*_sampled.prompt_ids, [1, 4]], [*_sampled.response_ids, []])
SHAPE = (len(TOKENS), TOKENS.max_response)
GROUP = torch.tensor([0, 7, 0, 7, 0, 3, 3, 7, 7, 0])
CORRECT = torch.tensor([True, False, True, False, False, False, False, True, False, False])
NAMES = ["certainty", "entropy", "logp@1.2", "logp@0.8"]


def policy_of(family="llama-gqa-tied", engine="auto", **options):
    model = make_model({**FAMILIES, **OTHERS}[family], torch.float64)
    if family != "gemma2":  # whose norms have no such form
        precise_norms(model)
    return CausalPolicy(model, char_tokenizer(ALPHABET), engine=engine, **options)


def all_statistics(policy, tokens, group_b, correct_b):
    return policy.evaluate(tokens, NAMES) | {"influence": policy.influence(tokens, group_b, correct_b)}


def tolerance(family):
    return 1e-5 if family == "gemma2" else 1e-10  # its norms round to float32 inside


def dense(policy, tokens, row):
    """The model's own logits [T,V] and last hidden states [T,H] for one row, nothing padded, nothing shared."""
    prompt, response = tokens.prompt_ids[row], tokens.response_ids[row]
    out = policy.model(torch.tensor([[*prompt, *response]]), output_hidden_states=True)
    at = slice(len(prompt) - 1, len(prompt) - 1 + len(response))
    return out.logits[0, at], out.hidden_states[-1][0, at]


def padded(rows):
    return torch.stack([F.pad(row, (0, SHAPE[1] - len(row))) for row in rows])


def dense_statistics(policy, tokens):
    found = {name: [] for name in NAMES if name != "influence"}
    for row in range(len(tokens)):
        z = dense(policy, tokens, row)[0] / policy.temperature
        chosen = torch.arange(len(z)), torch.tensor(tokens.response_ids[row], dtype=torch.long)
        p = z.softmax(-1)
        found["certainty"].append(z.logsumexp(-1) - z.mean(-1))
        found["entropy"].append(-(p * p.log()).sum(-1))
        for name in ("logp@1.2", "logp@0.8"):
            found[name].append((z / float(name[5:])).softmax(-1).log()[chosen])
    return {name: padded(rows) for name, rows in found.items()}


def dense_influence(policy, tokens, group_b, correct_b):
    """The double sum of the definition, token by token."""
    errors, states = [], []
    for row in range(len(tokens)):
        ids = sorted({i for r in range(len(tokens)) if group_b[r] == group_b[row] for i in tokens.response_ids[r]})
        z, h = dense(policy, tokens, row)
        p = (z / policy.temperature).softmax(-1)[:, ids]
        own = torch.tensor([[float(i == token) for i in ids] for token in tokens.response_ids[row]])
        errors.append(own.reshape(p.shape) - p)
        states.append(h)
    score_bt = torch.zeros(SHAPE, dtype=torch.float64)
    for j in range(len(tokens)):
        for at in range(len(states[j])):
            for i in range(len(tokens)):
                if group_b[i] == group_b[j] and correct_b[i]:
                    for k in range(len(states[i])):
                        score_bt[j, at] += (errors[i][k] @ errors[j][at]) * (states[i][k] @ states[j][at])
    return score_bt


# ---- statistics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "engine"), CASES)
@torch.no_grad()
def test_statistics_equal_those_of_full_logits(family, engine, monkeypatch):
    monkeypatch.setitem(passes.CHUNK_ELEMENTS, "cpu", 40)  # two positions of 17 tokens
    monkeypatch.setattr(passes, "FEWEST_ROWS", 1)
    policy = policy_of(family, engine, temperature=0.7, token_budget=20)
    found = all_statistics(policy, TOKENS, GROUP, CORRECT)
    expected = dense_statistics(policy, TOKENS) | {"influence": dense_influence(policy, TOKENS, GROUP, CORRECT)}
    assert list(found) == [*NAMES, "influence"]
    for name in found:
        scale = max(1.0, float(expected[name].abs().max()))
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=tolerance(family) * scale, msg=name)
        assert (found[name][~TOKENS.present_bt()] == 0).all()
        assert found[name].abs().max() > 0.1
        assert not found[name].requires_grad


@BOTH
def test_chunks_and_passes_do_not_matter(engine, monkeypatch):
    found = []
    for elements, budget in ((1, 10_000), (40, 13), (10_000, 30)):
        monkeypatch.setitem(passes.CHUNK_ELEMENTS, "cpu", elements)
        monkeypatch.setattr(passes, "FEWEST_ROWS", 1)
        policy = policy_of(engine=engine, token_budget=budget)
        found.append(all_statistics(policy, TOKENS, GROUP, CORRECT))
    for other in found[1:]:
        for name in other:
            torch.testing.assert_close(other[name], found[0][name], rtol=1e-10, atol=1e-10, msg=name)


@BOTH
def test_no_tensor_grows_with_positions_times_vocabulary(engine, monkeypatch):
    vocabulary, hidden = 2000, 8
    sizes = {"vocab_size": vocabulary, "hidden_size": hidden, "num_attention_heads": 2, "num_key_value_heads": 2}
    policy = CausalPolicy(make_model(LlamaConfig(**{**SIZES, **sizes})), char_tokenizer(ALPHABET), engine=engine)
    tokens = make_tokens([3, 3], 4, 20, shortest=15)
    positions = sum(tokens.response_lengths)
    group_b, correct_b = torch.tensor([0] * 4 + [1] * 4), torch.arange(8) % 2 == 0
    seen = {}
    for elements in (4000, 10**9):
        monkeypatch.setitem(passes.CHUNK_ELEMENTS, "cpu", elements)
        monkeypatch.setattr(passes, "FEWEST_ROWS", 1)
        with Largest() as largest:
            all_statistics(policy, tokens, group_b, correct_b)
            policy.top(tokens, 3)
        seen[elements] = largest.numel
    assert seen[4000] <= vocabulary * hidden  # the weight of the head
    assert seen[10**9] == positions * vocabulary  # the measure sees what it should


def test_certainty_of_two_tokens_and_of_none():
    """-(ln 0.9 + ln 0.1) / 2 = 1.2040; an even distribution over V has ln V, the least there is."""
    logp_cv = torch.tensor([[0.9, 0.1], [0.5, 0.5]], dtype=torch.float64).log()
    assert certainty(logp_cv, torch.tensor([0, 0])).tolist() == pytest.approx([1.2040, math.log(2)], abs=5e-5)


@BOTH
def test_even_logits_have_certainty_and_entropy_log_v(engine):
    policy = policy_of("llama", engine)
    torch.nn.init.zeros_(policy.model.lm_head.weight)
    found = policy.evaluate(TOKENS, ["certainty", "entropy", "logp@3"])
    for name, sign in (("certainty", 1), ("entropy", 1), ("logp@3", -1)):
        torch.testing.assert_close(found[name], sign * math.log(17) * TOKENS.present_bt().double())


@BOTH
def test_a_constant_added_to_all_logits_changes_nothing(engine):
    policy = policy_of("llama", engine, temperature=0.7)
    before = policy.evaluate(TOKENS, NAMES)
    policy.model.lm_head.bias = torch.nn.Parameter(torch.full((17,), 50.0, dtype=torch.float64))
    after = policy.evaluate(TOKENS, NAMES)
    for name in NAMES:
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=1e-11, msg=name)
    with torch.no_grad():
        policy.model.lm_head.bias[3] += 1.0
    assert (policy.evaluate(TOKENS, ["certainty"])["certainty"] - before["certainty"]).abs().max() > 0.01


@pytest.mark.parametrize("temperature", [0.8, 1.0, 1.25])
def test_tempered_probabilities_of_all_next_tokens_sum_to_one(temperature):
    policy = policy_of(temperature=0.9)
    every = Tokens.of([[1, 5, 6]] * 17, [[v] for v in range(17)])
    name = f"logp@{temperature}"
    q = policy.evaluate(every, [name])[name].exp()
    assert q.sum().item() == pytest.approx(1.0, abs=1e-12)
    if temperature == 1.0:
        torch.testing.assert_close(q.log(), policy.logp(every), rtol=0, atol=1e-12)


def test_names_that_are_not_known():
    policy = make_policy()
    with pytest.raises(InputError, match="Did you mean 'certainty'"):
        policy.evaluate(TOKENS, ["certanty"])
    for name in ("logp@", "logp@-1", "logp@0", "logp@inf", "logp@hot", "log@1.2", "cross@0", "influence"):
        with pytest.raises(InputError, match=f"no output '{name}'"):
            policy.evaluate(TOKENS, [name])
    with pytest.raises(InputError, match="at one temperature"):
        policy.evaluate(TOKENS, ["cross@1", "cross@2"])
    with pytest.raises(InputError, match="Statistics have no gradient"):
        policy.backward(TOKENS, {"certainty": torch.ones(SHAPE)})


def test_no_rows():
    none = Tokens((), ())
    empty = torch.zeros(0, dtype=torch.long)
    found = all_statistics(make_policy(), none, empty, empty.bool())
    assert {x.shape for x in found.values()} == {(0, 0)}
    assert make_policy().hidden(none) == []


# ---- influence -------------------------------------------------------------------------------------------------------


def test_a_right_completions_own_token_has_the_largest_influence_at_the_same_state():
    """One state h, one right token y: s_v = (1[v=y] - p_y - p_v + |p|²) |h|², largest at v = y."""
    policy = policy_of()
    every = Tokens.of([[1, 5, 6]] * 17, [[v] for v in range(17)])
    right = 9
    found = policy.influence(every, torch.zeros(17, dtype=torch.long), torch.arange(17) == right)[:, 0]
    with torch.no_grad():
        z, h = dense(policy, every, 0)
    p, own = z[0].softmax(-1), (torch.arange(17) == right).double()
    torch.testing.assert_close(found, (own - p[right] - p + p @ p) * (h[0] @ h[0]), rtol=1e-10, atol=1e-10)
    assert int(found.argmax()) == right


def test_groups_without_a_right_completion_have_none_and_are_not_run(monkeypatch):
    policy = make_policy()
    found = policy.influence(TOKENS, GROUP, CORRECT)
    assert (found[GROUP == 3] == 0).all()
    assert (found[TOKENS.present_bt() & (GROUP != 3)[:, None]] != 0).all()
    monkeypatch.setattr(policy._engine, "read", lambda *_a: pytest.fail("ran the model"))
    nothing = policy.influence(TOKENS, GROUP, CORRECT & False)
    assert torch.equal(nothing, torch.zeros(SHAPE))


def test_influence_of_a_group_does_not_depend_on_other_groups():
    policy = policy_of()
    together = policy.influence(TOKENS, GROUP, CORRECT)
    rows = [8, 3, 7, 1]
    alone = policy.influence(TOKENS.rows(rows), GROUP[rows], CORRECT[rows])
    torch.testing.assert_close(alone, together[rows][:, : alone.shape[1]])


def test_only_written_tokens_of_right_completions_count():
    """Two correct completions of which one is masked out altogether are as one correct completion."""
    policy = policy_of()
    mask_bt = TOKENS.present_bt() & (torch.arange(len(TOKENS)) != 2)[:, None]
    masked = policy.influence(TOKENS, GROUP, CORRECT, mask_bt)
    one_less = policy.influence(TOKENS, GROUP, CORRECT & (torch.arange(len(TOKENS)) != 2))
    torch.testing.assert_close(masked, one_less)


# ---- states, likeliest tokens, other prompts -------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "engine"), CASES)
@torch.no_grad()
def test_hidden_states_are_those_after_the_final_norm(family, engine):
    policy = policy_of(family, engine, token_budget=20)
    found = policy.hidden(TOKENS)
    assert len(found) == len(TOKENS)
    for row, states in enumerate(found):
        expected = dense(policy, TOKENS, row)[1]
        torch.testing.assert_close(states, expected, rtol=0, atol=tolerance(family) * 10)


@pytest.mark.parametrize(("family", "engine"), CASES)
@torch.no_grad()
def test_top_tokens_are_those_of_the_full_distribution(family, engine, monkeypatch):
    monkeypatch.setitem(passes.CHUNK_ELEMENTS, "cpu", 40)
    monkeypatch.setattr(passes, "FEWEST_ROWS", 1)
    policy = policy_of(family, engine, temperature=0.7, token_budget=20)
    token_btk, logp_btk = policy.top(TOKENS, 3)
    assert token_btk.shape == logp_btk.shape == (*SHAPE, 3)
    for row, length in enumerate(TOKENS.response_lengths):
        best = (dense(policy, TOKENS, row)[0] / 0.7).log_softmax(-1).topk(3)
        assert torch.equal(token_btk[row, :length], best.indices)
        torch.testing.assert_close(logp_btk[row, :length], best.values, rtol=0, atol=tolerance(family))
        assert (token_btk[row, length:] == 0).all()
        assert (logp_btk[row, length:] == 0).all()


def test_all_tokens_sum_to_one_and_no_more_can_be_had():
    policy = policy_of()
    sums = policy.top(TOKENS, 17)[1].exp().sum(-1)
    torch.testing.assert_close(sums[TOKENS.present_bt()], torch.ones(sum(TOKENS.response_lengths)).double())
    for k in (0, 18):
        with pytest.raises(InputError, match="at most 17, the size of the vocabulary"):
            policy.top(TOKENS, k)


# ---- gradient norms --------------------------------------------------------------------------------------------------


def dense_norm(policy, row, parameters):
    z = dense(policy, TOKENS, row)[0] / policy.temperature
    ids = torch.tensor(TOKENS.response_ids[row], dtype=torch.long)
    total = z.log_softmax(-1).gather(1, ids[:, None]).sum()
    grads = torch.autograd.grad(total, parameters, allow_unused=True)
    return math.sqrt(sum(float(g.square().sum()) for g in grads if g is not None))


@pytest.mark.parametrize(("family", "engine"), [("llama", "lean"), *CASES[-4:]])
@pytest.mark.parametrize("block", ["embedding", "head", "trainable"])
def test_gradient_norms_are_those_of_each_completion_by_itself(family, engine, block):
    policy = policy_of(family, engine, temperature=0.7)
    layers = {"embedding": policy.model.get_input_embeddings, "head": policy.model.get_output_embeddings}
    parameters = [layers[block]().weight] if block in layers else list(policy.model.parameters())
    found = policy.gradient_norms(TOKENS, block)
    expected = [dense_norm(policy, row, parameters) for row in range(len(TOKENS) - 1)]
    assert found.tolist() == pytest.approx([*expected, 0.0], rel=1e-4 if family == "gemma2" else 1e-9)
    assert len({round(x, 6) for x in expected}) == len(expected)
    assert all(p.grad is None for p in policy.parameters())


def test_adapters_have_only_a_gradient_of_their_own():
    model = add_lora(make_model(FAMILIES["llama"]), {"r": 2, "dropout": 0.5})
    policy = CausalPolicy(model, char_tokenizer(ALPHABET))
    for block in ("embedding", "head"):
        with pytest.raises(InputError, match="block='trainable'"):
            policy.gradient_norms(TOKENS, block)
    found = policy.gradient_norms(TOKENS, "trainable")
    adapters = [p for p in model.parameters() if p.requires_grad]
    expected = [dense_norm(policy, row, adapters) for row in range(len(TOKENS) - 1)]
    assert found.tolist() == pytest.approx([*expected, 0.0], rel=1e-3)
    assert min(expected) > 0
    with pytest.raises(InputError, match="Did you mean 'embedding'"):
        policy.gradient_norms(TOKENS, "embeddings")


# ---- sketched gradients of the output layer --------------------------------------------------------------------------


def dense_head_gradient(policy, row, tokens=None):
    """The gradient of a row's log-prob with respect to the output layer alone, [V,H]."""
    z, states = dense(policy, TOKENS, row)
    ids = torch.tensor(TOKENS.response_ids[row], dtype=torch.long)
    error_tv = F.one_hot(ids, z.shape[1]) - (z / policy.temperature).softmax(-1)
    keep_t = torch.ones(len(ids)) if tokens is None else tokens[row, : len(ids)]
    return (error_tv * keep_t[:, None]).T @ states / policy.temperature


@pytest.mark.parametrize(("family", "engine"), [("llama", "lean"), *CASES[-4:]])
def test_sketches_are_those_of_the_gradient_of_the_output_layer(family, engine):
    policy = policy_of(family, engine, temperature=0.7)
    generator, size = torch.Generator().manual_seed(0), 6
    signs_hk, signs_vk = (torch.randint(0, 2, (n, size), generator=generator) * 2.0 - 1 for n in (32, 17))
    mask_bt = TOKENS.present_bt() & (torch.arange(SHAPE[1]) != 1)
    for mask in (None, mask_bt):
        found = policy.head_gradients(TOKENS, size, mask)
        expected = [
            ((signs_vk.double().T @ dense_head_gradient(policy, row, mask)).T * signs_hk).sum(0) / size**0.5
            for row in range(len(TOKENS))
        ]
        if family != "gemma2":  # whose cap of logits has a slope of its own
            torch.testing.assert_close(found, torch.stack(expected), rtol=1e-9, atol=1e-9)
        assert not found[-1].any()
    assert all(p.grad is None for p in policy.parameters())


def test_a_sketch_is_of_the_gradient_that_autograd_has():
    policy = policy_of("llama", temperature=0.7)
    norm = policy.gradient_norms(TOKENS, "head")
    expected = [float(dense_head_gradient(policy, row).detach().norm()) for row in range(len(TOKENS))]
    assert norm.tolist() == pytest.approx(expected, rel=1e-9)


def test_inner_products_of_sketches_are_those_of_gradients_in_the_mean():
    policy = policy_of("llama")
    exact = torch.stack([dense_head_gradient(policy, row).flatten() for row in range(3)])
    found = policy.head_gradients(TOKENS.rows([0, 1, 2]), 40_000)
    torch.testing.assert_close(
        found @ found.T, exact @ exact.T, rtol=0.03, atol=0.03 * float(exact.square().sum(1).max())
    )


# ---- differentiable cross-entropies ----------------------------------------------------------------------------------


def gradients(policy):
    found = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in policy.named_parameters()}
    for p in policy.parameters():
        p.grad = None
    return found


def cotangents(count):
    g = torch.Generator().manual_seed(3)
    return [torch.randn(SHAPE, generator=g, dtype=torch.float64) for _ in range(count)]


def dense_cross(policy, kappa):
    rows = []
    for row in range(len(TOKENS)):
        z = dense(policy, TOKENS, row)[0]
        rows.append(((z / kappa).softmax(-1).detach() * (z / policy.temperature).log_softmax(-1)).sum(-1))
    return padded(rows)


@pytest.mark.parametrize(("family", "engine"), CASES)
@pytest.mark.parametrize("kappa", [0.5, 0.7])
def test_cross_entropy_and_its_gradient_equal_autograd_on_full_logits(family, engine, kappa):
    policy = policy_of(family, engine, temperature=0.7, token_budget=30)
    (g,) = cotangents(1)
    expected = dense_cross(policy, kappa)
    expected.backward(g)
    theirs = gradients(policy)
    name = f"cross@{kappa}"
    torch.testing.assert_close(policy.evaluate(TOKENS, [name])[name], expected.detach(), rtol=0, atol=1e-5)
    policy.backward(TOKENS, {name: g})
    for name, grad in gradients(policy).items():
        scale = max(1.0, float(theirs[name].abs().max()))
        torch.testing.assert_close(grad, theirs[name], rtol=0, atol=tolerance(family) * scale, msg=name)
        if kappa == policy.temperature and family != "gemma2":
            assert (grad == 0).all()


@BOTH
def test_backward_with_all_cotangents_equals_autograd_through_the_outputs(engine):
    policy = policy_of(engine=engine, value_head=True, token_budget=20)
    names, parts = ["log_prob", "entropy", "value", "cross@0.6"], cotangents(4)
    policy.backward(TOKENS, dict(zip(names, parts, strict=True)))
    recomputed = gradients(policy)
    out = policy.evaluate(TOKENS, names, grad=True)
    torch.autograd.backward(list(out.values()), parts)
    for name, grad in gradients(policy).items():
        torch.testing.assert_close(grad, recomputed[name], rtol=0, atol=1e-9, msg=name)
    assert (out["cross@0.6"][~TOKENS.present_bt()] == 0).all()


@part("regularize", "pull_for_a_test")
class Pull(Regularizer):
    """Minus the cross-entropy to the sharpened policy."""

    says = "pulls"
    asks = ("cross@0.5",)

    def __call__(self, logp_bt, batch, entropy_bt=None):
        return TokenLoss(-batch.need("stats.cross@0.5", "pull"), {})

    def zero_rows(self, batch):
        return torch.zeros_like(batch.mask_bt[:, 0])


def training_batch():
    tokens = TOKENS.rows(range(9))
    logp_bt = policy_of(temperature=0.7).logp(tokens)
    return Batch(
        mask_bt=tokens.present_bt(),
        group_b=torch.arange(9) // 3,
        reward_b=torch.tensor([1.0, 0, 0, 1, 1, 0, 0, 0, 0], dtype=torch.float64),
        correct_b=torch.tensor([1, 0, 0, 1, 1, 0, 0, 0, 0]).bool(),
        old_bt=logp_bt,
        behavior_bt=logp_bt,
        inputs=tokens,
    )


def test_a_term_on_cross_entropies_trains_alike_in_one_pass_and_in_two(monkeypatch):
    grpo = method("grpo")
    pulled = grpo.with_parts(regularize=(*grpo.regularize, Pull()))
    policy = policy_of(temperature=0.7)
    step = pulled.prepare(training_batch())
    accumulate(policy, pulled, step)
    one = gradients(policy)
    monkeypatch.setattr(type(pulled), "couples", "batch")
    accumulate(policy, pulled, step)
    two = gradients(policy)
    out = policy.evaluate(step.inputs, ["log_prob", "cross@0.5"], grad=True)
    (grpo.loss(out["log_prob"], step).value - (step.weight_bt * out["cross@0.5"]).sum()).backward()
    for name, grad in gradients(policy).items():
        torch.testing.assert_close(one[name], grad, rtol=1e-9, atol=1e-12, msg=name)
        torch.testing.assert_close(two[name], grad, rtol=1e-9, atol=1e-12, msg=name)


# ---- into the batch --------------------------------------------------------------------------------------------------


def test_a_batch_gets_the_statistics_a_method_needs_at_its_own_width():
    policy, narrow = policy_of(temperature=0.7), training_batch()
    width = narrow.size[1] + 3
    wide = Batch(
        mask_bt=F.pad(narrow.mask_bt, (0, 3)),
        group_b=narrow.group_b,
        reward_b=narrow.reward_b,
        correct_b=narrow.correct_b,
        inputs=narrow.inputs,
        stats={"entropy": torch.full((9, width), 5.0, dtype=torch.float64)},
    )
    needs = ("old_bt", "stats.certainty", "stats.influence", "stats.entropy", "stats.certainty")
    filled = add_statistics(policy, wide, needs)
    assert set(filled.stats) == {"entropy", "certainty", "influence"}
    assert (filled.stats["entropy"] == 5.0).all()  # what is known is not computed again
    influence = policy.influence(narrow.inputs, narrow.group_b, narrow.correct_b)
    expected = policy.evaluate(narrow.inputs, ["certainty"]) | {"influence": influence}
    for name, value in expected.items():
        assert torch.equal(filled.stats[name], F.pad(value, (0, 3)))
    assert add_statistics(policy, wide, ("old_bt",)) is wide


def test_a_batch_that_lacks_what_a_statistic_needs_is_refused():
    policy, batch = make_policy(), training_batch()
    with pytest.raises(InputError, match="correct_b"):
        add_statistics(policy, batch.replace(correct_b=None), ("stats.influence",))
    with pytest.raises(InputError, match=r"batch\.inputs"):
        add_statistics(policy, batch.replace(inputs=None), ("stats.certainty",))
    with pytest.raises(InputError, match="no output 'confidence'"):
        add_statistics(policy, batch, ("stats.confidence",))
