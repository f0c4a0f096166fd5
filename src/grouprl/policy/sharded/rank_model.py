"""A rank's part of a sharded model: FSDP2 over a transformers model.

Each rank holds one piece of the weights, in full precision; a block's weights are gathered when a pass reaches it, and
its gradients are summed over the ranks piece by piece (`torch.distributed.fsdp.fully_shard`: Zhao et al. 2023,
arXiv:2304.11277, per parameter). Every rank therefore takes the same number of passes; a rank that has no rows left
takes an empty pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from grouprl.policy.devices import Precision
from grouprl.policy.engine import ChangedHead, Head, ModelEngine
from grouprl.policy.language.choose_engine import runs_lean
from grouprl.policy.language.tokenizer_checks import check_tensor
from grouprl.policy.language.transformer_model import TransformerModel
from grouprl.policy.language.transformers_engine import TransformersEngine
from grouprl.policy.passes import PassSettings, layers_of
from grouprl.policy.sharded.context_engine import ContextEngine
from grouprl.policy.sharded.context_group import ContextGroup
from grouprl.policy.sharded.outline import Outline, plain_name
from grouprl.policy.sharded.pieces import local, piece_of
from grouprl.policy.sharded.tensor_parallel import cut_matrices, gathered
from grouprl.records.tokens import Tokens

T = TypeVar("T")


class RankModel(TransformerModel):
    """A model of which this process holds a part; each call of `evaluate` and `backward` is one pass of all ranks
    together.

    The model is never whole on a rank: memory is taken for the rank's pieces alone, once they are divided, and each is
    read from where the outline says. A subclass lists it before the class of models that has the outputs.

    Args:
        outline: a transformers model in float32 or float64, plain or with adapters, the same on every rank.
        device: the device of passes.
        mesh: the ranks, or a table of them in which the ranks of a row split matrices among themselves
            (`Station.mesh`).
        context: the ranks that have a slice of each row; None: rows are whole.
        mixed: passes are computed in bfloat16; weights, sums of gradients and outputs stay in float32.
        offload: weights, gradients and optimiser state are kept in main memory and copied to the GPU layer by layer.
        passes: packing and checkpointing as in `CausalPolicy`; prompts are not shared.
        settings: further arguments of the class that follows.
    """

    def __init__(
        self,
        outline: Outline,
        *,
        device: torch.device,
        mesh: DeviceMesh,
        context: ContextGroup | None = None,
        mixed: bool = False,
        offload: bool = False,
        passes: PassSettings,
        **settings: Any,
    ) -> None:
        alone = replace(passes, shared_prefix="off")  # sharing needs a gathering on all ranks
        self.model, self._place, self._context = outline.model, device, context
        self.mesh, self.mixed, self.offload = mesh, mixed, offload
        self.whole_precision: Precision = "mixed" if mixed and runs_lean(self.model) else "float32"
        if mesh.ndim == 2:
            cut_matrices(self.model, mesh["tensor"])
        self._trunk = _Trunk(self.model, self._beside())
        self._shard()
        self._fill(outline)
        super().__init__(self.model, outline.tokenizer, engine="transformers", passes=alone, **settings)
        if mesh.ndim == 2:
            self._engine = ChangedHead(self._engine, gathered)
        if mixed:
            self._engine = ChangedHead(self._engine, _wide, dtype=torch.float32)

    def _beside(self) -> nn.Module | None:
        """Return a module beside the transformers model, or None."""
        return None

    def _in_full(self) -> nn.Module | None:
        """Return the module whose products are computed in the type of the weights, or None."""
        return self._beside()

    def _choose_engine(self, choose: Callable[[], ModelEngine]) -> ModelEngine:
        """Return the engine, chosen while the weights of the trunk are gathered: all ranks do so together."""
        return self._trunk(choose if self._context is None else partial(self._sliced, choose, self._context))

    def _sliced(self, choose: Callable[[], ModelEngine], context: ContextGroup) -> ModelEngine:
        whole = choose()
        assert isinstance(whole, TransformersEngine)
        return ContextEngine(whole, context)

    @property
    def device(self) -> torch.device:
        """The device of passes."""
        return self._place

    @property
    def precision(self) -> Precision:
        """The precision of products."""
        return "mixed" if self.mixed else "float32"

    def every_parameter(self) -> dict[str, nn.Parameter]:
        """Return all parameters by name, trained or not; those of the value head begin with `value_head.`."""
        return dict(self.model.named_parameters()) | dict(self.named_parameters())

    def cut(self, tokens: Tokens, rows: Sequence[int]) -> list[list[int]]:
        """Divide `rows` into passes that fit the token budget."""
        return super().passes(tokens, rows)

    def passes(self, tokens: Tokens, rows: Sequence[int]) -> list[list[int]]:
        """Return all rows as one pass: the caller has divided them."""
        return [list(rows)] if rows else []

    def _shard(self) -> None:
        half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        plain = partial(fully_shard, mesh=self.mesh["ranks"] if self.mesh.ndim == 2 else self.mesh)
        if self.offload:
            plain = partial(plain, offload_policy=CPUOffloadPolicy(pin_memory=self._place.type == "cuda"))
        shard = partial(plain, mp_policy=half) if self.mixed else plain
        for block in layers_of(self.model):
            shard(block)
        if (exact := self._in_full()) is not None:
            plain(exact, reshard_after_forward=True)
        shard(self._trunk, reshard_after_forward=True)
        for module in self._trunk.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # losses are sums over all ranks, not means
                module.set_force_sum_reduction_for_comms(True)

    @torch.no_grad()
    def _fill(self, outline: Outline) -> None:
        """Take memory for the pieces of this rank, and read them."""
        home = torch.device("cpu") if self.offload else self._place
        self._trunk._apply(lambda each: torch.empty_like(each, device=home) if each.is_meta else each)
        own: dict[str, list[DTensor]] = {}  # of several, peft has one that is trained and one as it was
        for name, each in self.model.named_parameters():
            if "lora_" not in name:
                own.setdefault(plain_name(name), []).append(cast("DTensor", each))
        for name, whole in outline.weights():
            for parameter in own.pop(name, []):  # a file may hold tied weights twice
                piece = piece_of(whole, parameter)
                check_tensor(name, piece, outline.spec)
                local(parameter).copy_(piece)
        assert not own, f"no weights for {sorted(own)}"

    def _run(self, tokens: Tokens, names: Sequence[str]) -> dict[str, Tensor]:
        return self._trunk(partial(self._own_run, tokens, names))

    def _own_run(self, tokens: Tokens, names: Sequence[str]) -> dict[str, Tensor]:
        """Score a pass. FSDP hangs its hooks on what leaves the trunk, and would lose them on a view."""
        return {name: x.clone() if x._is_view() else x for name, x in super()._run(tokens, names).items()}


class _Trunk(nn.Module):
    """The weights that are gathered for a whole pass: embeddings, the last norm and the output layer."""

    def __init__(self, model: nn.Module, beside: nn.Module | None) -> None:
        super().__init__()
        self.model, self.beside = model, beside
        self.eval()

    def forward(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which runs the model, with these weights gathered meanwhile."""
        return work()

    if TYPE_CHECKING:

        def __call__(self, work: Callable[[], T]) -> T: ...


def _wide(head: Head) -> Head:
    """Return an output layer that sums in float32: a logit of 20 rounded to bfloat16 would be off by 0.06."""
    bias_v = None if head.bias_v is None else head.bias_v.float()
    return replace(head, weight_vd=head.weight_vd.float(), bias_v=bias_v, precision="mixed")
