"""A rank's part of a sharded policy: FSDP2 over a transformers model.

Each rank holds one piece of the weights, in full precision; a block's weights are gathered when a pass reaches it, and
its gradients are summed over the ranks piece by piece (`torch.distributed.fsdp.fully_shard`: Zhao et al. 2023,
arXiv:2304.11277, per parameter). Every rank therefore takes the same number of passes; a rank that has no rows left
takes an empty pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard

from grouprl.policy.engine import ChangedHead, Head
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.passes import PassSettings, layers_of
from grouprl.policy.precision import Precision
from grouprl.policy.sharded.tensor_parallel import cut_matrices, gathered
from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class RankPolicy(CausalPolicy):
    """A policy of which this process holds a part; each call of `evaluate` and `backward` is one pass of all ranks
    together.

    Args:
        model: a transformers causal LM in float32 or float64, plain or with adapters, the same on every rank.
        tokenizer: its tokenizer.
        mesh: the ranks, or a table of them in which the ranks of a row split matrices among themselves
            (`Station.mesh`).
        mixed: passes are computed in bfloat16; weights, sums of gradients and log-probs stay in float32.
        offload: weights, gradients and optimiser state are kept in main memory and copied to the GPU layer by layer.
        passes: packing and checkpointing as in `CausalPolicy`; prompts are not shared.
        stored: the folder that may hold a value head of the model.
        settings: further arguments of `CausalPolicy`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        mesh: DeviceMesh,
        mixed: bool = False,
        offload: bool = False,
        passes: PassSettings,
        stored: str = "",
        **settings: Any,
    ) -> None:
        alone = replace(passes, shared_prefix="off")  # sharing needs a gathering on all ranks
        self._place = next(model.parameters()).device
        super().__init__(model, tokenizer, engine="transformers", passes=alone, **settings)
        self.load_value_head(Path(stored))
        self.mesh, self.mixed, self.offload = mesh, mixed, offload
        if mesh.ndim == 2:
            cut_matrices(model, mesh["tensor"])
            self._engine = ChangedHead(self._engine, gathered)
        if mixed:
            self._engine = ChangedHead(self._engine, _wide, dtype=torch.float32)
        self._trunk = _Trunk(self)
        self._shard()

    @property
    def device(self) -> torch.device:
        """The device of passes."""
        return self._place

    @property
    def precision(self) -> Precision:
        """The precision of products."""
        return "mixed" if self.mixed else "float32"

    def cut(self, tokens: Tokens, rows: Sequence[int]) -> list[list[int]]:
        """Divide `rows` into passes that fit the token budget."""
        return super().passes(tokens, rows)

    def passes(self, tokens: Tokens, rows: Sequence[int]) -> list[list[int]]:
        """Return all rows as one pass: the caller has divided them."""
        return [list(rows)] if rows else []

    def _shard(self) -> None:
        half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        plain: dict[str, Any] = {"mesh": self.mesh["ranks"] if self.mesh.ndim == 2 else self.mesh}
        if self.offload:
            plain["offload_policy"] = CPUOffloadPolicy(pin_memory=self._place.type == "cuda")
        how = {**plain, **({"mp_policy": half} if self.mixed else {})}
        for block in layers_of(self.model):
            fully_shard(block, **how)
        if self.value_head is not None:
            fully_shard(self.value_head, reshard_after_forward=True, **plain)
        fully_shard(self._trunk, reshard_after_forward=True, **how)
        for module in self._trunk.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # losses are sums over all ranks, not means
                module.set_force_sum_reduction_for_comms(True)

    def _run(self, tokens: Tokens, names: Sequence[str]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self._trunk(tokens, names)
        return found

    def run_whole(self, tokens: Tokens, names: Sequence[str]) -> dict[str, Tensor]:
        """Score a pass; called by the trunk while its own weights are gathered."""
        return super()._run(tokens, names)


class _Trunk(nn.Module):
    """The weights that are gathered for a whole pass: embeddings, the last norm and the output layer."""

    def __init__(self, policy: RankPolicy) -> None:
        super().__init__()
        self.model, self.value_head = policy.model, policy.value_head
        self._own = [policy]  # in a list, so that torch does not register the policy's model as a submodule
        self.eval()

    def forward(self, tokens: Tokens, names: Sequence[str]) -> object:
        return self._own[0].run_whole(tokens, names)


def _wide(head: Head) -> Head:
    """Return an output layer that sums in float32: a logit of 20 rounded to bfloat16 would be off by 0.06."""
    bias_v = None if head.bias_v is None else head.bias_v.float()
    return replace(head, weight_vd=head.weight_vd.float(), bias_v=bias_v, precision="mixed")
