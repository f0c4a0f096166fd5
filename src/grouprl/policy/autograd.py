"""What functions with a backward pass of their own share."""

from __future__ import annotations

from typing import Any, TypeAlias

Ctx: TypeAlias = Any
"""What torch hands to `forward` and `backward` of a `torch.autograd.Function`: any attribute may be put on it."""
