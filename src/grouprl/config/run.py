"""The configuration of a run: a small closed schema, read from YAML, changed by `--set key=value`.

Unknown keys are refused with a suggestion, at every depth. Lengths are in tokens, times in seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import pydantic
import yaml

from grouprl.config.paths import absolute_paths, folder_name
from grouprl.config.python_objects import without_objects
from grouprl.config.rates import default_rate
from grouprl.config.sections import (
    Acting,
    BatchPlan,
    Data,
    Eval,
    Model,
    Optim,
    Placing,
    Reward,
    Run,
    Sampling,
    Section,
    Warmup,
)
from grouprl.config.sections.section import Seed, WrittenWhole, as_number
from grouprl.config.wrong_values import in_words
from grouprl.config.yaml_files import is_file, read_text, read_yaml
from grouprl.core.errors import InputError, shortened, suggest
from grouprl.core.json_types import JsonObject
from grouprl.core.plugins import load_plugins
from grouprl.storage.run_folder import free_folder

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


class Config(Section):
    """A whole run."""

    task: str | JsonObject = "addition"
    """The task to train on: a name, or a mapping of a name and the task's own options."""
    model: Model = Model()
    method: str | JsonObject = "grpo"
    """A name of the catalogue, a mapping of a name or `base` and changes, or `file.py:function`."""
    steps: WrittenWhole = 200
    """Rollouts to train on."""
    seed: Seed = 0
    """Seed of everything random: the same seed gives the same bytes."""
    warmup: Warmup = Warmup()
    batch: BatchPlan = BatchPlan()
    data: Data = Data()
    sampling: Sampling = Sampling()
    optim: Optim = Optim()
    eval: Eval = Eval()
    reward: Reward = Reward()
    environment: Acting = Acting()
    cluster: Placing = Placing()
    run: Run = Run()
    plugins: tuple[str, ...] = ()
    """Modules and Python files of yours, imported before anything is looked up: they register parts, methods and
    metrics."""

    @pydantic.field_validator("plugins", mode="before")
    @classmethod
    def _one_plugin(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @pydantic.field_validator("model", mode="before")
    @classmethod
    def _model_by_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @pydantic.model_validator(mode="after")
    def _rate_of_model(self) -> Config:
        """Set `optim.lr`, if it is not given, to the default rate of this kind of model."""
        if "lr" not in self.optim.model_fields_set:
            given = self.optim.model_fields_set
            values = {**self.optim.__dict__, "lr": default_rate(self.model).lr}
            self.__dict__["optim"] = Optim.model_construct(set(given), **values)
        return self

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.batch.prompts < self.batch.minibatches:
            raise ValueError(
                f"batch.prompts = {self.batch.prompts} cannot be dealt out to batch.minibatches = "
                f"{self.batch.minibatches}; groups stay whole, so there are at most as many minibatches as prompts"
            )
        if max(self.eval.k) > self.eval.samples:
            raise ValueError(
                f"eval.k has pass@{max(self.eval.k)} but eval.samples = {self.eval.samples}; "
                "pass@k needs at least k samples per prompt"
            )
        return self

    @property
    def updates_per_rollout(self) -> int:
        """Optimiser steps per rollout."""
        return self.batch.minibatches * self.batch.epochs

    @property
    def task_name(self) -> str:
        """The task's name without its options."""
        return self.task if isinstance(self.task, str) else str(self.task.get("name", "task"))

    @property
    def method_name(self) -> str:
        """The method's name without its changes."""
        if isinstance(self.method, str):
            return self.method
        return str(self.method.get("name") or self.method.get("base") or "custom")

    @property
    def method_label(self) -> str:
        """The method's name with its changes: "grpo with clip_high 0.28, aggregate token_mean"."""
        changes = {} if isinstance(self.method, str) else self.method
        parts = ((key, value) for key, value in changes.items() if key not in ("name", "base"))
        words = [f"{key} {value}" if isinstance(value, (str, int, float)) else key for key, value in parts]
        return f"{self.method_name} with {', '.join(words)}" if words else self.method_name

    def dump(self) -> str:
        """Return the whole configuration, with every default written out, as YAML."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)

    def fingerprint(self) -> str:
        """Return a hash of everything that changes results (not of folders, records or threads)."""
        elsewhere = {"run": True, "eval": True, "environment": True, "cluster": True}
        plain = self.model_dump(mode="json", exclude=elsewhere)
        plain["task"] = _without_chat(self.task)
        if self.cluster.samplers > 1:  # how requests are distributed changes the rounding of products
            plain["shares"] = self.cluster.samplers
        if not self.plugins:
            del plain["plugins"]
        if self.sampling.engine == "local":
            del plain["sampling"]["engine"], plain["sampling"]["engine_settings"]
        del plain["sampling"]["vllm"], plain["sampling"]["sglang"]  # where, not which, completions are sampled
        if self.model.precision == "float32":  # the value that applied before this was a setting
            del plain["model"]["precision"]
        if not self.model.chat_template_kwargs:
            del plain["model"]["chat_template_kwargs"]
        if self.run.async_steps:
            plain["ahead"] = [self.run.async_steps, self.run.partial, self.run.proximal]
            plain["ahead"] += [] if self.run.samplers else ["between updates"]
        return hashlib.sha256(yaml.safe_dump(plain, sort_keys=True).encode()).hexdigest()[:16]


def _without_chat(task: str | JsonObject) -> str | JsonObject:
    """Return a task without `chat: true`, which a run adds where its model has a chat template."""
    if isinstance(task, str) or task.get("chat") is not True:
        return task
    rest = {key: value for key, value in task.items() if key != "chat"}
    return str(task["name"]) if list(rest) == ["name"] else rest


def default_folder(config: Config) -> Path:
    """Return the folder of a run that is given none: `run.folder`, or the first free one below runs/."""
    name = folder_name(config.task_name, config.method_name, f"s{config.seed}")
    return Path(config.run.folder) if config.run.folder else free_folder(Path("runs") / name)


def recipe_names() -> list[str]:
    """Return the names of the embedded configurations (`grouprl train NAME`)."""
    return sorted(p.name[:-5] for p in recipes_folder().iterdir() if p.name.endswith(".yaml"))


def load_config(source: str, changes: Sequence[str] = (), *, plugins: bool = True) -> Config:
    """Read a YAML file or an embedded recipe and apply `key=value` changes (dots for depth, values in YAML).

    Paths in the file are relative to it, those of changes to the working directory; all become absolute.
    Its plugins are imported, unless `plugins` is False.

    Raises InputError for a missing file, broken YAML, unknown keys (with a suggestion) and contradictions, and for
    plugins that cannot be imported.
    """
    return changed_data(_read(source), changes, plugins=plugins)


def changed_data(data: Mapping[str, object], changes: Sequence[str], *, plugins: bool = True) -> Config:
    """Build a Config from plain data with `key=value` changes, as `load_config` does from a file."""
    _refuse_other_than_mapping(data)
    changed = {key: _copied(value) for key, value in without_objects(data).items()}
    for change in changes:
        apply_change(changed, change)
    return parse_config(absolute_paths(changed, Path.cwd()) if changes else changed, plugins=plugins)


def _copied(value: object) -> object:
    """Return a value whose mappings and lists are new ones."""
    if isinstance(value, Mapping):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


def with_absolute_paths(config: Config) -> Config:
    """Return the configuration with relative paths made absolute; the same object if there are none.

    Settings that were not given stay so, because notes on settings without effect concern only given ones.
    """
    data = config.model_dump(mode="json", exclude_unset=True)
    found = absolute_paths(data, Path.cwd())
    return config if found == data else parse_config(found)


def parse_config(data: Mapping[str, object], *, plugins: bool = True) -> Config:
    """Build a Config from data like YAML's and import its plugins; Python objects in it are named as YAML names them.

    Raises:
        InputError: it names the key, the value and the rule.
    """
    _refuse_other_than_mapping(data)
    try:
        config = Config.model_validate(without_objects(data))
    except pydantic.ValidationError as error:
        raise in_words(error, Config) from None
    if plugins:
        load_plugins(config.plugins)
    return config


def _refuse_other_than_mapping(data: object) -> None:
    if not isinstance(data, Mapping):
        raise InputError(f"the configuration is {shortened(data)}", "a configuration is a mapping of keys to values")


def recipes_folder() -> Traversable:
    """Return the folder of the embedded recipes."""
    return resources.files("grouprl") / "recipes"


def _read(source: str) -> JsonObject:
    path = Path(source).expanduser() if source.startswith("~") else Path(source)
    if is_file(path):
        text, where = read_text(path), str(path)
        base = path.absolute().parent
    elif source in recipe_names():
        text, where = (recipes_folder() / f"{source}.yaml").read_text(encoding="utf-8"), f"recipe {source}"
        base = Path.cwd()
    else:
        rule = "it is neither a file nor an embedded recipe"
        raise InputError(f"cannot find the configuration {shortened(source)}", rule, _meant(path))
    data = read_yaml(text, where)
    if data is None:
        raise InputError(f"{where} is empty", "a configuration names at least its task", "See: grouprl recipes")
    if not isinstance(data, dict):
        raise InputError(f"{where} holds {type(data).__name__}", "a configuration is a mapping of keys to values")
    return absolute_paths(data, base)


def _meant(path: Path) -> str:
    """Return a remedy for a path that is not a file, a run or a recipe: name the one that may have been meant."""
    if _is_odd(path):
        return "It is a pipe or a device, and a configuration must be a file."
    beside = _folder(path.parent) or []
    files = [str(each) for each in beside if each.suffix in (".yaml", ".yml")]
    if (within := _folder(path)) is not None:
        inside = [str(each) for each in within if each.suffix in (".yaml", ".yml")]
        return f"It is a folder. {'It has ' + ', '.join(inside[:5]) if inside else 'Give a YAML file'}."
    if path.suffix in (".yaml", ".yml"):
        return suggest(str(path), files) if files else f"There is no YAML file in {path.parent.absolute()}."
    runs = [str(each) for each in beside if (each / "config.yaml").is_file()]
    return suggest(str(path), runs if runs and path.parent != Path() else recipe_names())


def _is_odd(path: Path) -> bool:
    """Return whether the path exists and is neither a file nor a folder."""
    try:
        return path.exists() and not path.is_file() and not path.is_dir()
    except (OSError, ValueError):
        return False


def _folder(path: Path) -> list[Path] | None:
    """Return the contents of a folder; None if it does not exist or cannot be read."""
    try:
        return sorted(path.iterdir())
    except (OSError, ValueError):  # ValueError: a name that contains a NUL
        return None


def apply_change(data: dict[str, object], change: str) -> None:
    """Make a change `key=value` of `--set` in plain settings; raises InputError for one of another form."""
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise InputError(f"--set {change}", "a change has the form key=value, for instance optim.lr=1e-3")
    *path, last = key.split(".")
    if not all((*path, last)):
        raise InputError(f"--set {change}", "a key is names with dots between them, for instance optim.lr=1e-3")
    node: dict[str, object] = data
    for depth, name in enumerate(path):
        child = node.get(name)
        if child is None and depth == 0 and name == "method":
            child = Config.model_fields["method"].default  # a change applies to the settings of this method
        if isinstance(child, str) and depth == 0 and name in ("method", "model", "task"):
            child = {"name": child}
        node[name] = child = {} if child is None else child
        if not isinstance(child, dict):
            raise InputError(f"--set {change}", f"'{name}' is the value {child!r}, which has no keys below it")
        node = child
    node[last] = _value(text)


def _value(text: str) -> object:
    return as_number(read_yaml(text, f"the value {shortened(text)}"))
