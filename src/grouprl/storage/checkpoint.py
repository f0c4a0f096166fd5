"""Checkpoints: the complete state of a run, with checksums, written completely or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from grouprl.core.errors import InputError, RunError
from grouprl.core.json_types import JsonMapping, JsonObject, State
from grouprl.storage.run_folder import RunFolder, digest, replacing
from grouprl.storage.tensors import load_state, load_weights, save_state

MANIFEST = "manifest.json"
SHARED = ("data.pt", "state.json")
"""Files that every checkpoint has."""
WHOLE = ("policy.safetensors", "optimizer.pt")
"""Files with the weights and the optimiser state of one process; several processes write a folder of parts instead."""
FILES = (*WHOLE, *SHARED)
PARTS, METADATA = "shards", ".metadata"
"""The folder of the parts, and the file in it that describes them."""
PREFIX = {"warmup": "warmup", "pretraining": "pretraining", "train": "step"}
"""Prefixes of the names of checkpoints, by phase, in the order of the phases."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk; `state` is plain data."""

    path: Path
    state: JsonObject
    data: State
    """The state of curricula, buffers and pretraining."""

    @property
    def parts(self) -> Path | None:
        """The folder in which several processes saved their parts of weights and optimiser state; None if one process
        saved them whole.
        """
        folder = self.path / PARTS
        return folder if folder.is_dir() else None

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """The trainable parameters by name."""
        if self.parts is None:
            return load_weights(self.path / WHOLE[0])
        from grouprl.storage.shards import WEIGHTS, read_whole

        return read_whole(self.parts, WEIGHTS)

    @cached_property
    def optimizer(self) -> State:
        """The optimiser's state. A state saved in parts has no settings of parameter groups, which come from the
        configuration.
        """
        if self.parts is None:
            return load_state(self.path / WHOLE[1])
        from grouprl.storage.shards import read_memory

        return {"state": read_memory(self.parts)}


def save_checkpoint(
    run: RunFolder,
    phase: str,
    step: int,
    write_parameters: Callable[[Path], None],
    state: Mapping[str, object],
    data: Mapping[str, object] | None = None,
    beside: Mapping[Path, int | None] | None = None,
) -> Path:
    """Write the checkpoint after `step` steps of `phase` (see `PREFIX`); return its folder.

    `write_parameters` writes weights and optimiser state into the folder that it is given: see `whole_parameters`;
    several processes write their parts into `PARTS` there. `beside` holds the files of the run folder that the
    checkpoint depends on, each with the number of bytes that count (None: all).
    """
    path = run.checkpoints / f"{PREFIX[phase]}-{step:06d}"
    with replacing(path) as folder:
        folder.mkdir()
        write_parameters(folder)
        save_state(data or {}, folder / "data.pt")
        (folder / "state.json").write_text(json.dumps(state, allow_nan=False), encoding="utf-8")
        files = {name: _seal(folder / name) for name in sorted(_inside(folder))}
        others = {file.name: _seal(file, size) for file, size in (beside or {}).items()}
        (folder / MANIFEST).write_text(json.dumps({"files": files, "beside": others}, indent=1), encoding="utf-8")
    return path


def whole_parameters(weights: Mapping[str, Tensor], optimizer: Mapping[str, object]) -> Callable[[Path], None]:
    """Return a function that writes the weights and the optimiser state of one process into a folder."""

    def write(folder: Path) -> None:
        save_file(dict(weights), folder / WHOLE[0])
        save_state(optimizer, folder / WHOLE[1])

    return write


def prune(run: RunFolder, keep: int, best: int | None = None) -> None:
    """Remove all but the newest `keep` checkpoints and that of training step `best`, and the renewed references that
    no remaining checkpoint needs.

    Checkpoints with missing or truncated files do not count towards `keep`.
    """
    whole = 0
    for path in _folders(run):
        if best is not None and path.name == step_name(best):
            whole += _complete(path)
        elif whole >= keep:
            shutil.rmtree(path)
        elif _complete(path):
            whole += 1
    needed = {name for path in _folders(run) for name in (_manifest(path) or {"beside": {}})["beside"]}
    for path in run.path.glob("reference-*.safetensors"):
        if path.name not in needed:
            path.unlink()


def newest(run: RunFolder, *, alone: bool = False, log: bool = True) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest whole checkpoint (None if there is none) and a sentence for each damaged one skipped.

    `alone` ignores the other files of the run that are needed to continue from the checkpoint; `log` includes its log.
    """
    complaints: list[str] = []
    for path in _folders(run):
        damage = inspect(path, alone=alone, log=log)
        if damage is None:
            return _read(path), complaints
        complaints.append(f"checkpoint {path.name} is damaged ({damage}); falling back to the previous one")
    return None, complaints


def inspect(path: Path, *, alone: bool = False, log: bool = True) -> str | None:
    """Return what is wrong with the checkpoint at `path` and, unless `alone`, with the files of the run that it needs;
    None if nothing is.

    A file of the run may have grown since then; it is checked up to its length at that time.
    """
    seals = _manifest(path)
    if seals is None:
        return "its manifest is missing or unreadable"
    for name, seal in seals["files"].items():
        if damage := _broken(path / name, seal, grown=False):
            return damage
    others = {} if alone else seals["beside"]
    run = RunFolder(path.parent.parent)
    needed = {name: seal for name, seal in others.items() if log or name != run.metrics.name}
    damages = (_broken(run.path / name, seal, grown=True) for name, seal in needed.items())
    return next((damage for damage in damages if damage), None)


def load(path: Path) -> Checkpoint:
    """Read the checkpoint at `path` on its own; raises RunError if it is damaged or holds anything but data."""
    damage = inspect(path, alone=True)
    if damage is not None:
        raise RunError(f"checkpoint {path} is damaged: {damage}")
    return _read(path)


def _read(path: Path) -> Checkpoint:
    data = load_state(path / "data.pt")
    try:
        state = json.loads((path / "state.json").read_bytes())
    except ValueError as error:
        raise RunError(f"{path / 'state.json'} is not JSON: {error}") from error
    found = Checkpoint(path, state, data)
    if found.parts is None:
        found.weights, found.optimizer  # noqa: B018  the access finds damage now
    return found


def _inside(folder: Path) -> set[str]:
    """Return the names of the files of a checkpoint, including its parts with their folder."""
    found = (each for each in folder.rglob("*") if each.is_file() and each.name != MANIFEST)
    return {each.relative_to(folder).as_posix() for each in found}


def _seal(path: Path, size: int | None = None) -> dict[str, object]:
    """Return a file's seal: the checksum of its first `size` bytes (None: all), and their number."""
    size = path.stat().st_size if size is None else size
    return {"sha256": digest(path, size), "bytes": size}


def _manifest(path: Path) -> dict[str, JsonObject] | None:
    """Return the seals in the manifest of a checkpoint; None if it was not written by `save_checkpoint`."""
    try:
        seals = json.loads((path / MANIFEST).read_bytes())
        right = _complete_names(set(seals["files"])) and all(
            isinstance(seal["sha256"], str) and isinstance(seal["bytes"], int)
            for seal in (*seals["files"].values(), *seals["beside"].values())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return seals if right else None


def _complete_names(names: set[str]) -> bool:
    """Return whether these are the files of a checkpoint, of one process or of several."""
    parts = {name for name in names if name.startswith(f"{PARTS}/")}
    own = names - parts
    return own == {*SHARED, *WHOLE} if not parts else own == {*SHARED} and f"{PARTS}/{METADATA}" in parts


def _broken(path: Path, seal: JsonMapping, *, grown: bool) -> str | None:
    """Return what is wrong with a file according to its seal, None if nothing is; a file that has `grown` may be
    longer.
    """
    if not path.is_file():
        return f"{path.name} is missing"
    size = path.stat().st_size
    if size < seal["bytes"]:
        return f"{path.name} is cut off: it has {size} of {seal['bytes']} bytes"
    same = digest(path, seal["bytes"]) == seal["sha256"] and (grown or size == seal["bytes"])
    return None if same else f"{path.name} does not match its checksum"


def _complete(path: Path) -> bool:
    """Return whether every file of a checkpoint has its recorded length, a check that reads no content."""
    seals = _manifest(path)
    if seals is None:
        return False
    files = {path / name: seal["bytes"] for name, seal in seals["files"].items()}
    return all(file.is_file() and file.stat().st_size == size for file, size in files.items())


def best_step(run_path: Path) -> int:
    """Return the step of the best checkpoint of a run; raises InputError if the run keeps none (`eval.best`)."""
    try:
        return int(json.loads(RunFolder.open(run_path).best.read_bytes())["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{run_path} has no best checkpoint",
            "a run keeps one where eval.best names a measure, from its first evaluation on",
            "Name a step, or leave --checkpoint out for the newest",
        ) from error


def step_name(step: int) -> str:
    """Return the name of the checkpoint after a training step."""
    return f"{PREFIX['train']}-{step:06d}"


def find_checkpoint(run_path: Path, step: int | str | None = None) -> Checkpoint:
    """Return a checkpoint of a run: after training step `step`, or by name, as `warmup-40` (None: the newest whole).

    Raises:
        InputError: there is none, or none of that step or name; the message names those that there are.
        RunError: the checkpoint is damaged.
    """
    run = RunFolder.open(run_path)
    if step is None:
        found, complaints = newest(run, alone=True)
        if found is None:
            rule = "; ".join(complaints) or "the first one is written after run.checkpoint_every steps"
            raise InputError(f"{run_path} has no whole checkpoint", rule)
        return found
    path = run.checkpoints / (step_name(step) if isinstance(step, int) else full_name(step))
    if not path.is_dir():
        raise InputError(f"{run_path} has no checkpoint {step}", f"it has: {', '.join(_short_names(run)) or 'none'}")
    return load(path)


def full_name(name: str) -> str:
    """Return the name of a checkpoint's folder from a shorter one: `warmup-000040` from `warmup-40`."""
    prefix, _, number = name.rpartition("-")
    return f"{prefix}-{int(number):06d}" if number.isdecimal() else name


def _short_names(run: RunFolder) -> list[str]:
    """Return the checkpoints as `find_checkpoint` takes them, in the order in which they were written."""
    return [
        f"{number}" if phase == "train" else f"{prefix}-{number}"
        for phase, prefix in PREFIX.items()
        for number, _ in sorted(_of_phase(run, prefix))
    ]


def _folders(run: RunFolder) -> list[Path]:
    """Return the checkpoint folders, newest first."""
    return [path for phase in reversed(PREFIX.values()) for _, path in sorted(_of_phase(run, phase), reverse=True)]


def _of_phase(run: RunFolder, prefix: str) -> list[tuple[int, Path]]:
    found = [(path.name.removeprefix(f"{prefix}-"), path) for path in run.checkpoints.glob(f"{prefix}-*")]
    return [(int(number), path) for number, path in found if number.isdecimal() and path.is_dir()]
