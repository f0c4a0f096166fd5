"""Conversion between text and token ids: plain prompts, chat messages, completions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping
from grouprl.policy.language.chat_template import template_of
from grouprl.policy.state import NamedParameters

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from grouprl.records.token_policy import TextSide

ANCHORS = ("\n", ".", "0")
"""Texts after which others are encoded without the blank that a tokenizer puts in front of a whole text."""
_SPACED: WeakKeyDictionary[object, bool] = WeakKeyDictionary()
Message = JsonMapping
"""A chat message as transformers' chat templates take it: at least `role` and `content`."""


def encode(tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool = False) -> list[int]:
    """Encode plain text; the caller has to refuse texts that are too long for the model.

    `special` adds the special tokens that the tokenizer puts around a text by default, such as a bos token.

    Raises:
        InputError: a character that the tokenizer does not know (only tokenizers without an unknown token).
    """
    try:
        return list(tokenizer(text, add_special_tokens=special, verbose=False).input_ids)
    except Exception as error:
        unknown = sorted(set(text) - set(tokenizer.get_vocab()))
        if tokenizer.unk_token_id is not None or not unknown:
            raise
        raise InputError(
            f"The character {unknown[0]!r} in {text[:80]!r} is not in the tokenizer's alphabet",
            "A character tokenizer knows only the characters that it was built with",
            "Add the character to the alphabet or leave it out of the text",
        ) from error


def encode_all(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
    """Encode many plain texts at once, as `encode` does each; this is several times faster for short texts."""
    if not texts:
        return []
    try:
        return [list(ids) for ids in tokenizer(list(texts), add_special_tokens=special, verbose=False).input_ids]
    except Exception:
        return [encode(tokenizer, text, special=special) for text in texts]  # raises an error that names the text


def encode_onward(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Encode texts as they stand after other text: without the blank that some tokenizers put before a whole one.

    Raises:
        InputError: as `encode` does.
    """
    found = encode_all(tokenizer, texts)
    if not adds_blank(tokenizer):
        return found
    return [_onward(tokenizer, text, alone) for text, alone in zip(texts, found, strict=True)]


def _onward(tokenizer: PreTrainedTokenizerBase, text: str, alone: list[int]) -> list[int]:
    behind = (_behind(tokenizer, anchor, text) for anchor in ANCHORS)
    return next((ids for ids in behind if ids is not None), alone)


def encode_after(policy: TextSide, before: Sequence[Sequence[int]], texts: Sequence[str]) -> list[list[int]]:
    """Encode each text as the tokenizer would if it stood after these tokens, so that none holds a part of both.

    A tokenizer that puts a blank before a text may do so after a control token, too.
    """
    found = policy.encode_all(texts)
    if not adds_blank(policy.tokenizer):
        return found
    controls = {number: word for word, number in policy.tokenizer.get_added_vocab().items()}
    words = [controls.get(ids[-1]) if ids else None for ids in before]
    behind = [
        None if word is None else _behind(policy.tokenizer, word, t) for word, t in zip(words, texts, strict=True)
    ]
    return [alone if ids is None else ids for ids, alone in zip(behind, found, strict=True)]


def adds_blank(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer puts a blank before a text that begins without one, as those of Llama 2 do."""
    try:
        known = _SPACED.get(tokenizer)
        if known is None:
            known = _SPACED[tokenizer] = _puts_blank(tokenizer)
    except TypeError:  # a user's own tokenizer may not be hashable
        known = _puts_blank(tokenizer)
    return known


def _puts_blank(tokenizer: PreTrainedTokenizerBase) -> bool:
    for anchor in ANCHORS:
        try:
            behind = _behind(tokenizer, anchor, "x")
        except InputError:  # one token for each of some characters: none of them is put before a text
            continue
        if behind is not None:
            return behind != encode(tokenizer, "x")
    return False


def _behind(tokenizer: PreTrainedTokenizerBase, anchor: str, text: str) -> list[int] | None:
    """Return the tokens of a text behind another; None if a token holds a part of both."""
    head, whole = encode(tokenizer, anchor), encode(tokenizer, anchor + text)
    return whole[len(head) :] if whole[: len(head)] == head else None


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str | Sequence[Message]) -> list[int]:
    """Encode a prompt as users of the exported model will: text with the tokenizer, messages with the chat template.

    Raises:
        InputError: messages for a tokenizer without a chat template, an unknown character, a prompt without tokens, a
            tokenizer that ends every text.
    """
    if isinstance(prompt, str):
        return _checked_prompt(tokenizer, prompt, encode(tokenizer, prompt, special=True))
    return _checked_prompt(tokenizer, prompt, encode(tokenizer, render_chat(tokenizer, prompt)))


def encode_prompts(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str | Sequence[Message]]) -> list[list[int]]:
    """Encode many prompts, as `encode_prompt` does each; plain texts are encoded all at once."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        return [encode_prompt(tokenizer, prompt) for prompt in prompts]
    rows = encode_all(tokenizer, texts, special=True)
    return [_checked_prompt(tokenizer, text, ids) for text, ids in zip(texts, rows, strict=True)]


def _checked_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str | Sequence[Message], ids: list[int]) -> list[int]:
    if not ids:
        raise InputError(f"The prompt {prompt!r} has no tokens", "A prompt needs at least one token", "Write something")
    ended = isinstance(prompt, str) and ids[-1] == tokenizer.eos_token_id
    if ended and encode(tokenizer, str(prompt))[-1:] != ids[-1:]:
        raise InputError(
            f"The tokenizer appends its end token {tokenizer.eos_token!r} to every text",
            "A model continues a prompt, so a prompt must not end with this token",
            "Set add_eos_token to false in the tokenizer's files, or give prompts as chat messages",
        )
    return ids


def decode_all(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Sequence[int]], eos_ids: Collection[int]
) -> list[str]:
    """Return the texts of `rows` without the tokens that begin, end or pad a sequence."""
    framing = {tokenizer.bos_token_id, tokenizer.pad_token_id, *eos_ids}
    content = [[int(i) for i in ids if int(i) not in framing] for ids in rows]
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None:  # the loop in the transformers wrapper takes four times as long
        return list(fast.decode_batch(content, skip_special_tokens=False))
    return list(tokenizer.batch_decode(content, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def render_chat(tokenizer: object, messages: Sequence[Message]) -> str:
    """Return the text that the chat template renders from messages, up to where the assistant begins to write.

    Messages that the template does not show (tools, their results, roles) are put into others (`ChatTemplate`).

    Raises:
        InputError: the tokenizer has no chat template, or the template cannot render the messages in any form.
    """
    tools, variables = getattr(messages, "tools", ()), getattr(messages, "variables", {})
    return template_of(tokenizer).render(messages, tools, variables=variables)


def render_reply(
    tokenizer: object, prompt: Sequence[Message], between: Sequence[Message], reply: Message
) -> tuple[str, str]:
    """Return the text up to where the assistant begins to write `reply`, and the text with the reply at its end.

    Raises:
        InputError: as `render_chat` does.
    """
    tools, variables = getattr(prompt, "tools", ()), getattr(prompt, "variables", {})
    template, before = template_of(tokenizer), [*prompt, *between]
    begun = template.render(before, tools, variables=variables)
    return begun, template.render([*before, reply], tools, generation=False, variables=variables)


def render_kept(
    tokenizer: object, prompt: Sequence[Message], between: Sequence[Message], reply: Message
) -> tuple[str, str] | None:
    """Return the same as `render_reply`; None if the template then rewrites the prompt, or leaves out some text."""
    begun, whole = render_reply(tokenizer, prompt, between, reply)
    kept = whole.startswith(begun) and str(reply["content"]).strip() in whole[len(begun) :]
    return (begun, whole) if kept else None


def up_to_end(ids: Sequence[int], eos_ids: Collection[int]) -> list[int]:
    """Return tokens up to the last one that ends a completion; all of them if there is none."""
    end = max((place for place, each in enumerate(ids) if each in eos_ids), default=len(ids) - 1)
    return list(ids[: end + 1])


def with_end(ids: Sequence[int], eos_ids: Sequence[int]) -> list[int]:
    """Return tokens with an end token added, unless they already end with one."""
    return [*ids] if ids and ids[-1] in eos_ids else [*ids, *eos_ids[:1]]


class TextModel(NamedParameters):
    """Base of models over tokens: methods that only need their tokenizer."""

    tokenizer: PreTrainedTokenizerBase

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion."""
        raise NotImplementedError

    def encode(self, text: str) -> list[int]:
        """Encode plain text that stands behind other text; raises InputError as the function `encode` does."""
        return encode_onward(self.tokenizer, [text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many plain texts that stand after others; raises InputError as the function `encode` does."""
        return encode_onward(self.tokenizer, texts)

    def encode_prompt(self, prompt: str | Sequence[Message]) -> list[int]:
        """Encode a prompt, text or chat messages; raises InputError as the function `encode_prompt` does."""
        return encode_prompt(self.tokenizer, prompt)

    def encode_prompts(self, prompts: Sequence[str | Sequence[Message]]) -> list[list[int]]:
        """Encode many prompts at once; raises InputError as the function `encode_prompt` does."""
        return encode_prompts(self.tokenizer, prompts)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without the tokens that begin, end or pad a sequence."""
        return self.decode_all([ids])[0]

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each row, as `decode` does."""
        return decode_all(self.tokenizer, rows, self.eos_ids) if rows else []
