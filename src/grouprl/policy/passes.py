"""Settings of passes through the model: rows packed or padded, prompts shared or repeated, layers kept or recomputed.

Each is chosen automatically if it saves time or memory, and can be forced or forbidden. None changes a result.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import torch

from grouprl.core.errors import InputError, suggest
from grouprl.policy.layer_sizes import sizes_of
from grouprl.policy.lora import is_linear
from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from torch import nn

Choice = Literal["auto", "on", "off"]
Keeping = Literal["auto", "on", "off", "offload"]
"""Whether layers are computed anew in the backward pass; `offload`: from inputs that are kept in main memory."""
R = TypeVar("R")
Forward = Callable[..., object]
"""The forward pass of a layer."""
CHOICES = ("auto", "on", "off")
KEEPING = (*CHOICES, "offload")
SHARING_PAYS = 1.05
"""Ratio of tokens with repeated prompts to tokens with shared ones from which sharing is chosen."""
PACKING_PAYS = 1.1
"""Ratio of tokens with padding to tokens without from which packing is chosen."""
CACHED_NUMBERS = 8_000_000
"""Numbers of a layer that a CPU best processes at a time: more exceed its cache, with fewer the overhead of calls
dominates.
"""
FEWEST_TOKENS = 1024
"""Tokens that a pass may always have on a CPU, however wide the layers are: each pass reads all weights several times,
to join them and to add up their gradients.
"""
MEMORY_SHARE = 0.4
"""Share of the free memory from which the activations of a pass are recomputed instead of kept."""
CHUNK_ELEMENTS = {"cpu": 2**20, "cuda": 2**26}
"""Number of logits held at a time: as many as fit a CPU's fast cache, and enough to keep a GPU's matrix units busy."""

FEWEST_ROWS = 128
"""Fewest positions of a chunk, however large the vocabulary is: each chunk reads and writes the whole gradient of the
output layer's weight.
"""


@dataclass(frozen=True)
class PassSettings:
    """Settings of passes: each is forced ("on"), forbidden ("off") or chosen automatically ("auto").

    Attributes:
        packing: several sequences are put into one row without padding, and do not attend to each other.
        shared_prefix: a prompt goes through the model once for all its responses; the lean engine extends this,
            to any beginning that rows share.
        checkpointing: only each layer's input is kept for the backward pass; a third more computation. "offload": it is
            kept in main memory.
        compiled: layers of the engine transformers are compiled by torch.compile, and prompts are not shared.
    """

    packing: Choice = "auto"
    shared_prefix: Choice = "auto"
    checkpointing: Keeping = "auto"
    compiled: bool = False

    def __post_init__(self) -> None:
        for name, known in (("packing", CHOICES), ("shared_prefix", CHOICES), ("checkpointing", KEEPING)):
            if (value := getattr(self, name)) not in known:
                rule = f"It must be {', '.join(known[:-1])} or {known[-1]}"
                raise InputError(f"{name}={value!r}", rule, suggest(str(value), known))

    @property
    def offloads(self) -> bool:
        """Return whether the inputs of layers are kept in main memory for the backward pass."""
        return self.checkpointing == "offload"


AUTO, PADDED = PassSettings(), PassSettings("off", "off", "off")


def padding_ratio(tokens: Tokens) -> float:
    """Return the ratio of positions with every row padded to the longest to real ones; 1 if there are no rows."""
    lengths = tokens.lengths
    return len(lengths) * max(lengths) / sum(lengths) if lengths else 1.0


def sharing_ratio(tokens: Tokens) -> float:
    """Return the ratio of tokens with every row's own prompt to tokens with each distinct prompt once; 1 if there are
    no rows.
    """
    distinct = sum(map(len, set(tokens.prompt_ids))) + sum(tokens.response_lengths)
    return sum(tokens.lengths) / distinct if distinct else 1.0


def shares(choice: Choice, tokens: Tokens) -> bool:
    """Return whether the rows of a pass share their prompts."""
    return sharing_ratio(tokens) > pays(choice)


def pays(choice: Choice) -> float:
    """Return the ratio of tokens beyond which sharing is chosen."""
    return {"on": 1.0, "auto": SHARING_PAYS, "off": math.inf}[choice]


def bins(lengths: Sequence[int]) -> list[list[int]]:
    """Distribute rows over bins no longer than the longest row: first fit, longest first."""
    room, found = max(lengths), list[list[int]]()
    free: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        place = next((i for i, left in enumerate(free) if left >= lengths[row]), len(found))
        if place == len(found):
            found.append([])
            free.append(room)
        found[place].append(row)
        free[place] -= lengths[row]
    return found


def numbers_per_token(hidden: int, intermediate: int, kv_width: int) -> int:
    """Return how many numbers a Llama-like layer with fused attention keeps per token for the backward pass."""
    return 8 * hidden + 4 * intermediate + 2 * kv_width


def bytes_per_token(config: object, itemsize: int) -> int:
    """Return how many bytes all layers of a model keep per token for the backward pass."""
    layers, *sizes = sizes_of(config)
    return layers * numbers_per_token(*sizes) * itemsize


def cached_tokens(config: object, device: torch.device, *, mixed: bool = False) -> int:
    """Return how many tokens a pass may have on a CPU, so that activations of a layer stay near its cache."""
    _, *sizes = sizes_of(config)
    return tokens_in_cache(numbers_per_token(*sizes), device.type, mixed=mixed)


def tokens_in_cache(per_token: int, device_type: str, *, mixed: bool = False) -> int:
    """Return how many tokens, with `per_token` numbers per layer, a pass may have; at least `FEWEST_TOKENS`.

    Mixed precision allows twice as many, since their activations take half the bytes.
    """
    if device_type != "cpu":
        return sys.maxsize
    return max(FEWEST_TOKENS, CACHED_NUMBERS // per_token) * (2 if mixed else 1)


def chunk_rows(device_type: str, vocabulary: int, chunk_elements: int | None = None) -> int:
    """Return the number of positions in a chunk of `chunk_elements` logits (None: the device's default), at least
    one.
    """
    if chunk_elements is not None:
        return max(1, chunk_elements // vocabulary)
    return max(FEWEST_ROWS, CHUNK_ELEMENTS.get(device_type, CHUNK_ELEMENTS["cuda"]) // vocabulary)


def free_bytes(device: str) -> int | None:
    """Return the free memory of a device, such as "cpu" or "cuda:0", in bytes; None if it cannot be determined."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    info = Path("/proc/meminfo")
    lines = info.read_text(encoding="ascii").splitlines() if info.is_file() else []
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    return found[0] if found else None


def checkpointing_threshold(choice: Keeping, per_token: int, free: int | None) -> float:
    """Return the number of tokens in a pass up to which layers keep their activations (`per_token` bytes). Larger
    passes recompute them: by `choice` never, always, or if they would take too much of the free memory.
    """
    if choice in ("on", "offload"):
        return 0
    return math.inf if choice == "off" or free is None else MEMORY_SHARE * free / per_token


def anew(function: Callable[..., R], *arguments: object, **named: Any) -> R:
    """Call `function`; if gradients are enabled, keep only its inputs and call it again in the backward pass."""
    if not torch.is_grad_enabled():
        return function(*arguments, **named)
    from torch.utils.checkpoint import checkpoint

    found: R = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=True, **named)
    return found


def in_pieces(function: Callable[[torch.Tensor], torch.Tensor], x_nd: torch.Tensor, most: int) -> torch.Tensor:
    """Return function(x_nd) of a function that treats each row alone, called with at most `most` rows at a time.

    If there are several pieces, each keeps only its input and is computed again in the backward pass.
    """
    if len(x_nd) <= most:
        return function(x_nd)
    return torch.cat([anew(function, piece_nd) for piece_nd in x_nd.split(most)])


def layers_of(trunk: nn.Module) -> list[nn.Module]:
    """Return the layers of a transformer: the members of its largest module list."""
    lists = [module for module in trunk.modules() if isinstance(module, torch.nn.ModuleList)]
    return list(max(lists, key=lambda layers: sum(p.numel() for x in layers for p in x.parameters()), default=[]))


@contextmanager
def layers_through(layers: Sequence[nn.Module], way: Callable[[Forward], Forward]) -> Iterator[None]:
    """Let each layer's forward pass be what `way` makes of it, within this context."""
    for layer in layers:
        layer.forward = way(layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def feed_forward_blocks(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the dense feed-forward block of each layer that has one: a module `mlp` made of linear layers alone."""
    found = [mlp for layer in layers if isinstance(mlp := getattr(layer, "mlp", None), torch.nn.Module)]
    return [mlp for mlp in found if all(is_linear(x) or not list(x.parameters()) for x in mlp.children())]


def forward_in_pieces(most: int, forward: Forward) -> Forward:
    """Return the forward pass of a feed-forward block, with at most `most` tokens at a time (`in_pieces`)."""

    def call(x: torch.Tensor, *others: object) -> object:
        if others or x[..., 0].numel() <= most:
            return forward(x, *others)
        block = cast("Callable[[torch.Tensor], torch.Tensor]", forward)
        return in_pieces(block, x.flatten(0, -2), most).view_as(x)

    return call


def computed_anew(forward: Forward) -> Forward:
    """Return a forward pass that keeps only its inputs and is called again in the backward pass."""
    return partial(anew, forward)


def from_main_memory(forward: Forward) -> Forward:
    """Return a forward pass that is called again in the backward pass; its inputs are kept in main memory meanwhile."""

    def call(*arguments: object, **named: object) -> object:
        with torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()):
            return anew(forward, *arguments, **named)

    return call
