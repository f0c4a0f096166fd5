"""A tiny Llama-style model and a character tokenizer, saved as an ordinary Hugging Face folder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch

from grouprl.core.errors import InputError
from grouprl.policy.passes import free_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"


def build_tiny(alphabet: str, *, seed: int = 0, **sizes: int) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Build a model of about 0.156 million parameters (at the defaults) and the tokenizer of `alphabet`.

    The sizes are those of `tiny_config`, the weights those of `initial_weights`.

    Raises:
        InputError: see `tiny_config`.
    """
    from transformers import LlamaForCausalLM

    config, tokenizer = tiny_config(alphabet, **sizes)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = LlamaForCausalLM(config)
        own = dict(model.named_parameters())
        for name, weight in initial_weights({name: each.shape for name, each in own.items()}, config, seed):
            own[name].copy_(weight)
    return model.eval(), tokenizer


def tiny_config(
    alphabet: str,
    *,
    hidden: int = 64,
    layers: int = 3,
    heads: int = 4,
    kv_heads: int | None = None,
    intermediate: int = 176,
    max_positions: int = 512,
) -> tuple[LlamaConfig, PreTrainedTokenizerFast]:
    """Return the configuration of a tiny model and the tokenizer of `alphabet`.

    Raises:
        InputError: the alphabet is empty or repeats a character, `hidden` does not divide into `heads`, or the model is
            larger than the free memory.
    """
    from transformers import LlamaConfig

    tiny_parameters(
        len(alphabet), hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, intermediate=intermediate
    )
    tokenizer = char_tokenizer(alphabet, max_positions=max_positions)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads or heads,
        intermediate_size=intermediate,
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        rms_norm_eps=1e-6,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return config, tokenizer


def tiny_parameters(
    vocabulary: int, *, hidden: int, layers: int, heads: int, kv_heads: int | None, intermediate: int
) -> int:
    """Return the number of parameters of a tiny model, whose output layer is its embedding.

    Raises:
        InputError: `hidden` does not divide into `heads`, or the model is larger than the free memory.
    """
    _check_shape(hidden, heads, kv_heads or heads)
    keys = hidden // heads * (kv_heads or heads)
    layer = 2 * hidden * (hidden + keys) + 3 * hidden * intermediate + 2 * hidden
    _check_room(layers * layer)
    return vocabulary * hidden + layers * layer + hidden


def char_tokenizer(alphabet: str, *, max_positions: int = 512) -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token per character: <pad>=0, <bos>=1, <eos>=2, then `alphabet` in its order.

    The tokenizer puts <bos> in front of each text, as the model expects it. A character outside the alphabet is an
    error at encoding, never silently dropped.

    Raises:
        InputError: the alphabet is empty or repeats a character.
    """
    return _as_pretrained(_characters(alphabet), max_positions)


class CountedCharacters:
    """The tokenizer of `char_tokenizer`, to count the tokens of prompts before a run: it spares loading transformers.

    Anything else that it is asked for is answered by the tokenizer itself, which is loaded then.

    Raises:
        InputError: the alphabet is empty or repeats a character.
    """

    chat_template = None
    pad_token_id, bos_token_id, eos_token_id = 0, 1, 2

    def __init__(self, alphabet: str, *, max_positions: int) -> None:
        self.backend_tokenizer = _characters(alphabet)
        self.model_max_length = max_positions

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size()

    def __call__(self, texts: str | list[str], *, add_special_tokens: bool = True, verbose: bool = True) -> Encoded:
        """Return the tokens of a text, or of each of several."""
        if isinstance(texts, str):
            return Encoded(self.backend_tokenizer.encode(texts, add_special_tokens=add_special_tokens).ids)
        found = self.backend_tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)
        return Encoded([each.ids for each in found])

    def get_added_vocab(self) -> dict[str, int]:
        """Return the numbers of the tokens that stand for no character."""
        return {PAD: self.pad_token_id, BOS: self.bos_token_id, EOS: self.eos_token_id}

    @cached_property
    def _whole(self) -> PreTrainedTokenizerFast:
        return _as_pretrained(self.backend_tokenizer, self.model_max_length)

    def __getattr__(self, name: str) -> object:
        return getattr(self._whole, name)


class Encoded(NamedTuple):
    """The tokens of one text or of several, under the name that transformers gives them."""

    input_ids: list[int] | list[list[int]]


def _characters(alphabet: str) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    repeated = sorted({c for c in alphabet if alphabet.count(c) > 1})
    if not alphabet or repeated:
        raise InputError(
            f"The alphabet {alphabet!r} " + (f"repeats {repeated}" if repeated else "is empty"),
            "A character tokenizer needs distinct characters",
            "Give a string in which each character occurs once",
        )
    vocabulary = {token: i for i, token in enumerate([PAD, BOS, EOS, *alphabet])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])])
    return tokenizer


def _as_pretrained(tokenizer: Tokenizer, max_positions: int) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=max_positions,
        clean_up_tokenization_spaces=False,
    )


def _check_shape(hidden: int, heads: int, kv_heads: int) -> None:
    if hidden % heads or (hidden // heads) % 2:
        raise InputError(
            f"hidden={hidden} with heads={heads}",
            "Each head needs the same, even number of dimensions (rotary positions turn them in pairs)",
            "Choose hidden as a multiple of 2 * heads",
        )
    if heads % kv_heads:
        raise InputError(
            f"heads={heads} with kv_heads={kv_heads}", "Query heads share key heads evenly", "Choose a divisor"
        )


def _check_room(parameters: float) -> None:
    """Raise InputError if the model would not fit into this machine's memory, before any memory is allocated."""
    free = free_bytes("cpu")
    if free is not None and 4 * parameters > free:
        raise InputError(
            f"A tiny model of this size has {parameters:.2g} parameters: {4 * parameters / 2**30:.2g} GiB, and "
            f"{free / 2**30:.2g} GiB are free",
            remedy="Choose smaller hidden, layers and intermediate of model.tiny",
        )


def initial_weights(
    shapes: Mapping[str, torch.Size], config: LlamaConfig, seed: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights that a tiny model begins with, in float32, one after the other: they follow from `seed` alone.

    Normal with standard deviation 1/sqrt(fan_in), the two projections that write into the residual stream divided by
    sqrt(2 * layers) (GPT-2 report, section 2.3), embeddings (tied to the output) with 0.02; scales of norms are 1.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, shape in shapes.items():
        if len(shape) != 2:
            yield name, torch.ones(shape)
            continue
        std = 0.02 if "embed" in name else 1 / math.sqrt(shape[1])
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            std /= math.sqrt(2 * config.num_hidden_layers)
        yield name, torch.empty(shape).normal_(std=std, generator=generator)
