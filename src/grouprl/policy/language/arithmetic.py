"""The cost of a model's matrix products: counted by shape, and timed at the rates that this machine reaches."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import nn

from grouprl.policy.layer_sizes import head_width, heads_of, sizes_of
from grouprl.policy.lora import base_model
from grouprl.policy.passes import layers_of
from grouprl.policy.products import times

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PASS_TOKENS = 2048
"""Rows of a product in training: about as many as the tokens of a pass."""
SERIES, SERIES_OPERATIONS = 15, 2e8
LONG = 1e10
"""Operations from which a product is timed singly and only three times: it takes a tenth of a second."""
Shape = tuple[int, int, int]
"""(M, K, N) of [M,K] x [K,N]."""
ProductKind: TypeAlias = torch.dtype | Literal["onednn"]
"""The way in which a product is computed: by torch's default in a type, or by oneDNN in float32."""
RATES: dict[tuple[Shape, str, int, ProductKind], float] = {}


def rate(
    shape: Shape,
    device: str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
    kind: ProductKind = torch.float32,
) -> float:
    """Return operations per second of a product of this shape and kind: the best of several short series.

    Rates are measured once per shape, device, number of threads and kind. `clock` may be the processor's time on one
    thread.
    """
    key = (shape, device, torch.get_num_threads(), kind)
    if key not in RATES:
        m, k, n = shape
        work, dtype = 2.0 * m * k * n, torch.float32 if kind == "onednn" else kind
        a, b, out = (torch.randn(size, device=device).to(dtype) for size in ((m, k), (k, n), (m, n)))
        run = (lambda: times(a, b, "onednn")) if kind == "onednn" else (lambda: torch.mm(a, b, out=out))
        repeat = 1 if work > LONG else min(2000, max(3, int(SERIES_OPERATIONS / work)))
        best = min(_series(run, a.device, repeat, clock) for _ in range(3 if work > LONG else SERIES))
        RATES[key] = work * repeat / best
    return RATES[key]


def _series(run: Callable[[], torch.Tensor], device: torch.device, repeat: int, clock: Callable[[], float]) -> float:
    synchronise(device)
    start = clock()
    for _ in range(repeat):
        run()
    synchronise(device)
    return clock() - start


def synchronise(device: torch.device) -> None:
    """Wait for a GPU's pending work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def backward(forward: Counter[Shape]) -> Counter[Shape]:
    """Return the two gradient products of each product: of its input, [M,N]x[N,K], and of its weight, [K,M]x[M,N]."""
    gradients: Counter[Shape] = Counter()
    for (m, k, n), count in forward.items():
        gradients[m, n, k] += count
        gradients[k, m, n] += count
    return gradients


def operations(products: Counter[Shape]) -> float:
    """Return the floating-point operations of all products."""
    return sum(2 * m * k * n * times for (m, k, n), times in products.items())


def timed(products: Counter[Shape], rate_of: Callable[[Shape], float] = rate) -> float:
    """Return the seconds that all products take at the rates of their shapes."""
    return sum(2 * m * k * n * times / rate_of((m, k, n)) for (m, k, n), times in products.items())


def counted(times: dict[Shape, float]) -> Counter[Shape]:
    """Return numbers of occurrences, fractions included, as a counter of shapes."""
    return Counter(times)


@dataclass(frozen=True)
class Matrices:
    """The matrices that every token of a model is multiplied by, [in, out] with their counts, and the output layer's.

    `width` is the total width of a token's queries, for attention.
    """

    inner: tuple[tuple[tuple[int, int], int], ...]
    head: tuple[int, int]
    layers: int
    width: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> Matrices:
        """Return the matrices of a model, read from its layers."""
        core = base_model(model)
        config = core.config.get_text_config()
        inner = Counter(shape for layer in layers_of(core) for shape in _shapes(layer.modules()))
        head = (config.hidden_size, config.vocab_size)
        return cls(tuple(inner.items()), head, sizes_of(config)[0], heads_of(config) * head_width(config))

    def forward(self, tokens: float, predicted: float, rows: float = PASS_TOKENS) -> Counter[Shape]:
        """Return the products of `tokens` tokens and the output layer for `predicted` of them, `rows` at a time."""
        products: Counter[Shape] = Counter()
        for count, shapes in ((tokens, self.inner), (predicted, ((self.head, 1),))):
            at_once = max(1, round(min(rows, count)))
            for (k, n), number in shapes:
                products[at_once, k, n] += number * count / at_once  # type: ignore[assignment]
        return products

    def attention(self, tokens: float, context: float) -> float:
        """Return the operations of attention (scores and sums of values) if each token attends to `context` others."""
        return 4 * context * self.width * self.layers * tokens


def _shapes(modules: Iterable[nn.Module]) -> Iterable[tuple[int, int]]:
    """Yield the sizes [in, out] of linear layers and of GPT-2's transposed ones; adapters are not counted."""
    for module in modules:
        if type(module) is nn.Linear:
            yield module.in_features, module.out_features
        elif type(module).__name__ == "Conv1D":
            k, n = module.get_parameter("weight").shape
            yield k, n
