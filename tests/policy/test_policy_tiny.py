"""The tiny model: its size, its characters, its first weights, and what is saved of it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grouprl.core.errors import InputError
from grouprl.policy import PRINTABLE, build_tiny, char_tokenizer, load_policy
from grouprl.policy.language.text import encode
from grouprl.policy.language.tiny import CountedCharacters, tiny_parameters


def test_defaults_have_about_0156_million_parameters_and_tied_embeddings():
    model, tokenizer = build_tiny(PRINTABLE)
    assert sum(p.numel() for p in model.parameters()) == 3 * (4 * 64**2 + 3 * 64 * 176 + 2 * 64) + 64 + 64 * 99
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert len(tokenizer) == 99


def test_special_tokens_come_first_then_the_alphabet_in_order():
    tokenizer = char_tokenizer("ba ")
    assert tokenizer.get_vocab() == {"<pad>": 0, "<bos>": 1, "<eos>": 2, "b": 3, "a": 4, " ": 5}


@given(st.lists(st.text("ba "), min_size=1), st.booleans())
def test_counted_characters_are_the_tokens_of_the_tokenizer(texts, special):
    whole, counted = char_tokenizer("ba "), CountedCharacters("ba ", max_positions=512)
    assert counted(texts, add_special_tokens=special).input_ids == whole(texts, add_special_tokens=special).input_ids
    for text in texts:
        assert counted(text, add_special_tokens=special).input_ids == whole(text, add_special_tokens=special).input_ids


def test_counted_characters_are_else_the_tokenizer_itself():
    whole, counted = char_tokenizer("ba ", max_positions=7), CountedCharacters("ba ", max_positions=7)
    assert len(counted) == len(whole) == 6
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "eos_token", "unk_token_id", "chat_template"):
        assert getattr(counted, name) == getattr(whole, name)
    assert counted.model_max_length == whole.model_max_length == 7
    assert counted.get_added_vocab() == whole.get_added_vocab()
    assert counted.get_vocab() == whole.get_vocab()
    assert counted.decode([3, 4]) == whole.decode([3, 4]) == "ba"


def test_counted_characters_refuse_others_as_the_tokenizer_does():
    with pytest.raises(InputError, match="The character 'c' in 'bac' is not in the tokenizer's alphabet"):
        encode(CountedCharacters("ba ", max_positions=512), "bac")


def test_same_seed_same_weights_and_the_global_generator_is_left_alone():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first, _ = build_tiny("ab", seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    second, _ = build_tiny("ab", seed=3)
    other, _ = build_tiny("ab", seed=4)
    for a, b, c in zip(first.parameters(), second.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.dim() == 1 or not torch.equal(a, c)


def test_initial_standard_deviations():
    model, _ = build_tiny("ab", hidden=256, heads=4, layers=2, intermediate=512)
    layer = model.model.layers[0]
    assert layer.self_attn.q_proj.weight.std().item() == pytest.approx(1 / 16, rel=0.03)
    assert layer.self_attn.o_proj.weight.std().item() == pytest.approx(1 / 16 / 2, rel=0.03)
    assert layer.mlp.down_proj.weight.std().item() == pytest.approx(512**-0.5 / 2, rel=0.03)


@pytest.mark.parametrize("text", ["12+34=46", "a  b\n\nc\n", " ", "", "<a> b>"])
def test_text_comes_back_from_its_tokens(text):
    policy = load_policy("tiny", alphabet=PRINTABLE)
    ids = policy.encode(text)
    assert len(ids) == len(text)
    assert policy.decode(ids) == text


def test_prompt_begins_with_bos_and_framing_tokens_are_not_decoded():
    policy = load_policy("tiny", alphabet="0123456789+=")
    ids = policy.encode_prompt("1+2=")
    assert ids[0] == 1
    assert policy.decode([*ids, 6, 2, 0, 0]) == "1+2=3"


def test_an_unknown_character_is_named():
    policy = load_policy("tiny", alphabet="0123456789+=")
    with pytest.raises(InputError, match="'x' in '1x2'"):
        policy.encode_prompt("1x2")


def test_save_and_load_give_back_tokens_and_weights_exactly(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy = load_policy("tiny", alphabet=PRINTABLE, hidden=32, layers=2, heads=4, kv_heads=2, intermediate=48, seed=5)
    policy.save(tmp_path)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("a b\n", add_special_tokens=False).input_ids == policy.encode("a b\n")
    assert tokenizer.decode(policy.encode("a  b\n c")) == "a  b\n c"
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    loaded = dict(model.named_parameters())
    assert loaded.keys() == dict(policy.model.named_parameters()).keys()
    for name, parameter in policy.model.named_parameters():
        assert torch.equal(parameter, loaded[name]), name
    again = load_policy(str(tmp_path))
    with pytest.raises(InputError, match="'é'"):
        again.encode("é")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"alphabet": "aba"}, "repeats"),
        ({"alphabet": ""}, "empty"),
        ({"hidden": 30, "heads": 4}, "heads=4"),
        ({"hidden": 12, "heads": 4}, "even number"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads=3"),
    ],
)
def test_bad_sizes_are_refused(options, complaint):
    with pytest.raises(InputError, match=complaint):
        build_tiny(options.pop("alphabet", "ab"), **options)


@pytest.mark.parametrize("shape", [{}, {"heads": 4, "kv_heads": 2}, {"hidden": 32, "layers": 1, "intermediate": 40}])
def test_the_size_of_a_tiny_model_is_known_without_building_it(shape: dict) -> None:
    model, tokenizer = build_tiny("abc", **shape)
    whole = {"hidden": 64, "layers": 3, "heads": 4, "kv_heads": None, "intermediate": 176, **shape}
    assert tiny_parameters(len(tokenizer), **whole) == sum(each.numel() for each in model.parameters())
