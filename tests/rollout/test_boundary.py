"""Where prompt and completion of a stored row meet, and what gives way where a row is too long."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from chat_families import CHAT_FAMILIES, family_tokenizer
from grouprl.core.errors import InputError
from grouprl.plan.checks import PromptEncoder
from grouprl.records.examples import Chat, Example
from grouprl.records.offline import RowLimit, StoredRow
from grouprl.rollout.stored.boundary import StoredTokens, fitted, group_tokens

WORDS = st.text("ab the<>/:\n", min_size=1, max_size=8).filter(lambda text: text.strip() != "")
ENCODERS = {name: PromptEncoder(family_tokenizer(family)) for name, family in CHAT_FAMILIES.items()}
CALL = {"id": "call_0000", "type": "function", "function": {"name": "clock", "arguments": {"zone": "utc"}}}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def tokens(encoder: Any, prompt: Any, *completions: Any, limit: RowLimit | None = None) -> list[StoredTokens]:
    rows = [
        StoredRow(each, 1.0) if isinstance(each, str) else StoredRow("turns", 1.0, messages=tuple(each))
        for each in completions
    ]
    return group_tokens(encoder, [(Example("p", prompt), rows)], limit or RowLimit(), None)


@pytest.mark.parametrize("name", CHAT_FAMILIES)
@settings(max_examples=12, deadline=None)
@given(question=WORDS, chosen=WORDS, rejected=WORDS)
def test_both_rows_share_the_tokens_of_their_prompt(name: str, question: str, chosen: str, rejected: str) -> None:
    """In every family: the prompt is what sampling would show, the completion is read back, one end token ends it."""
    encoder = ENCODERS[name]
    prompt = (user(question),)
    group = tokens(encoder, prompt, chosen, rejected)
    alone = tuple(encoder.encode_prompt(prompt))
    for text, row in zip((chosen, rejected), group, strict=True):
        assert row.prompt_ids == alone
        assert all(row.own)
        assert row.ids[-1] in encoder.eos_ids
        assert sum(each in encoder.eos_ids for each in row.ids) == 1
        assert text.strip() in encoder.decode(row.ids)


@pytest.mark.parametrize("name", CHAT_FAMILIES)
def test_several_turns_are_what_the_template_renders_or_refused(name: str) -> None:
    """Only the assistant's tokens are the policy's; together the row is a beginning of the rendered conversation."""
    encoder, prompt = ENCODERS[name], (user("What?"),)
    turns = [said("One."), user("More?"), said("Two.")]
    if name in ("gpt-oss", "qwen 3"):  # they write an earlier turn without what they write into the last one
        with pytest.raises(InputError, match="does not render the completions of p after their prompt"):
            tokens(encoder, prompt, turns, [said("Three.")])
        return
    one, two = tokens(encoder, prompt, turns, [said("Three.")])
    assert one.prompt_ids == two.prompt_ids
    mine = encoder.decode([each for each, own in zip(one.ids, one.own, strict=True) if own])
    assert "One." in mine
    assert "Two." in mine
    assert "More?" not in mine
    assert "More?" in encoder.decode(one.ids)
    assert one.own[-1]


def test_a_result_of_a_tool_is_not_learned() -> None:
    encoder = ENCODERS["qwen 2.5"]
    prompt: Any = Chat([user("Time?")], [CLOCK])
    turns = [{**said(""), "tool_calls": [CALL]}, {"role": "tool", "content": "noon"}, said("It is noon.")]
    row, _ = tokens(encoder, prompt, turns, "No idea.")
    mine = encoder.decode([each for each, own in zip(row.ids, row.own, strict=True) if own])
    assert "clock" in mine
    assert "It is noon." in mine
    assert "<tool_response>" in encoder.decode(row.ids)
    assert "<tool_response>" not in mine
    assert "clock" in encoder.decode(row.prompt_ids)  # the prompt announces the tool


def test_text_behind_a_text_is_encoded_by_itself() -> None:
    """The two letters at the boundary would be one token if both were encoded as one text."""
    encoder = ENCODERS["qwen 2.5"]
    both = encoder.encode("th")
    assert len(both) == 1
    row, other = tokens(encoder, "t", "h", "e")
    assert row.prompt_ids == other.prompt_ids == tuple(encoder.encode_prompt("t"))
    assert row.ids[:-1] == tuple(encoder.encode("h"))


LETTERS = [*"abcdefghijklmnopqrstuvwxyzABIT.:\n", "b", "▁b"]
KINDS = ("legacy", "first", "always", "never")


def spaced_encoder(kind: str) -> PromptEncoder:
    """A tokenizer as those of Llama 2 and Mistral, which put a blank before a text; `kind` says how."""
    words = dict.fromkeys(["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "▁", *LETTERS])
    made = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [("▁", "b")], unk_token="<unk>"))
    blanks = [decoders.Replace("▁", " "), decoders.Fuse(), *([] if kind == "never" else [decoders.Strip(" ", 1, 0)])]
    if kind == "legacy":
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace("▁", kind, split=False)
    made.decoder = decoders.Sequence(blanks)
    made.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    controls = ["[INST]", "[/INST]"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", extra_special_tokens=controls
    )
    tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
        "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
    )
    return PromptEncoder(tokenizer)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("prompt", "completion"), [("the sky is", " blue."), ("A:\n", "blue"), ("I", " am"), ("a", "\n")]
)
def test_a_completion_gets_no_blank_that_it_does_not_have(kind: str, prompt: str, completion: str) -> None:
    """Encoded as a text of its own it would begin with one more: the row is what the tokenizer makes of the whole."""
    encoder = spaced_encoder(kind)
    (row, _) = tokens(encoder, prompt, completion, "x")
    whole = encoder.tokenizer(prompt + completion).input_ids
    assert [*row.prompt_ids, *row.ids] == [*whole, encoder.tokenizer.eos_token_id]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["blue.", " blue."])
def test_a_turn_behind_a_control_token_is_encoded_as_in_the_whole_conversation(kind: str, text: str) -> None:
    """Some tokenizers put a blank behind control tokens, and models were trained so."""
    encoder = spaced_encoder(kind)
    turns = [said(text), user("x"), said(text)]
    row, _ = tokens(encoder, (user("the sky?"),), turns, "x")
    whole = encoder.tokenizer.apply_chat_template([user("the sky?"), *turns], tokenize=False)
    assert [*row.prompt_ids, *row.ids] == encoder.tokenizer(whole, add_special_tokens=False).input_ids


def test_a_demonstration_behind_a_text_gets_no_blank() -> None:
    encoder = spaced_encoder("legacy")
    assert encoder.encode("blue") == encoder.tokenizer("A:\nblue").input_ids[-4:]
    assert encoder.encode_all(["blue", " blue", ""])[1:] == [encoder.tokenizer("a blue").input_ids[-4:], []]


def rows_of(prompt: int, *lengths: int) -> list[StoredTokens]:
    shared = tuple(range(100, 100 + prompt))
    return [StoredTokens(shared, tuple(range(n)), (True,) * n) for n in lengths]


def test_nothing_is_cut_that_fits() -> None:
    group = rows_of(4, 3, 6)
    for way in ("keep_start", "keep_end", "drop"):
        assert fitted(group, 10, RowLimit(10, way), "p") == group


def test_keep_start_cuts_the_ends_of_completions() -> None:
    short, long = fitted(rows_of(4, 3, 8), 10, RowLimit(10, "keep_start"), "p")
    assert (len(short.ids), short.cut, short.ends_cut) == (3, 0, False)
    assert (long.ids, long.cut, long.ends_cut) == (tuple(range(6)), 2, True)
    assert short.prompt_ids == long.prompt_ids == (100, 101, 102, 103)


def test_keep_end_cuts_one_prompt_for_both_rows() -> None:
    """The shorter row would fit as it is; its prompt is cut as well, so that both have the same one."""
    short, long = fitted(rows_of(4, 3, 8), 10, RowLimit(10, "keep_end"), "p")
    assert short.prompt_ids == long.prompt_ids == (102, 103)
    assert (len(short.ids), len(long.ids)) == (3, 8)
    assert [row.cut for row in (short, long)] == [2, 2]
    assert not any(row.ends_cut for row in (short, long))


def test_drop_leaves_both_rows_out() -> None:
    assert [row.fits for row in fitted(rows_of(4, 3, 8), 10, RowLimit(10, "drop"), "p")] == [False, False]


@pytest.mark.parametrize(("way", "prompt", "lengths"), [("keep_start", 10, (1, 2)), ("keep_end", 4, (3, 10))])
def test_a_row_without_tokens_is_refused_by_its_name(way: Any, prompt: int, lengths: tuple[int, int]) -> None:
    with pytest.raises(InputError, match=r"line 7.*max_length"):
        fitted(rows_of(prompt, *lengths), 10, RowLimit(10, way), "line 7")


@given(
    prompt=st.integers(1, 12),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    most=st.integers(2, 14),
    way=st.sampled_from(["keep_start", "keep_end", "drop"]),
)
def test_cut_rows_fit_share_their_prompt_and_keep_count(prompt: int, lengths: list[int], most: int, way: Any) -> None:
    group = rows_of(prompt, *lengths)
    try:
        found = fitted(group, most, RowLimit(most, way), "p")
    except InputError:
        assert way != "drop"
        return
    assert len({row.prompt_ids for row in found}) == 1
    if all(row.fits for row in found):
        assert max(map(len, found)) <= most
        assert [len(row) + row.cut for row in found] == [len(row) for row in group]
        assert all(any(row.own) for row in found)
