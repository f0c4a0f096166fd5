"""On what the numbers were measured."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path

PACKAGES = ("torch", "transformers", "trl", "grouprl")


def describe(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Processor, cores, versions, date."""
    facts = {"processor": _processor(), "cores": str(os.cpu_count()), "threads": "1 per process"}
    versions = {name: metadata.version(name) for name in packages}
    return facts | {"python": platform.python_version(), **versions, "date": time.strftime("%Y-%m-%d", time.gmtime())}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def wide_types() -> list[str]:
    """Which of the instructions that matter here the processor has, as /proc/cpuinfo calls them."""
    info = Path("/proc/cpuinfo")
    words = set(info.read_text(encoding="utf-8").split()) if info.is_file() else set()
    return [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in words]
