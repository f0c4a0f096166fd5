"""Encoding many texts at once gives what encoding each gives."""

from __future__ import annotations

import pytest

from grouprl import InputError
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.tiny import build_tiny


@pytest.fixture(scope="module")
def policy() -> CausalPolicy:
    model, tokenizer = build_tiny("0123456789+= ", hidden=8, layers=1, heads=1, intermediate=8)
    return CausalPolicy(model, tokenizer)


def test_many_texts_are_encoded_as_each_is(policy: CausalPolicy) -> None:
    texts = ["1+2=", "", "90+9=", " "]
    assert policy.encode_all(texts) == [policy.encode(text) for text in texts]
    assert policy.encode_prompts(texts) == [policy.encode_prompt(text) for text in texts]
    assert policy.encode_all([]) == policy.encode_prompts([]) == []


def test_the_text_with_an_unknown_character_is_named(policy: CausalPolicy) -> None:
    with pytest.raises(InputError, match=r"'x' in '3x4='"):
        policy.encode_prompts(["1+2=", "3x4="])


def test_many_completions_are_decoded_as_the_tokenizer_does(policy: CausalPolicy) -> None:
    rows = [[*policy.encode("1+2=3"), 2], [1, *policy.encode("9"), 2, 0, 0], [2], []]
    plain = policy.tokenizer
    assert policy.decode_all(rows) == ["1+2=3", "9", "", ""]
    assert policy.decode_all(rows)[0] == plain.decode(rows[0][:-1], clean_up_tokenization_spaces=False)
    assert policy.decode_all([]) == []
