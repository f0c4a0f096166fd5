"""The context type of functions with their own backward pass."""

from __future__ import annotations

from typing import Any, TypeAlias

Ctx: TypeAlias = Any
"""The context that torch passes to `forward` and `backward` of a `torch.autograd.Function`; it takes any attribute."""
