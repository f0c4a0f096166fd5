"""How rows go through the model: packed or padded, prompts shared or repeated, layers kept or computed anew.

Each is chosen automatically where it pays, and can be forced or forbidden. None changes a number.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from grouprl.core.errors import InputError, suggest
from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Choice = Literal["auto", "on", "off"]
R = TypeVar("R")
CHOICES = ("auto", "on", "off")
SHARING_PAYS = 1.05
"""Tokens with repeated prompts over tokens with shared ones from which sharing is chosen."""
PACKING_PAYS = 1.1
"""Tokens with padding over tokens without from which packing is chosen."""
CACHED_NUMBERS = 8_000_000
"""Numbers of a layer that a CPU works on best at a time: more leave its cache, fewer leave it waiting for calls."""
FEWEST_TOKENS = 1024
"""Tokens that a pass may have on a CPU however wide the layers are: each pass goes through all weights several times,
to join them and to add up their gradients."""
MEMORY_SHARE = 0.4
"""Share of the free memory from which the activations of a pass are computed anew instead of kept."""


@dataclass(frozen=True)
class PassSettings:
    """What is forced ("on"), forbidden ("off") or chosen ("auto").

    Attributes:
        packing: several sequences in one row without padding, without attending to each other.
        shared_prefix: a prompt goes through the model once for all its responses; the lean engine extends this,
            to any beginning that rows share.
        checkpointing: only each layer's input is kept for the backward pass; a third more computation.
    """

    packing: Choice = "auto"
    shared_prefix: Choice = "auto"
    checkpointing: Choice = "auto"

    def __post_init__(self) -> None:
        for name in ("packing", "shared_prefix", "checkpointing"):
            if getattr(self, name) not in CHOICES:
                value = getattr(self, name)
                raise InputError(f"{name}={value!r}", "It is auto, on or off", suggest(str(value), CHOICES))


AUTO, PADDED = PassSettings(), PassSettings("off", "off", "off")


def padding_ratio(tokens: Tokens) -> float:
    """Return positions with every row padded to the longest, over real ones; 1 for no rows."""
    lengths = tokens.lengths
    return len(lengths) * max(lengths) / sum(lengths) if lengths else 1.0


def sharing_ratio(tokens: Tokens) -> float:
    """Return tokens with every row's own prompt, over tokens with each distinct prompt once; 1 for no rows."""
    distinct = sum(map(len, set(tokens.prompt_ids))) + sum(tokens.response_lengths)
    return sum(tokens.lengths) / distinct if distinct else 1.0


def shares(choice: Choice, tokens: Tokens) -> bool:
    """Tell whether the rows of a pass share their prompts."""
    return sharing_ratio(tokens) > pays(choice)


def pays(choice: Choice) -> float:
    """Return beyond which ratio of tokens sharing is chosen."""
    return {"on": 1.0, "auto": SHARING_PAYS, "off": math.inf}[choice]


def bins(lengths: Sequence[int]) -> list[list[int]]:
    """Cut rows into bins no longer than the longest row: first fit, longest first."""
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
    """Return numbers that a Llama-like layer with fused attention keeps of a token for the backward pass."""
    return 8 * hidden + 4 * intermediate + 2 * kv_width


def sizes_of(config: PretrainedConfig) -> tuple[int, int, int, int]:
    """Return layers, hidden size, intermediate size and width of keys of a model's text configuration."""
    heads = getattr(config, "num_attention_heads", None) or 1
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    intermediate = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return config.num_hidden_layers, config.hidden_size, intermediate, kv_heads * size


def bytes_per_token(config: object, itemsize: int) -> int:
    """Return bytes that all layers of a model keep of a token for the backward pass."""
    layers, *sizes = sizes_of(config)
    return layers * numbers_per_token(*sizes) * itemsize


def cached_tokens(config: object, device: torch.device, *, mixed: bool = False) -> int:
    """Return how many tokens a pass may have on a CPU: what its layers compute should stay near its cache."""
    _, *sizes = sizes_of(config)
    return tokens_in_cache(numbers_per_token(*sizes), device.type, mixed=mixed)


def tokens_in_cache(per_token: int, device_type: str, *, mixed: bool = False) -> int:
    """Return how many tokens of `per_token` numbers a layer a pass may have, at least `FEWEST_TOKENS`.

    In mixed precision twice as many: what is kept of them takes half the bytes.
    """
    if device_type != "cpu":
        return sys.maxsize
    return max(FEWEST_TOKENS, CACHED_NUMBERS // per_token) * (2 if mixed else 1)


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device, None where it cannot be told."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    info = Path("/proc/meminfo")
    lines = info.read_text(encoding="ascii").splitlines() if info.is_file() else []
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    return found[0] if found else None


def checkpointing_threshold(choice: Choice, per_token: int, free: int | None) -> float:
    """Return up to how many tokens of a pass layers keep what they compute (`per_token` bytes); beyond, they compute
    it anew: never, always, or where it would fill the free memory."""
    if choice == "on":
        return 0
    return math.inf if choice == "off" or free is None else MEMORY_SHARE * free / per_token


def anew(function: Callable[..., R], *arguments: object, **named: Any) -> R:
    """Call `function`; where gradients are taken, keep its inputs alone and call it again in the backward pass."""
    if not torch.is_grad_enabled():
        return function(*arguments, **named)
    found: R = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=True, **named)
    return found


def layers_of(trunk: nn.Module) -> list[nn.Module]:
    """Return the layers of a transformer: the members of its largest module list."""
    lists = [module for module in trunk.modules() if isinstance(module, nn.ModuleList)]
    return list(max(lists, key=lambda layers: sum(p.numel() for x in layers for p in x.parameters()), default=[]))


@contextmanager
def layers_anew(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Let each layer's forward pass keep its inputs alone."""
    for layer in layers:
        own = layer.forward
        layer.forward = lambda *x, _own=own, **named: anew(_own, *x, **named)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
