"""A model in parts is stored as transformers stores it, whatever the tensors in which it computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, MixtralConfig, PreTrainedModel, Qwen3MoeConfig

from grouprl.policy.sharded import stored_layout as module
from grouprl.policy.sharded.stored_layout import StoredGroup, as_stored, stored_layout
from policies import SIZES, make_model

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "qwen3_moe": Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=8),
    "mixtral": MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
}


def own_tensors(model: PreTrainedModel) -> list[tuple[str, Tensor]]:
    return [(name, parameter.detach()) for name, parameter in model.named_parameters()]


def stored(model: PreTrainedModel) -> tuple[list[StoredGroup], dict[str, Tensor]]:
    tensors = own_tensors(model)
    groups = stored_layout(model, [(name, x.dtype, tuple(x.shape)) for name, x in tensors])
    streamed: Iterator[tuple[str, Tensor]] = (tensors[number] for group in groups for number in group.own)
    return groups, dict(as_stored(model, groups, streamed))


@pytest.mark.parametrize("family", CONFIGS)
def test_files_hold_what_save_pretrained_writes(family: str, tmp_path: Path) -> None:
    model = make_model(CONFIGS[family])
    model.save_pretrained(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    groups, found = stored(model)
    assert found.keys() == written.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in written.items())
    assert max(len(group.own) for group in groups) == 1
    described = {name: (kind, shape) for group in groups for name, kind, shape in group.stored}
    assert described == {name: (x.dtype, tuple(x.shape)) for name, x in written.items()}


def test_experts_are_matrices_of_their_own_in_files() -> None:
    if int(transformers.__version__.split(".")[0]) < 5:
        pytest.skip("before version 5, transformers computes them as matrices of their own")
    assert "model.layers.0.mlp.experts.3.up_proj.weight" in stored(make_model(CONFIGS["qwen3_moe"]))[1]


def test_tensors_that_become_one_are_converted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query and key matrices of a layer are stored as one: alone, each would be stored under their name."""

    def joined(_: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        parts = [x for name, x in tensors.items() if "q_proj" in name or "k_proj" in name]
        rest = {name: x for name, x in tensors.items() if "q_proj" not in name and "k_proj" not in name}
        return rest | ({"qk": torch.cat(parts)} if parts else {})

    monkeypatch.setattr(module, "_reverted", joined)
    groups, found = stored(make_model(LlamaConfig(**{**SIZES, "num_hidden_layers": 1})))
    assert sorted(len(group.own) for group in groups)[-2:] == [1, 2]
    assert found["qk"].shape == (64, 32)
