"""Names of models that are not local folders: a mistyped path, or an id of the Hugging Face Hub."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from grouprl.core.errors import InputError, shortened

RULE = "A model must be 'tiny', a folder, a GGUF file or a Hub id"
ID = re.compile(r"(?:[\w.-]+/)?[\w.-]+")
RUN_MARK = "config.yaml"
MARKS = ("config.json", RUN_MARK)
"""Files that mark the folder of a model or of a run."""
SECONDS = 4.0
"""Seconds within which the Hub has to answer whether it has a model, including the lookup of its address."""
MOST = 2000
"""Largest number of folder entries that are searched for a name similar to the given one."""


def check_on_hub(spec: str) -> None:
    """Check that `spec`, which is not a folder, can be a Hub id: it does not look like a path, and the Hub has it.

    Models in the Hub's local cache are not checked.

    Raises:
        InputError: `spec` cannot be a Hub id, the Hub does not have it, or the Hub cannot be reached.
    """
    if Path(spec).is_file():
        raise InputError(f"{spec} is a file", RULE, "Give the folder that save_pretrained wrote")
    if Path(spec).is_absolute() or spec.startswith((".", "~")) or not ID.fullmatch(spec):
        raise InputError(f"The folder {spec} does not exist", RULE, folder_meant(spec) or "Check the path")
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    if isinstance(try_to_load_from_cache(spec, "config.json"), str):
        return
    beside = Path(spec).parent
    if beside != Path() and any((each / RUN_MARK).is_file() for each in _inside(beside)):
        raise InputError(
            f"There is no folder {spec}, and {beside} holds runs, so it is not looked up on the Hub",
            RULE,
            folder_meant(spec) or f"It has {', '.join(each.name for each in _inside(beside)[:5])}",
        )
    try:
        answered(SECONDS, lambda: _ask(spec))
    except RepositoryNotFoundError:
        why = "the Hub has no such model, or shows it only to users who are logged in"
    except HfHubHTTPError as error:
        why = f"the Hub answers with an error ({shortened(str(error))})"
    except Exception as error:  # the network errors differ between versions of the Hub's client
        why = f"the Hub cannot be reached ({str(error) or type(error).__name__})"
    else:
        return
    raise InputError(f"{spec} is not a local folder, and {why}", RULE, folder_meant(spec) or "Check the name")


def _ask(spec: str) -> None:
    """Ask the Hub for a model; ask a mirror that has files but no index for a file of the model."""
    from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    try:
        HfApi().model_info(spec, timeout=SECONDS)
    except RepositoryNotFoundError:
        raise
    except HfHubHTTPError:
        get_hf_file_metadata(hf_hub_url(spec, "config.json"), timeout=SECONDS)


def answered(seconds: float, call: Callable[[], None]) -> None:
    """Call a function and return when it has finished; its exceptions are raised here. It runs in a thread, which is
    left running if it takes too long.

    The network library's own limits apply to each attempt, and looking up an address has no limit.

    Raises:
        TimeoutError: the call has not finished after `seconds`.
    """
    outcomes: SimpleQueue[Exception | None] = SimpleQueue()

    def run() -> None:
        try:
            call()
        except Exception as error:
            outcomes.put(error)
        else:
            outcomes.put(None)

    Thread(target=run, daemon=True).start()
    try:
        error = outcomes.get(timeout=seconds)
    except Empty:
        raise TimeoutError(f"it has not answered within {seconds:g} seconds") from None
    if error is not None:
        raise error


def folder_meant(spec: str) -> str:
    """Return a remedy that names a similar folder of a model or a run; "" if `spec` exists or nothing is similar."""
    wanted = Path(spec).expanduser()
    if wanted.is_dir():
        return ""
    known = {_end(found): str(found) for found in islice(_folders(wanted), MOST)}
    close = difflib.get_close_matches(_end(wanted), known, n=3, cutoff=0.75)
    return "Did you mean " + " or ".join(known[end] for end in close) + "?" if close else ""


def _end(path: Path) -> str:
    """Return the end of a path, by which paths are compared: the part before it is long and mostly right."""
    return "/".join(path.parts[-2:])


def _folders(wanted: Path) -> Iterator[Path]:
    """Yield folders of models and runs next to the wanted one, and in the folders next to its parent."""
    places = [wanted.parent]
    if wanted.parent != Path():
        places += [place for place in _inside(wanted.parent.parent) if place != wanted.parent]
    for place in places:
        yield from (each for each in _inside(place) if any((each / mark).is_file() for mark in MARKS))


def _inside(place: Path) -> list[Path]:
    """Return the folders in `place`; an empty list if it cannot be read."""
    try:
        return sorted(each for each in place.iterdir() if each.is_dir())
    except OSError:
        return []
