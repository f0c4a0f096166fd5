"""Encoders of token ids into one vector per row, for models of texts: a small network, the policy's trunk, or any
model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn
from typing_extensions import override

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.modeling_outputs import BaseModelOutput

    from grouprl.policy.language.causal_lm import CausalPolicy

Ids = Sequence[Sequence[int]]
"""N rows of token ids, each with at least one."""
LIMIT = 512
"""Largest number of tokens that an encoder with its own vocabulary reads; the last ones of a row are kept."""


class GRUEncoder(nn.Module):
    """A gated recurrent network over token ids; its last state."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(vocabulary, width)
        self.network = nn.GRU(width, width, batch_first=True)

    def forward(self, rows: Ids) -> Tensor:
        """Return [N, width]."""
        ids_nt, length_n = padded(rows, self.embedding.weight.device)
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(ids_nt), length_n.cpu(), batch_first=True, enforce_sorted=False
        )
        return self.network(packed)[1][0]


class TrunkEncoder(nn.Module):
    """A copy of the policy's model without its output layer, adapters merged; the hidden state of the last token."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        model = copy.deepcopy(model)
        model = model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
        self.trunk = model.base_model.requires_grad_(True)
        self.width = int(model.config.get_text_config().hidden_size)

    def forward(self, rows: Ids) -> Tensor:
        """Return [N, width]."""
        ids_nt, length_n = padded(rows, self.trunk.device)
        there_nt = torch.arange(ids_nt.shape[1], device=ids_nt.device) < length_n[:, None]
        hidden_ntd = self.trunk(input_ids=ids_nt, attention_mask=there_nt.long()).last_hidden_state
        return hidden_ntd[torch.arange(len(ids_nt), device=ids_nt.device), length_n - 1].float()


class NamedEncoder(nn.Module):
    """An encoder of transformers with a tokenizer of its own, by name or folder: its pooled state, or its first one.

    `decode` turns the policy's token ids into texts.
    """

    def __init__(self, name: str, decode: Callable[[Ids], list[str]]) -> None:
        super().__init__()
        from transformers import AutoModel, AutoTokenizer

        self.policy_decode = decode
        self.tokenizer = AutoTokenizer.from_pretrained(name, truncation_side="left")
        self.encoder = AutoModel.from_pretrained(name).eval()
        self.limit = min(LIMIT, self.tokenizer.model_max_length)
        self.width = int(self.encoder.config.hidden_size)

    def forward(self, rows: Ids) -> Tensor:
        """Return [N, width]."""
        given = self.tokenizer(
            self.policy_decode(rows), padding=True, truncation=True, max_length=self.limit, return_tensors="pt"
        )
        given = given.to(self.encoder.device)
        return self.vector(self.encoder(**given), given["attention_mask"]).float()

    def vector(self, out: BaseModelOutput, there_nt: Tensor) -> Tensor:
        """Return [N, width] from the model's output for tokens; `there_nt` [N,T] is false for padding."""
        pooled: Tensor | None = getattr(out, "pooler_output", None)
        return out.last_hidden_state[:, 0] if pooled is None else pooled


class MeanEncoder(NamedEncoder):
    """A model of transformers with a tokenizer of its own, by name or folder: the mean of its states."""

    @override
    def vector(self, out: BaseModelOutput, there_nt: Tensor) -> Tensor:
        there_nt1 = there_nt[..., None].to(out.last_hidden_state.dtype)
        return (out.last_hidden_state * there_nt1).sum(1) / there_nt1.sum(1)


TextEncoder: TypeAlias = GRUEncoder | TrunkEncoder | NamedEncoder
"""An encoder from rows of token ids to vectors of `width`."""


def build_encoder(name: str, policy: CausalPolicy, width: int) -> TextEncoder:
    """Return the encoder `name` for the policy's token ids: "gru" of `width`, "policy", or a model of transformers."""
    if name == "gru":
        return GRUEncoder(policy.model.config.get_text_config().vocab_size, width)
    return TrunkEncoder(policy.model) if name == "policy" else NamedEncoder(name, policy.decode_all)


def padded(rows: Ids, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return token ids [N,T], padded with 0, and the lengths [N]."""
    length_n = torch.tensor([len(ids) for ids in rows], device=device)
    ids_nt = torch.zeros(len(rows), int(length_n.max()), dtype=torch.int64)
    for row, ids in enumerate(rows):
        ids_nt[row, : len(ids)] = torch.as_tensor(ids)
    return ids_nt.to(device), length_n
