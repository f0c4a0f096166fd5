"""Packing, shared prompts and checkpointing change no number; each is chosen where it pays, forced or forbidden."""

import copy
import math

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    OPTConfig,
    Qwen3NextConfig,
)

import engine_results
from engine_results import assert_same
from grouprl.core.errors import InputError
from grouprl.policy import CausalPolicy, Tokens, char_tokenizer, compiled_layers
from grouprl.policy.engine_names import engine_name
from grouprl.policy.language.transformers_engine import PROBE, pack_sequences
from grouprl.policy.passes import (
    PassSettings,
    bins,
    bytes_per_token,
    checkpointing_threshold,
    free_bytes,
    layers_of,
    padding_ratio,
    shares,
    sharing_ratio,
)
from policies import ALPHABET, FAMILIES, SIZES, make_model, make_tokens, precise_norms

SKEWED = make_tokens([3, 9, 1, 6], 3, 12, seed=1)
LONG_PROMPTS = make_tokens([30, 24], 4, 6, seed=2)
GPT2 = GPT2Config(vocab_size=17, n_embd=32, n_layer=2, n_head=2, n_positions=64)
NEOX = GPTNeoXConfig(vocab_size=17, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
ARCHITECTURES = {
    **{name: FAMILIES[name] for name in ("llama", "mistral", "qwen2", "qwen3")},
    "gpt2": GPT2,
    "neox": NEOX,
}


def policy_of(model, engine="transformers", packing="off", shared_prefix="off", checkpointing="off", **options):
    passes = PassSettings(packing, shared_prefix, checkpointing, options.pop("compiled", False))
    return CausalPolicy(copy.deepcopy(model), char_tokenizer(ALPHABET), engine=engine, passes=passes, **options)


def results(policy, tokens):
    precise_norms(policy.model)
    return engine_results.results(policy, tokens)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({"packing": "on"}, SKEWED),
        ({"shared_prefix": "on"}, LONG_PROMPTS),
        ({"shared_prefix": "on"}, SKEWED),
        ({"checkpointing": "on"}, SKEWED),
        ({"packing": "on", "checkpointing": "on"}, SKEWED),
    ],
)
def test_every_way_gives_the_numbers_and_gradients_of_the_padded_one(name, settings, tokens):
    model = make_model(ARCHITECTURES[name], torch.float64)
    assert_same(results(policy_of(model, **settings), tokens), results(policy_of(model), tokens), 1e-9)


@pytest.mark.parametrize("settings", [{"shared_prefix": "on"}, {"shared_prefix": "off"}, {"checkpointing": "on"}])
@pytest.mark.parametrize("tokens", [SKEWED, LONG_PROMPTS])
def test_the_lean_engine_gives_them_too(settings, tokens):
    model = make_model(FAMILIES["llama"], torch.float64)
    lean = policy_of(model, **{"engine": "lean", "packing": "auto", **settings})
    assert_same(results(lean, tokens), results(policy_of(model), tokens), 1e-9)


def test_edge_rows_pass_in_every_way():
    tokens = Tokens.of([[1, 5], [1, 5], [1, 6, 7], [4]], [[], [4, 2], [3], [5, 6, 7]])
    model = make_model(FAMILIES["llama"], torch.float64)
    expected = results(policy_of(model), tokens)
    for settings in ({"packing": "on"}, {"shared_prefix": "on"}):
        assert_same(results(policy_of(model, **settings), tokens), expected, 1e-9)


def test_no_packed_row_sees_another():
    """Whatever stands in one row of a pack, the others' log-probs are the same to the bit."""
    policy = policy_of(make_model(FAMILIES["llama"]), packing="on")
    prompts, responses = [[1, 4], [1, 5], [1, 6]], [[3, 4, 5, 6, 7, 8, 9, 10], [4, 5], [6, 7, 8]]
    before = policy.logp(Tokens.of(prompts, responses))
    after = policy.logp(Tokens.of(prompts, [responses[0], [9, 9], responses[2]]))
    assert not torch.equal(before[1], after[1])
    assert torch.equal(before[[0, 2]], after[[0, 2]])


def test_packs_are_as_wide_as_the_longest_row_and_positions_begin_anew():
    assert bins([7, 1, 4, 3, 2]) == [[0], [2, 3], [4, 1]]
    assert bins([3, 3]) == [[0], [1]]
    layout = pack_sequences(Tokens.of([[1, 4], [1], [1, 5, 6]], [[3, 4, 5], [7, 8], [9]]))
    assert layout.ids_bl.tolist() == [[1, 4, 3, 4], [1, 5, 6, 0], [1, 7, 0, 0]]
    assert layout.position_bl.tolist() == [[0, 1, 2, 3], [0, 1, 2, 0], [0, 1, 0, 0]]
    assert layout.at_m.tolist() == [1, 2, 3, 8, 9, 6]


def test_ratios_by_hand():
    tokens = Tokens.of([[1, 2], [1, 2], [3]], [[4], [4, 5, 6], [7]])
    assert padding_ratio(tokens) == 3 * 5 / 10
    assert sharing_ratio(tokens) == 10 / 8
    assert shares("auto", tokens)
    assert not shares("off", tokens)
    apart = tokens.rows([0, 2])
    assert sharing_ratio(apart) == 1.0
    assert not shares("on", apart)
    hardly = Tokens.of([[1], [1]], [[4] * 30, [4] * 30])
    assert shares("on", hardly)
    assert not shares("auto", hardly)


def ways_taken(policy, tokens, monkeypatch):
    taken = []
    for way in ("_padded", "_packed", "_shared"):
        inner = getattr(policy._engine, way)
        monkeypatch.setattr(policy._engine, way, lambda x, inner=inner, way=way: taken.append(way) or inner(x))
    policy.logp(tokens)
    return taken


@pytest.mark.parametrize(
    ("tokens", "way"),
    [
        (LONG_PROMPTS, "_shared"),
        (Tokens.of([[1, 4], [1, 5], [1, 6]], [[3] * 20, [4], [5]]), "_packed"),
        (Tokens.of([[1, 4], [1, 5]], [[3] * 8, [4] * 8]), "_padded"),
    ],
)
def test_what_pays_is_chosen(tokens, way, monkeypatch):
    policy = policy_of(make_model(GPT2), packing="auto", shared_prefix="auto")
    assert ways_taken(policy, tokens, monkeypatch) == [way]


def test_what_a_model_cannot_do_falls_back_or_is_refused_in_words():
    config = MambaConfig(vocab_size=17, hidden_size=32, num_hidden_layers=2, state_size=4)
    model = make_model(config)
    policy = policy_of(model, packing="auto", shared_prefix="auto")
    assert not policy._engine.packs
    assert not policy._engine.shares_prompts
    with pytest.raises(InputError, match=r"packing=on.*MambaForCausalLM.*packing: auto"):
        policy_of(model, packing="on")


def test_the_probe_packs_two_rows_together_and_repeats_a_prompt():
    kept = [length - 1 for length in PROBE.lengths]
    assert max(map(len, bins(kept))) == 2
    assert len(set(PROBE.prompt_ids)) == 2


UNSEPARATED = {
    "opt": OPTConfig(
        vocab_size=17,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=48,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
    ),
    "qwen3_next": Qwen3NextConfig(
        **{**SIZES, "num_hidden_layers": 4, "head_dim": 8},
        num_experts=2,
        num_experts_per_tok=1,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    ),
}
"""Models that take positions, and whose masks or states do not begin anew where these do."""


@pytest.mark.parametrize("family", UNSEPARATED)
def test_rows_of_a_model_that_would_see_its_neighbours_in_a_pack_are_not_packed(family):
    model = make_model(UNSEPARATED[family])
    policy = policy_of(model, packing="auto")
    assert not policy._engine.packs
    tokens = Tokens.of([[1, 4], [1, 5], [1, 6]], [[3] * 20, [4, 5, 6], [5, 7]])
    alone = [policy.logp(tokens.rows([row]))[0] for row in range(3)]
    for row, together in enumerate(policy.logp(tokens)):
        torch.testing.assert_close(together[: len(alone[row])], alone[row], rtol=0, atol=1e-4)
    with pytest.raises(InputError, match=r"packing=on.*packing: auto"):
        policy_of(model, packing="on")


def test_sliding_windows_hold_within_each_packed_row():
    windowed = make_model(MistralConfig(**{**SIZES, "sliding_window": 4}), torch.float64)
    packed = policy_of(windowed, packing="on")
    assert_same(results(packed, SKEWED), results(policy_of(windowed), SKEWED), 1e-9)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"packing": "of"}, "Did you mean 'off'"),
        ({"engine": "lean", "packing": "off"}, "always packs"),
        ({"shared_prefix": "on", "checkpointing": "on"}, "cache"),
    ],
)
def test_what_cannot_be_is_refused(settings, complaint):
    with pytest.raises(InputError, match=complaint):
        policy_of(make_model(FAMILIES["llama"]), **settings)


def test_without_packing_the_padded_engine_runs():
    model = make_model(FAMILIES["llama"])
    assert policy_of(model, engine="auto", packing="off").engine == "transformers"
    assert policy_of(model, engine="auto", packing="auto").engine == "lean"


@pytest.mark.parametrize("engine", ["lean", "transformers"])
def test_checkpointing_keeps_layer_inputs_alone(engine):
    kept = {}
    for choice in ("off", "on"):
        policy = policy_of(make_model(FAMILIES["llama"]), engine, packing="auto", checkpointing=choice)
        sizes = []

        def keep(x, sizes=sizes):
            sizes.append(x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            policy.evaluate(SKEWED, ["log_prob"], grad=True)
        kept[choice] = sum(sizes)
    assert kept["on"] < 0.5 * kept["off"]


def test_offloaded_inputs_of_layers_wait_elsewhere_and_change_nothing(monkeypatch):
    """On a CPU main memory is no other place: a copy stands in for it."""
    moved, back = [], []

    class Elsewhere(torch.autograd.graph.saved_tensors_hooks):
        def __init__(self, pin_memory):
            super().__init__(lambda x: moved.append(x.shape) or x.clone(), lambda x: back.append(x.shape) or x)

    monkeypatch.setattr(torch.autograd.graph, "save_on_cpu", Elsewhere)
    found = {}
    for choice in ("on", "offload"):
        policy = policy_of(make_model(FAMILIES["llama"]), "auto" if choice == "offload" else "transformers",
                           packing="auto", shared_prefix="off", checkpointing=choice)  # fmt: skip
        assert policy.engine == "transformers"
        policy.backward(SKEWED, {"log_prob": SKEWED.present_bt().to(policy.score_dtype)})
        found[choice] = [policy.logp(SKEWED), *(p.grad for p in policy.parameters())]
        assert (moved == []) == (choice == "on")
    assert all(torch.equal(*pair) for pair in zip(*found.values(), strict=True))
    inputs = [shape for shape in moved if shape.numel()]  # torch keeps an empty tensor beside each
    assert len(inputs) == SIZES["num_hidden_layers"], "of each layer its input, no weights and no activations"
    assert all(shape[-1] == SIZES["hidden_size"] for shape in inputs)
    assert sorted(back) == sorted(moved)
    with pytest.raises(InputError, match="keeps the inputs of its layers"):
        policy_of(make_model(FAMILIES["llama"]), "lean", packing="auto", checkpointing="offload")


def test_checkpointing_is_chosen_by_memory():
    assert checkpointing_threshold("offload", 8, None) == 0
    assert checkpointing_threshold("on", 8, None) == 0
    assert checkpointing_threshold("off", 8, 1000) == checkpointing_threshold("auto", 8, None) == math.inf
    assert checkpointing_threshold("auto", 8, 1000) == 50
    assert free_bytes("cpu") > 2**20
    config = LlamaConfig(**SIZES)  # hidden 32, intermediate 40, 4 heads of 8, 2 layers
    assert bytes_per_token(config, 4) == 2 * (8 * 32 + 4 * 40 + 2 * 32) * 4


def test_layers_of_a_model_are_its_largest_list():
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(GPT2)
    assert [type(layer).__name__ for layer in layers_of(model)] == ["GPT2Block", "GPT2Block"]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("settings", [{}, {"packing": "on"}, {"checkpointing": "on"}], ids=str)
def test_compiled_layers_give_the_same_numbers(monkeypatch, name, settings):
    """Traced and differentiated by torch.compile, without the minute that its compiler takes."""
    monkeypatch.setattr(compiled_layers, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    model = make_model(ARCHITECTURES[name], torch.float64)
    policy, plain = policy_of(model, compiled=True, **settings), policy_of(model)
    for tokens in (SKEWED, LONG_PROMPTS):
        before = policy._engine.compiled.calls
        assert_same(results(policy, tokens), results(plain, tokens), 1e-9)
        assert policy._engine.compiled.calls >= before + 2 * 2, "two layers, with gradients and without"
    assert "forward" not in vars(policy._engine.layers[0]), "outside of a pass a layer is as it was"


def test_a_copy_of_a_compiled_policy_computes_with_its_own_weights(monkeypatch):
    monkeypatch.setattr(compiled_layers, "BACKEND", "eager")
    policy = policy_of(make_model(GPT2), compiled=True)
    before, other = policy.logp(SKEWED), policy.copied()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.5)
    assert torch.equal(other.logp(SKEWED), before)
    assert not torch.allclose(policy.logp(SKEWED), before)
    assert other._engine.compiled.calls > 0


def no_compiler(graph, inputs):
    raise RuntimeError("No working C++ compiler found")


def slightly_off(graph, inputs):
    return lambda *x: tuple(1.1 * y if torch.is_tensor(y) and y.is_floating_point() else y for y in graph(*x))


@pytest.mark.parametrize(
    ("backend", "said"), [(no_compiler, "No working C\\+\\+ compiler"), (slightly_off, "gives other numbers")]
)
def test_what_cannot_be_compiled_is_refused(monkeypatch, backend, said):
    monkeypatch.setattr(compiled_layers, "BACKEND", backend)
    torch._dynamo.reset()
    with pytest.raises(InputError, match=said) as refused:
        policy_of(make_model(GPT2), compiled=True)
    assert "leave model.compile out" in str(refused.value)


def test_compiling_is_refused_where_it_does_not_pay():
    settings = PassSettings(compiled=True)
    with pytest.raises(InputError, match="The lean engine runs this model"):
        engine_name("auto", None, 1000, settings)
    with pytest.raises(InputError, match="The lean engine runs this model"):
        engine_name("lean", None, 1000, settings)
    assert engine_name("transformers", None, 1000, settings) == "transformers"
    assert engine_name("auto", "no view of it", 1000, settings) == "transformers"
    assert engine_name("auto", None, 10**12, settings) == "transformers"
    with pytest.raises(InputError, match="shared_prefix=on and compile=true"):
        engine_name("transformers", None, 1000, PassSettings(shared_prefix="on", compiled=True))
