"""Rows of any length pass in memory that grows with their length, never with its square."""

import pytest
import torch

from grouprl.policy import Tokens
from grouprl.policy.fast_forward import attention
from grouprl.policy.language.load import load_policy
from grouprl.policy.passes import PassSettings, forward_in_pieces
from largest_tensor import Largest

SIZES = {"hidden": 16, "layers": 2, "heads": 2, "intermediate": 32, "max_positions": 8192}


def policy_of(engine, dtype="float32", checkpointing="on", shared_prefix="auto", token_budget=65536, **sizes):
    passes = PassSettings("auto", shared_prefix, checkpointing)
    return load_policy("tiny", alphabet="0123456789", device="cpu", dtype=dtype, engine=engine, passes=passes,
                       token_budget=token_budget, **{**SIZES, **sizes})  # fmt: skip


def rows_of(length, shared=0, count=1):
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(3, 12, (count, length), generator=generator).tolist()
    prompt = ids[0][:shared] or ids[0][:8]
    return Tokens.of([prompt] * count, [row[len(prompt) :] for row in ids])


def largest(policy, tokens):
    pull_bt = tokens.present_bt().to(policy.dtype) / tokens.present_bt().sum()
    with Largest() as seen:
        policy.backward(tokens, {"log_prob": pull_bt})
    return seen.numel


@pytest.mark.parametrize("engine", ["lean", "transformers"])
def test_the_largest_tensor_of_a_long_row_grows_with_its_length(engine):
    policy = policy_of(engine)
    short, long = (largest(policy, rows_of(length)) for length in (1024, 2048))
    assert long <= 2.1 * short
    assert long < 2048 * 2048 / 4


def test_shared_beginnings_of_long_rows_need_no_mask_of_their_square(monkeypatch):
    monkeypatch.setattr(attention, "MASK_NUMBERS", 2**18)
    found = [largest(policy_of("lean"), rows_of(length, length // 2, 2)) for length in (1024, 2048)]
    assert found[1] <= max(2.1 * found[0], 2**18)


def kept_masks(policy, tokens):
    """The sizes of the masks that a pass keeps for its backward pass: matrices of zeros and of minus infinity."""
    found = []

    def pack(kept):
        if kept.dim() == 4 and bool(((kept == 0) | (kept == -torch.inf)).all()):
            found.append(kept.numel())
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
        policy.backward(tokens, {"log_prob": tokens.present_bt().to(policy.dtype)})
    return found


def test_a_mask_in_parts_is_made_again_and_not_kept(monkeypatch):
    tokens = rows_of(256, 128, 2)
    assert kept_masks(policy_of("lean", checkpointing="off"), tokens) != []
    monkeypatch.setattr(attention, "MASK_NUMBERS", 2**13)
    assert kept_masks(policy_of("lean", checkpointing="off"), tokens) == []


@pytest.mark.parametrize("checkpointing", ["on", "off"])
def test_masks_in_parts_give_the_same_numbers(monkeypatch, checkpointing):
    tokens = Tokens.of([[5, *range(3, 9)] * 30] * 3, [[3, 4, 5] * 20, [6, 7] * 45, [8] * 7])
    plain = policy_of("lean", "float64", shared_prefix="off")
    policy = policy_of("lean", "float64", checkpointing, "on")
    calls, masked = [], attention._masked
    monkeypatch.setattr(attention, "MASK_NUMBERS", 3 * 300 * 16)
    monkeypatch.setattr(attention, "_masked", lambda *given: calls.append(1) or masked(*given))
    for each in (plain, policy):
        each.backward(tokens, {"log_prob": tokens.present_bt().double()})
    assert len(calls) > 4, "the mask was never cut"
    assert (policy.logp(tokens) - plain.logp(tokens)).abs().max() < 1e-12
    for name, parameter in policy.named_parameters():
        other = dict(plain.named_parameters())[name]
        assert (parameter.grad - other.grad).abs().max() < 1e-9, name


def test_a_row_of_32768_tokens_equals_the_plain_path():
    """The plain path: the model's own forward pass on the whole row, and the softmax of its logits."""
    tokens = rows_of(32768)
    policy = load_policy("tiny", alphabet="0123456789", device="cpu", dtype="float32", engine="lean",
                         **{**SIZES, "max_positions": 32768})  # fmt: skip
    with torch.no_grad():
        ids_bt = torch.tensor([[*tokens.prompt_ids[0], *tokens.response_ids[0]]])
        plain_btv = policy.model(ids_bt).logits.log_softmax(-1)
        plain_bt = plain_btv[:, 7:-1].gather(2, ids_bt[:, 8:, None])[..., 0]
    assert (policy.logp(tokens) - plain_bt).abs().max() < 2e-6


@pytest.mark.parametrize("engine", ["lean", "transformers"])
def test_a_row_beyond_the_token_budget_passes_wide_blocks_in_pieces(engine):
    """The largest tensor is the output of all tokens together, or the intermediate numbers of a piece of them."""
    wide, tokens = {"intermediate": 512}, rows_of(1024)
    whole, pieces = (largest(policy_of(engine, token_budget=each, **wide), tokens) for each in (4096, 128))
    assert whole >= 1023 * 512
    assert pieces <= 1024 * 16 * 4 + 128 * 512 * 2


@pytest.mark.parametrize("lora", [None, {"r": 2}])
@pytest.mark.parametrize("engine", ["lean", "transformers"])
def test_pieces_give_the_same_numbers(engine, lora):
    tokens = rows_of(300, 40, 3)
    whole, cut = (policy_of(engine, "float64", token_budget=each, lora=lora) for each in (4096, 64))
    for each in (whole, cut):
        each.backward(tokens, {"log_prob": tokens.present_bt().double()})
    assert (cut.logp(tokens) - whole.logp(tokens)).abs().max() < 1e-12
    for (name, one), (_, other) in zip(whole.named_parameters(), cut.named_parameters(), strict=True):
        if one.requires_grad:
            assert (one.grad - other.grad).abs().max() < 1e-9 * one.grad.abs().max().clamp(min=1), name


def test_a_block_that_is_given_more_than_its_input_is_called_whole():
    calls = []
    call = forward_in_pieces(2, lambda *given: calls.append(len(given)) or given[0])
    assert call(torch.ones(1, 5, 3), torch.ones(1)).shape == call(torch.ones(1, 5, 3)).shape == (1, 5, 3)
    assert calls == [2, 1, 1, 1]
