"""Keys and values kept between turns for models without a decoder of their own: the same as when all is read anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    DeepseekV3Config,
    FalconConfig,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    OPTConfig,
    PhiConfig,
    Qwen2Config,
)

import toy_envs
from grouprl.policy import CausalPolicy, char_tokenizer
from grouprl.rollout.episodes import Start, play
from grouprl.rollout.local.decode_loop import make_decoder
from grouprl.rollout.local.sampler import LocalSampler, generate
from grouprl.rollout.local.transformers_decoder import TransformersDecoder
from grouprl.rollout.local.turn_cache import TurnCache
from grouprl.tasks import Example
from policies import SIZES, kept_rows, make_model

LETTERS = toy_envs.AskTask.alphabet
VOCABULARY = {**SIZES, "vocab_size": 3 + len(LETTERS)}
GPT = {"vocab_size": 3 + len(LETTERS), "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128}
MLA = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12}
EXPERTS = {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
FAMILIES = {
    "gpt2": GPT2Config(**GPT),
    "llama": LlamaConfig(**VOCABULARY),
    "window": MistralConfig(**{**VOCABULARY, "sliding_window": 4}),
    "windows and whole": Qwen2Config(
        **{**VOCABULARY, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    ),
    "gemma2": Gemma2Config(**{**VOCABULARY, "head_dim": 8, "sliding_window": 4, "attn_implementation": "eager"}),
    "opt": OPTConfig(**VOCABULARY, ffn_dim=40, word_embed_proj_dim=32),
    "bloom": BloomConfig(vocab_size=3 + len(LETTERS), hidden_size=32, n_layer=2, n_head=2),
    "neox": GPTNeoXConfig(**VOCABULARY),
    "phi": PhiConfig(**VOCABULARY),
    "falcon": FalconConfig(**VOCABULARY, multi_query=True, new_decoder_architecture=False),
    "mamba": MambaConfig(vocab_size=3 + len(LETTERS), hidden_size=32, num_hidden_layers=2, state_size=4),
    "mla": DeepseekV3Config(**VOCABULARY, **MLA, **EXPERTS, moe_intermediate_size=16),
}


SINGLE = ("bloom", "gemma2", "mla", "mamba")
"""Families that compute in float32 whatever their weights are."""


def policy(family: str) -> CausalPolicy:
    dtype = torch.float32 if family in SINGLE else torch.float64
    return CausalPolicy(make_model(FAMILIES[family], dtype), char_tokenizer(LETTERS), engine="transformers")


def near(family: str) -> dict[str, float]:
    return {"atol": 5e-5 if family in SINGLE else 2e-6, "rtol": 0}


def played(own: CausalPolicy, cache_gb: float, count: int = 24) -> Any:
    starts = [Start(Example(f"q{i}", "?" * (1 + i % 5), {"turns": 1 + i % 5}), 0, action_seed=i) for i in range(count)]
    return play(
        own, toy_envs.Counting, starts, max_turns=9, max_new_tokens=5, sampler=LocalSampler(own, cache_gb=cache_gb)
    )


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens, padding included, that models are shown at the beginnings of turns."""
    found: list[int] = []
    forward = TransformersDecoder._forward

    def counted(self: Any, ids: torch.Tensor, *rest: Any) -> Any:
        if ids.shape[1] > 1:
            found.append(ids.numel())
        return forward(self, ids, *rest)

    monkeypatch.setattr(TransformersDecoder, "_forward", counted)
    return found


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "mamba"])
def test_episodes_are_the_same_with_and_without(family: str, read: list[int]) -> None:
    own = policy(family)
    anew = played(own, 0.0)
    without = sum(read)
    read.clear()
    known = played(own, 1.0)
    assert anew.rollout.response_ids == known.rollout.response_ids
    torch.testing.assert_close(anew.rollout.logp_bt, known.rollout.logp_bt, **near(family))
    torch.testing.assert_close(anew.rollout.entropy_bt, known.rollout.entropy_bt, **near(family))
    assert sum(read) < 0.5 * without


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "mamba"])
def test_log_probs_are_the_policys_own(family: str) -> None:
    own = policy(family)
    episodes = played(own, 1.0, 12)
    logp_bt, mask_bt = own.logp(episodes.rollout.tokens), torch.from_numpy(episodes.mask_bt)
    torch.testing.assert_close(episodes.rollout.logp_bt[mask_bt], logp_bt[mask_bt], **near(family))


def test_recurrent_states_are_read_anew(read: list[int]) -> None:
    own = policy("mamba")
    assert not make_decoder(own).keeps  # a model is probed before it is decoded for the first time
    read.clear()
    anew = played(own, 0.0, 6)
    without = sum(read)
    read.clear()
    assert played(own, 1.0, 6).rollout.response_ids == anew.rollout.response_ids
    assert sum(read) == without


@pytest.mark.parametrize("family", ["gpt2", "window"])
def test_rows_known_to_different_lengths_are_read_together(family: str) -> None:
    own, held = policy(family), TurnCache(1.0)
    firsts = [own.encode_prompt("?" * n) for n in (1, 4, 9)]
    settings: dict[str, Any] = {"n": 1, "max_new_tokens": 6}
    sampled = kept_rows(own, firsts, held, ["x", "y", "z"], **settings, seeds=[1, 2, 3], budgets=[6, 1, 3])
    grown = [
        [*p, *ids, *own.encode("abc"[:n])] for n, p, ids in zip((3, 1, 2), firsts, sampled.response_ids, strict=True)
    ]
    grown.append(own.encode_prompt("kkk?"))  # one that nothing is known of
    again = {**settings, "seeds": [4, 5, 6, 7]}
    one = generate(own, grown, **again)
    two = kept_rows(own, grown, held, ["x", "y", "z", "new"], **again)
    assert one.response_ids == two.response_ids
    torch.testing.assert_close(one.logp_bt, two.logp_bt, atol=1e-9, rtol=0)
