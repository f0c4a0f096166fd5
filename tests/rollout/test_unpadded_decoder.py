"""Models that take no padding before a prompt are decoded without any; those that cannot be decoded are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers
from transformers import BartConfig, BartForCausalLM, GPT2Config, MambaConfig, MistralConfig, PreTrainedModel

from grouprl.core.errors import InputError
from grouprl.policy import CausalPolicy, char_tokenizer
from grouprl.rollout.local import unpadded_decoder
from grouprl.rollout.local.sampler import generate
from grouprl.rollout.local.transformers_decoder import TransformersDecoder
from grouprl.rollout.local.unpadded_decoder import UnpaddedDecoder, decoder_of
from policies import ALPHABET, SIZES, make_model

PROMPTS = [[1, 4, 5, 13, 6], [1, 9, 9], [1, 7, 3, 8, 10, 11, 12, 4, 5], [1, 4], [1, 5, 9]]
BART: dict[str, Any] = {
    "vocab_size": 17,
    "d_model": 32,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "encoder_layers": 2,
    "max_position_embeddings": 64,
    "is_decoder": True,
    "is_encoder_decoder": False,
}
"""A decoder that counts positions from the tokens in its cache, so that padding shifts them."""


def bart() -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = BartForCausalLM(BartConfig(**BART)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def compressing() -> PreTrainedModel:
    """A model that merges two and four tokens into one key."""
    config = getattr(transformers, "DeepseekV4Config", None)
    if config is None:
        pytest.skip("this version of transformers has no model that merges tokens")
    rates = {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4}
    sizes = {**SIZES, "num_hidden_layers": 2, "head_dim": 8, "q_lora_rank": 8, "compress_rates": rates}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "sliding_window": 4}
    index = {"index_topk": 4, "index_n_heads": 64, "index_head_dim": 8}
    return make_model(config(**sizes, **experts, **index))


def alone(model: PreTrainedModel, prompt: Sequence[int], response: Sequence[int]) -> torch.Tensor:
    """Log-probs of a completion by transformers, from a pass over its row alone."""
    with torch.no_grad():
        logp_lv = model(input_ids=torch.tensor([[*prompt, *response]])).logits[0].log_softmax(-1)
    return torch.stack([logp_lv[len(prompt) - 1 + t, token] for t, token in enumerate(response)])


@pytest.mark.parametrize("made", [bart, compressing])
def test_log_probs_are_those_of_each_row_alone(made: Any) -> None:
    model = made()
    try:
        policy = CausalPolicy(model, char_tokenizer(ALPHABET), engine="transformers")
    except InputError as error:  # as first written, DeepSeek-V4 let padding into its merged tokens
        assert made is compressing
        pytest.skip(f"this version of transformers: {error}")
    assert isinstance(decoder_of(model), UnpaddedDecoder)
    rollout = generate(policy, PROMPTS, n=3, max_new_tokens=9, seeds=range(15))
    trained_bt = policy.logp(rollout.tokens)
    for row, ids in enumerate(rollout.response_ids):
        own_t = alone(model, PROMPTS[row // 3], ids)
        for found_bt in (rollout.logp_bt, trained_bt):
            torch.testing.assert_close(found_bt[row, : len(ids)], own_t, rtol=0, atol=2e-5)


def test_rows_end_at_different_times_and_keep_their_places() -> None:
    """Rows of one length all end before others: the decoder of that length is dropped."""
    model = bart()
    decoder = UnpaddedDecoder(model)
    decoder.start(PROMPTS, [4, 0, 2, 1, 0], room=4)
    decoder.step(torch.tensor([3, 4, 5, 6, 7]))
    decoder.keep(torch.tensor([4, 0, 1]))
    found = decoder.step(torch.tensor([8, 9, 10]))
    rows = [(PROMPTS[0], [7, 8]), (PROMPTS[4], [3, 9]), (PROMPTS[0], [4, 10])]
    with torch.no_grad():
        own = torch.stack([model(input_ids=torch.tensor([[*p, *ids]])).logits[0, -1] for p, ids in rows])
    torch.testing.assert_close(found, own, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(vocab_size=17, n_embd=32, n_layer=2, n_head=2, n_positions=64),
        MistralConfig(**{**SIZES, "sliding_window": 4}),
        MambaConfig(vocab_size=17, hidden_size=32, num_hidden_layers=2, state_size=4),
    ],
)
def test_models_that_take_padding_are_decoded_together(config: Any) -> None:
    assert isinstance(decoder_of(make_model(config)), TransformersDecoder)


def test_a_model_is_probed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bart()
    decoder_of(model)
    monkeypatch.setattr(unpadded_decoder, "_kind_for", lambda _: pytest.fail("probed again"))
    assert isinstance(decoder_of(model), UnpaddedDecoder)


def test_a_model_whose_cache_is_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its decoder sees the last token alone, whatever came before."""

    def forgetful(self: Any, token_r: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=token_r[:, None], use_cache=False).logits[:, -1]

    monkeypatch.setattr(TransformersDecoder, "step", forgetful)
    with pytest.raises(InputError, match=r"GPT2LMHeadModel does not decode token by token.*whole sequence.*server"):
        decoder_of(make_model(GPT2Config(vocab_size=17, n_embd=32, n_layer=2, n_head=2, n_positions=64)))


def test_a_model_that_fails_is_refused_with_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Any, token_r: torch.Tensor) -> torch.Tensor:
        raise AttributeError("no state here")

    monkeypatch.setattr(TransformersDecoder, "step", failing)
    with pytest.raises(InputError, match=r"token by token \(no state here\)"):
        decoder_of(make_model(GPT2Config(vocab_size=17, n_embd=32, n_layer=2, n_head=2, n_positions=64)))


def test_gaps_by_hand() -> None:
    """The largest difference over the largest logit; in half precision all differences over the spread."""
    expected = torch.tensor([[1.0, -4.0], [2.0, 1.0]])
    assert unpadded_decoder._gap(expected, expected + torch.tensor([[0.0, 0.2], [-0.1, 0.0]])) == pytest.approx(0.05)
    half = torch.tensor([[1.0, -1.0], [3.0, -3.0]], dtype=torch.bfloat16)
    found = torch.tensor([[1.0, -1.0], [3.0, -1.0]], dtype=torch.bfloat16)
    assert unpadded_decoder._gap(half, found) == pytest.approx(2 / 20**0.5)


@pytest.mark.parametrize("out", [-torch.inf, torch.finfo(torch.float32).min])
def test_tokens_that_a_model_rules_out_do_not_count(out: float) -> None:
    expected = torch.tensor([[1.0, -4.0, out]])
    assert unpadded_decoder._gap(expected, torch.tensor([[1.0, -3.8, out]])) == pytest.approx(0.05)
    assert not unpadded_decoder._gap(expected, torch.tensor([[1.0, torch.nan, out]])) <= 1e-3


@pytest.mark.parametrize(("gaps", "kind"), [((0.3, 0.1), UnpaddedDecoder), ((0.3, 0.2), TransformersDecoder)])
def test_in_half_precision_the_nearer_way_is_taken(
    gaps: tuple[float, float], kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding may send a token to another expert: a model that is near is not refused, one that is far is."""
    model = make_model(GPT2Config(vocab_size=17, n_embd=32, n_layer=2, n_head=2, n_positions=64)).bfloat16()
    told = iter(gaps)
    monkeypatch.setattr(unpadded_decoder, "_gap", lambda *_: next(told))
    assert isinstance(decoder_of(model), kind)
    monkeypatch.setattr(unpadded_decoder, "_gap", lambda *_: 0.6)
    with pytest.raises(InputError, match="does not decode token by token"):
        decoder_of(make_model(model.config).bfloat16())


def test_real_models_in_half_precision_are_decoded() -> None:
    assert isinstance(decoder_of(bart().bfloat16()), UnpaddedDecoder)
    assert isinstance(decoder_of(make_model(MistralConfig(**SIZES)).bfloat16()), TransformersDecoder)
