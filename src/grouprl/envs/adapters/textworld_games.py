"""Games that TextWorld generates: made once, kept in a folder, found again by what they are made of."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError, MissingExtra, raised, suggest
from grouprl.core.hashing import digest
from grouprl.envs.adapters.textgame import requested_facts

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable
    from types import ModuleType

    from grouprl.core.json_types import JsonObject

GENERATED = "generated"
SUFFIXES = (".z1", ".z2", ".z3", ".z4", ".z5", ".z6", ".z7", ".z8", ".json", ".tw-pddl")
"""Of files that TextWorld can start."""


def textworld(who: str, extra: str = "textworld") -> ModuleType:
    """Return the library; `who` names the user in messages. Raises MissingExtra where it is not installed."""
    try:
        import textworld as library
    except ImportError as error:
        raise MissingExtra(str(error.name or "textworld"), extra, who) from error
    return library


def kinds() -> JsonObject:
    """Return the makers of TextWorld's own challenges by name."""
    from textworld.challenges.registration import CHALLENGES

    return {name.removeprefix("tw-"): entry for name, entry in CHALLENGES.items()}


def made_game(kind: str, sizes: Mapping[str, int], settings: Mapping[str, object], seed: int, folder: Path) -> Path:
    """Return the file of a game, made if `folder` does not have it yet.

    Args:
        kind: `GENERATED`, or one of TextWorld's challenges.
        sizes: of a generated game: rooms, objects, quest_length, quests.
        settings: of a challenge.
        seed: what the game is drawn from.
        folder: where games are kept.

    Raises:
        InputError: TextWorld cannot make such a game.
    """
    import textworld as library

    name = digest({"kind": kind, "sizes": dict(sizes), "settings": dict(settings), "version": library.__version__})
    file = folder / f"{kind}-{name[:12]}-{seed}.z8"
    if not file.exists():
        try:
            _make(kind, sizes, settings, seed, file)
        except (InputError, OSError):
            raise
        except Exception as error:
            what = f"TextWorld cannot make a game of {dict(sizes) or dict(settings)} with seed {seed}: {raised(error)}"
            raise InputError(what, remedy="Ask for more rooms, or for a shorter quest.") from error
    return file


def _make(kind: str, sizes: Mapping[str, int], settings: Mapping[str, object], seed: int, file: Path) -> None:
    import textworld as library

    file.parent.mkdir(parents=True, exist_ok=True)
    wanted = library.GameOptions()
    wanted.seeds = seed
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".making-") as folder:
        wanted.path = os.path.join(folder, file.name)
        if kind == GENERATED:
            wanted.nb_rooms, wanted.nb_objects = sizes["rooms"], sizes["objects"]
            wanted.quest_length, wanted.nb_parallel_quests = sizes["quest_length"], sizes["quests"]
            library.make(wanted)
        else:
            _, make, parser = kinds()[kind]
            library.generator.compile_game(make(_challenge(parser, settings), wanted), wanted)
        for each in (".json", ".z8"):  # the game last: where it is, the other is, too
            with contextlib.suppress(FileNotFoundError):
                os.replace(Path(folder) / f"{file.stem}{each}", file.with_suffix(each))


def _challenge(add_arguments: Callable[[ArgumentParser], None], settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a challenge: those given, and the defaults of the others."""
    import argparse

    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    known = {each.dest: each for each in parser._actions if each.dest != "help"}
    for name in settings:
        if name not in known:
            raise InputError(f"The challenge has no setting '{name}'", remedy=suggest(name, known))
    lacking = [name for name, each in known.items() if each.required and name not in settings]
    if lacking:
        raise InputError(f"The challenge lacks {', '.join(lacking)}", remedy="Give it in task.settings.")
    return {**{name: each.default for name, each in known.items()}, **settings}


def started(file: Path) -> object:
    """Return TextWorld's environment with a game loaded."""
    import textworld as library

    return library.start(str(file), library.EnvInfos(**requested_facts(_plans(file))))


def _plans(file: Path) -> tuple[str, ...]:
    """Return ("policy_commands",) where a game brings what a plan needs: its description beside it."""
    return ("policy_commands",) if file.suffix == ".json" or file.with_suffix(".json").exists() else ()


def brings_commands(file: Path) -> bool:
    """Whether the admissible commands of a game are known."""
    return file.suffix == ".tw-pddl" or bool(_plans(file))


def games_at(path: str) -> tuple[Path, ...]:
    """Return the games at a path, a file or a folder, in order.

    Raises:
        InputError: there are none.
    """
    found = Path(path).expanduser()
    if found.is_file() and found.suffix in SUFFIXES:
        return (found.resolve(),)
    files = sorted(each.resolve() for each in found.rglob("*") if each.suffix in SUFFIXES) if found.is_dir() else []
    stories = {each.with_suffix("") for each in files if each.suffix != ".json"}
    kept = tuple(each for each in files if each.suffix != ".json" or each.with_suffix("") not in stories)
    if not kept:
        raise InputError(
            f"There is no game at '{path}'",
            f"a game is a file that ends in .z3, .z5, .z8, .json or .tw-pddl, a folder holds some; or '{GENERATED}'",
        )
    return kept
