"""Loading environments of `verifiers` by name, from installed packages, once per process."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import pkgutil
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from grouprl.core.errors import InputError, MissingExtra, raised, suggest
from grouprl.envs.adapters.verifiers_classic import ClassicRollouts, check_rubric
from grouprl.envs.adapters.verifiers_v1 import V1Rollouts, single_agent

Loaded = ClassicRollouts | V1Rollouts
OLDEST = (0, 1, 14)
HUBS = ("datasets", "huggingface_hub", "requests", "httpx", "httpcore", "urllib3", "aiohttp", "fsspec")
"""Packages whose errors mean that something could not be downloaded."""
LONGEST = 400
"""The number of characters shown of the library's messages."""
KEYS = ("MissingKeyError", "OpenAIError", "AnthropicError")
_loaded: dict[str, Loaded] = {}
_lock = threading.Lock()


def loaded(name: str, args: Mapping[str, object], settings: Mapping[str, object], success: float | None) -> Loaded:
    """Return the environment `name`, loaded once per process with these arguments.

    Args:
        name: as the library spells it, "owner/name" or "name"; its module is name with "_" for "-".
        args: the arguments of `load_environment`; from 0.4, options of the taskset.
        settings: from 0.4, further settings of the environment.
        success: the lowest reward of a correct episode; None: the environment's own threshold.

    Raises:
        MissingExtra: `verifiers` is not installed.
        InputError: its version is not supported, there is no such environment, or it cannot be loaded.
    """
    key = json.dumps([name, args, settings, success], sort_keys=True, default=str)
    with _lock:
        if key not in _loaded:
            _loaded[key] = _load(name, args, settings, success)
        return _loaded[key]


def version() -> str:
    """Return the version of `verifiers`.

    Raises:
        MissingExtra: it is not installed.
        InputError: it is too old.
    """
    try:
        found = importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtra("verifiers", "verifiers", "A task 'verifiers:…'") from error
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:3])
    oldest = ".".join(map(str, OLDEST))
    if numbers < OLDEST:
        raise InputError(f"verifiers {found} is installed", f"{oldest} or newer is needed", "Install a newer one.")
    return found


def _load(name: str, args: Mapping[str, object], settings: Mapping[str, object], success: float | None) -> Loaded:
    found = version()
    module = _module(name)
    if callable(getattr(module, "load_environment", None)):
        return _classic(name, module, args, settings, success, found)
    if not _exports_taskset(module):
        raise InputError(
            f"The module '{module.__name__}' is not an environment of verifiers",
            "it must have a function load_environment, or from verifiers 0.4 a taskset in __all__",
        )
    with _in_words(name), _undisturbed():
        game = V1Rollouts(name, args, settings, success)
    single_agent(game.env, name)
    return game


def _classic(
    name: str,
    module: ModuleType,
    args: Mapping[str, object],
    settings: Mapping[str, object],
    success: float | None,
    found: str,
) -> ClassicRollouts:
    import verifiers

    if settings:
        raise InputError(f"The environment '{name}' is given settings", "it takes arguments only", "Use task.args.")
    if not hasattr(verifiers, "load_environment"):
        raise InputError(
            f"The environment '{name}' is written for verifiers before 0.4, and {found} is installed",
            "0.4 has no load_environment, no rubrics and no SingleTurnEnv any more",
            "Install 'verifiers<0.4', or a newer version of the environment.",
        )
    known = inspect.signature(module.load_environment).parameters
    if not any(each.kind is each.VAR_KEYWORD for each in known.values()):
        for given in args:
            if given not in known:
                raise InputError(f"The environment '{name}' has no argument '{given}'", remedy=suggest(given, known))
    with _in_words(name), _undisturbed():
        env = verifiers.load_environment(name, **args)
    check_rubric(env, name)
    return ClassicRollouts(env, success)


def _exports_taskset(module: ModuleType) -> bool:
    named = [getattr(module, each, None) for each in getattr(module, "__all__", ())]
    return any(any(base.__name__ == "Taskset" for base in getattr(each, "__mro__", ())) for each in named)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep the signal handlers, which the library would replace, and hide the progress bars of its data sets."""
    main = threading.current_thread() is threading.main_thread()
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        with _without_bars():
            yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def _without_bars() -> Iterator[None]:
    bars = importlib.import_module("datasets") if importlib.util.find_spec("datasets") else None
    shown = bars is not None and not bars.are_progress_bars_disabled()
    if bars is not None:
        bars.disable_progress_bars()
    try:
        yield
    finally:
        if bars is not None and shown:
            bars.enable_progress_bars()


def _module(name: str) -> ModuleType:
    """Import the module of an environment. Raises InputError if there is none, or its import fails."""
    path = name.rpartition("/")[2].partition("@")[0].replace("-", "_")
    if not path.isidentifier():
        raise InputError(f"'{name}' is not the name of an environment", 'it must have the form "name" or "owner/name"')
    own = f"verifiers.v1.tasksets.{path}"
    for each in (path, own):
        try:
            if importlib.util.find_spec(each) is None:
                continue
        except (ImportError, ValueError):
            continue
        try:
            return importlib.import_module(each)
        except (Exception, SystemExit) as error:
            what = f"The environment '{name}' cannot be imported: {raised(error)}"
            raise InputError(what, remedy="Install the packages that it needs.") from error
    installed = sorted({*_installed(), *_importable(path)})
    near = suggest(name, installed) if installed else "No package that needs verifiers is installed."
    hub = f"prime env install owner/{name.rpartition('/')[2]}"
    raise InputError(
        f"No environment '{name}' of verifiers is installed",
        f"it is a Python package with the module '{path}'",
        f"{near} From the hub: {hub}; from a folder: pip install -e FOLDER.",
    )


def _installed() -> Iterator[str]:
    """Yield the names of installed packages that need `verifiers`."""
    for package in importlib.metadata.distributions():
        if any(re.match(r"verifiers\b", need) for need in package.requires or ()):
            yield package.metadata["Name"].lower()


def _importable(path: str) -> Iterator[str]:
    """Yield the names of importable modules like `path` that define load_environment."""
    names = [each.name for each in pkgutil.iter_modules()]
    for name in difflib.get_close_matches(path, names, n=8, cutoff=0.7):
        found = importlib.util.find_spec(name)
        file = Path(str(found and found.origin))
        if file.suffix == ".py" and "def load_environment" in file.read_text(encoding="utf-8", errors="replace"):
            yield name.replace("_", "-")


class _in_words:
    """A context that turns errors of loading an environment into an InputError that explains them."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, (InputError, KeyboardInterrupt)):
            return
        causes = list(_causes(error))
        first = next((each for each in causes if _kind(each)), causes[-1])
        said = str(first)[:LONGEST]
        what = f"The environment '{self.name}' cannot be loaded: {type(first).__name__}: {said.rstrip('.')}"
        rule, remedy = _kind(first) or ("load_environment returns with these arguments", "See task.args.")
        raise InputError(what, rule, remedy) from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _kind(error: BaseException) -> tuple[str, str] | None:
    """Return the rule and the remedy of an error that means that something is missing; None for any other error."""
    names = {each.__name__ for each in type(error).__mro__}
    if names & set(KEYS):
        rule = "it uses a model of its own, such as a judge, and has no API key for it"
        return rule, "Set the variable it names, or choose another judge in task.args."
    roots = {each.__module__.partition(".")[0] for each in type(error).__mro__}
    if roots & set(HUBS) or isinstance(error, ConnectionError):
        rule = "its data set, or another file, is fetched from a hub that cannot be reached or does not have it"
        return rule, "Fetch it once while there is a connection (HF_HOME names the folder), or set other task.args."
    return None
