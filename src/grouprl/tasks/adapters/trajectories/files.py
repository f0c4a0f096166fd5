"""Trajectories of files (JSON lines, Parquet, npz), of Minari and of functions, as plain mappings of arrays."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grouprl.core.errors import InputError, MissingExtra, raised, shortened, suggest
from grouprl.core.importing import import_object
from grouprl.records.offline import StoredEpisode
from grouprl.tasks.adapters.jsonl import each_line

if TYPE_CHECKING:
    import gymnasium

Raw = Mapping[str, object]
"""A trajectory by the names of its columns, not checked yet."""
NEEDED = ("observations", "actions", "rewards", "terminated")
KNOWN = (*NEEDED, "logps", "legal", "group", "components", "correct", "context")
BY_ACTION = ("actions", "rewards", "logps", "legal")
"""Columns with an entry for each action."""
MINARI = "minari:"
OF_CODE = re.compile(r"[^\n]+\.py:[A-Za-z_]\w*|[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*")
"""Matches a function that returns trajectories: pkg.module:name or path/to/file.py:name."""


def read(path: str) -> Iterator[tuple[str, Raw]]:
    """Yield the trajectories of a file or of a function (`pkg.module:name`), each with words that say where it is.

    Raises:
        InputError: there is no such file or function, or it is of another kind or damaged.
        MissingExtra: the library that reads it is not installed.
    """
    if path.startswith(MINARI):
        yield from _of_minari(path.removeprefix(MINARI))
        return
    file = Path(path)
    if not file.is_file():
        if OF_CODE.fullmatch(path):
            yield from _of_function(path)
            return
        raise InputError(
            f"There is no file '{path}'",
            "trajectories are read from .jsonl, .parquet, .npz, minari:ID or a function, pkg.module:name",
            "Check the path",
        )
    readers = {".jsonl": _of_lines, ".parquet": _of_parquet, ".npz": _of_npz}
    if file.suffix not in readers:
        raise InputError(f"'{path}' ends in '{file.suffix}'", f"trajectories are read from {', '.join(readers)}")
    for number, raw in enumerate(readers[file.suffix](file)):
        where = f"trajectory {number} of '{path}'"
        check_names(raw, where)
        yield where, raw


def check_names(raw: Raw, where: str) -> None:
    """Check the columns of a trajectory. Raises InputError on unknown and missing ones."""
    for name in raw:
        if name not in KNOWN:
            raise InputError(f"{where} has the column '{name}'", f"it has {', '.join(KNOWN)}", suggest(name, KNOWN))
    if missing := [name for name in NEEDED if name not in raw]:
        raise InputError(f"{where} lacks {', '.join(missing)}", f"every trajectory has {', '.join(NEEDED)}")


def write(path: str | Path, episodes: Sequence[StoredEpisode], groups: Sequence[int] | None = None) -> None:
    """Write trajectories as JSON lines, for `trajectories:PATH`; those with the same entry of `groups` form a group."""
    with Path(path).open("w", encoding="utf-8") as file:
        for number, each in enumerate(episodes):
            row = each.as_row() | ({} if groups is None else {"group": groups[number]})
            file.write(json.dumps(row) + "\n")


def _of_function(path: str) -> Iterator[tuple[str, Raw]]:
    """Yield what a function of trajectories returns: `StoredEpisode`s, or mappings with the columns of a file."""
    found = import_object(path, "function of trajectories")
    if not callable(found):
        raise InputError(
            f"'{path}' is {shortened(found)}", "trajectories are what a function returns", "Name a function"
        )
    for number, each in enumerate(_called(path, found)):
        where = f"trajectory {number} of '{path}'"
        raw = each.as_row() if isinstance(each, StoredEpisode) else each
        if not isinstance(raw, Mapping):
            raise InputError(
                f"{where} is {shortened(raw)}",
                "it must be a grouprl.records.offline.StoredEpisode, or a mapping with the columns of a file",
            )
        check_names(raw, where)
        yield where, raw


def _called(path: str, function: Callable[[], Iterable[object]]) -> list[object]:
    """Return what a function of trajectories returns. Raises InputError with what it raised if it fails."""
    try:
        return list(function())
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(
            f"'{path}' failed: {raised(error)}", "it must return trajectories, and takes no arguments"
        ) from error


def _of_lines(file: Path) -> Iterator[Raw]:
    for _, row in each_line(str(file)):
        yield row


def _of_parquet(file: Path) -> Iterator[Raw]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"{file} cannot be read: {error}", "it must be a Parquet file with a row per trajectory"
        ) from error
    for row in table.to_pylist():
        yield {name: value for name, value in row.items() if value is not None or name in NEEDED}


def _of_npz(file: Path) -> Iterator[Raw]:
    """Cut arrays that hold all trajectories one after the other; `lengths` [E] are their numbers of actions."""
    held = _arrays(file)
    length_e = _lengths(file, held.pop("lengths", None))
    _check_counts(file, held, length_e)
    seen_by = {name for name, array in held.items() if _by_observation(name, array, length_e)}
    for episode, (end, length) in enumerate(zip(length_e.cumsum().tolist(), length_e.tolist(), strict=True)):
        acted, seen = slice(end - length, end), slice(end - length + episode, end + episode + 1)
        row: dict[str, object] = {}
        for name, array in held.items():
            whole, _, key = name.partition(".")
            found = array[seen if name in seen_by else acted] if _stretches(whole) else array[episode]
            if key:
                named = row.setdefault(whole, {})
                assert isinstance(named, dict)
                named[key] = found
            else:
                row[name] = found
        yield row


def _arrays(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an npz by name. Raises InputError for another file."""
    try:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise InputError(f"{file} holds one array", "an npz holds one for each column", "Write it by numpy.savez")
        with loaded:
            return dict(loaded)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file} cannot be read: {error}", "it must be a file that numpy.savez wrote") from error


def _lengths(file: Path, given: np.ndarray | None) -> np.ndarray:
    """Return how many actions each trajectory has. Raises InputError unless they are whole numbers from 1."""
    rule = "lengths [E] of an npz say how many actions each trajectory has"
    if given is None:
        raise InputError(f"{file} lacks lengths", rule, "Add them")
    if given.ndim != 1 or given.dtype.kind not in "iuf" or not ((given >= 1) & (given == np.floor(given))).all():
        raise InputError(f"lengths of {file} are {shortened(given.tolist())}", f"{rule}, whole numbers from 1")
    return given.astype(np.int64)


def _stretches(name: str) -> bool:
    """Return whether a column has an entry for each action or observation, not one for each trajectory."""
    return name == "observations" or name in BY_ACTION


def _by_observation(name: str, array: np.ndarray, length_e: np.ndarray) -> bool:
    """Return whether a column has an entry for each observation; masks of legal actions may have."""
    whole = name.partition(".")[0]
    return whole == "observations" or (whole == "legal" and array.shape[:1] == (int(length_e.sum()) + len(length_e),))


def _check_counts(file: Path, held: Mapping[str, np.ndarray], length_e: np.ndarray) -> None:
    actions, episodes = int(length_e.sum()), len(length_e)
    for name, array in held.items():
        whole = name.partition(".")[0]
        seen = _by_observation(name, array, length_e)
        wanted = actions + episodes if seen else actions if whole in BY_ACTION else episodes
        if array.shape[:1] != (wanted,):
            raise InputError(
                f"{name} of {file} has {len(array) if array.ndim else 'no'} entries",
                f"{episodes} trajectories of {actions} actions in all have {wanted}",
                "Observations have one more than actions in each trajectory: the last one follows the last action",
            )


def _of_minari(name: str) -> Iterator[tuple[str, Raw]]:
    """Yield the episodes of a dataset of Minari that is on this machine."""
    try:
        import minari
    except ImportError as error:
        raise MissingExtra("minari", "hdf5", f"The dataset 'minari:{name}'", whole="minari") from error
    try:
        dataset = minari.load_dataset(name)
    except (OSError, ValueError) as error:
        raise InputError(
            f"Minari cannot load '{name}': {error}",
            "datasets are read from this machine",
            f"Fetch it: minari download {name}",
        ) from error
    for number, raw in of_minari(dataset.iterate_episodes(), dataset.observation_space, dataset.action_space):
        yield f"episode {number} of 'minari:{name}'", raw


def of_minari(episodes: Iterable[Any], seen: gymnasium.Space, done: gymnasium.Space) -> Iterator[tuple[int, Raw]]:
    """Yield the number and the columns of each episode of Minari, as values of this package's spaces."""
    from grouprl.envs.adapters.gymnasium_spaces import columns_of

    for each in episodes:
        shown, legal_ta = columns_of(seen, each.observations)
        row = {
            "observations": shown,
            "actions": columns_of(done, each.actions)[0],
            "rewards": np.asarray(each.rewards),
            "terminated": bool(each.terminations[-1]),
        }
        yield int(each.id), row if legal_ta is None else {**row, "legal": legal_ta}
