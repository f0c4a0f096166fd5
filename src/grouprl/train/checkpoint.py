"""Checkpoints: everything stateful of a run, with checksums, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from grouprl.errors import InputError, RunError
from grouprl.train.files import RunFolder, replacing

MANIFEST = "manifest.json"
PREFIX = {"warmup": "warmup", "prelude": "prelude", "train": "step"}
"""How the checkpoints of each phase are called; later phases come later."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on disk. `weights` are the trainable parameters by name; `state` is plain data."""

    path: Path
    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    state: dict[str, Any]
    data: dict[str, Any]
    """What curricula, stores and preludes remember."""


def save_checkpoint(
    run: RunFolder,
    phase: str,
    step: int,
    weights: Mapping[str, Tensor],
    optimizer: Mapping[str, Any],
    state: Mapping[str, Any],
    data: Mapping[str, Any] | None = None,
) -> Path:
    """Write the checkpoint after `step` steps of `phase` ('warmup', 'prelude', 'train'); returns its folder."""
    path = run.checkpoints / f"{PREFIX[phase]}-{step:06d}"
    with replacing(path) as folder:
        folder.mkdir()
        save_file(dict(weights), folder / "policy.safetensors")
        torch.save(dict(optimizer), folder / "optimizer.pt")
        torch.save(dict(data or {}), folder / "data.pt")
        (folder / "state.json").write_text(json.dumps(state, allow_nan=False), encoding="utf-8")
        sums = {file.name: _sha256(file) for file in sorted(folder.iterdir())}
        (folder / MANIFEST).write_text(json.dumps(sums, indent=1), encoding="utf-8")
    return path


def prune(run: RunFolder, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints."""
    for path in _folders(run)[keep:]:
        shutil.rmtree(path)


def newest(run: RunFolder) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest whole checkpoint (None if there is none) and a sentence for each damaged one passed over."""
    complaints: list[str] = []
    for path in _folders(run):
        damage = inspect(path)
        if damage is None:
            return load(path), complaints
        complaints.append(f"checkpoint {path.name} is damaged ({damage}); going back to the one before")
    return None, complaints


def inspect(path: Path) -> str | None:
    """Say what is wrong with the checkpoint at `path`; None when it is whole."""
    try:
        sums = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "its manifest is missing or unreadable"
    for name, expected in sums.items():
        if not (path / name).is_file():
            return f"{name} is missing"
        if _sha256(path / name) != expected:
            return f"{name} does not match its checksum"
    return None


def load(path: Path) -> Checkpoint:
    """Read the checkpoint at `path`; RunError when it is damaged."""
    damage = inspect(path)
    if damage is not None:
        raise RunError(f"checkpoint {path} is damaged: {damage}")
    optimizer = torch.load(path / "optimizer.pt", weights_only=True, map_location="cpu")
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    data = torch.load(path / "data.pt", weights_only=True, map_location="cpu")
    return Checkpoint(path, load_file(path / "policy.safetensors"), optimizer, state, data)


def load_policy_state(run_path: Path, step: int | None = None) -> dict[str, Tensor]:
    """Trainable parameters of checkpoint `step` of a run (None: the newest whole one).

    Raises InputError naming the checkpoints there are.
    """
    run = RunFolder.open(run_path)
    if step is None:
        found, _ = newest(run)
        if found is None:
            raise InputError(f"{run_path} has no whole checkpoint")
        return found.weights
    path = run.checkpoints / f"step-{step:06d}"
    if not path.is_dir():
        there = ", ".join(str(int(p.name[5:])) for p in reversed(_folders(run)) if p.name.startswith("step-")) or "none"
        raise InputError(f"{run_path} has no checkpoint {step}", f"it has: {there}")
    return load(path).weights


def _folders(run: RunFolder) -> list[Path]:
    """Checkpoint folders, newest first."""
    return [path for p in reversed(PREFIX.values()) for path in sorted(run.checkpoints.glob(f"{p}-*"), reverse=True)]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
