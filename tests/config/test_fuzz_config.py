"""Whatever a configuration says, the outcome is a configuration that says the same, or an InputError in words."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from grouprl import InputError
from grouprl.algorithms.part import KINDS, PARTS
from grouprl.config.run import Config, load_config, parse_config
from grouprl.config.sections import Section
from grouprl.methods.compose import compose
from grouprl.methods.registry import CATALOGUE
from grouprl.rewards import load_reward

FAST = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))

texts = st.text(st.characters(codec=None), max_size=10)
numbers = (
    st.integers() | st.floats() | st.sampled_from([0, 1, -1, 0.5, 1e-3, 2**63, 10**400, float("inf"), float("nan")])
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts | st.sampled_from(["auto", "none", "1e-3", "yes", "group", "tiny"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.integers(), inner, max_size=3),
    max_leaves=6,
)


def keys(section: type[Section], before: str = "") -> Iterator[str]:
    """Every key of the schema, with dots for depth."""
    for name, field in section.model_fields.items():
        yield before + name
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
                yield from keys(kind, f"{before}{name}.")


KEYS = list(keys(Config))


def check(error: InputError) -> None:
    assert error.what
    assert len(str(error)) < 20_000


def parsed(data: Any) -> Config | None:
    try:
        return parse_config(data)
    except InputError as error:
        check(error)
        return None


def nested(key: str, value: Any) -> dict[str, Any]:
    *outer, last = key.split(".")
    data: dict[str, Any] = {last: value}
    for name in reversed(outer):
        data = {name: data}
    return data


@settings(FAST, max_examples=600)
@given(st.sampled_from(KEYS), values)
@example("seed", 2**70)
@example("steps", True)
@example("optim.lr", float("inf"))
@example("task", {"name": "addition", "digits": {1: 2}})
@example("method", {"name": "grpo", "eps": "\ud800"})
@example("task", {"\ud800": None})
def test_any_value_of_any_key(key: str, value: Any) -> None:
    config = parsed(nested(key, value))
    if config is None:
        return
    written = yaml.safe_load(config.dump())
    assert parse_config(written) == config
    given_value: Any = config
    for name in key.split("."):
        given_value = getattr(given_value, name)
    if isinstance(value, bool) and not isinstance(given_value, bool):
        assert given_value in ("on", "off", {}, [])  # a switch, or nothing at all


@FAST
@given(values)
def test_any_data(data: Any) -> None:
    parsed(data)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def loaded(folder: Path, content: bytes, *changes: str) -> Config | None:
    path = folder / "run.yaml"
    path.write_bytes(content)
    try:
        return load_config(str(path), changes)
    except InputError as error:
        check(error)
        return None


@FAST
@given(st.binary(max_size=80) | st.text(max_size=80).map(lambda text: text.encode("utf-8", "replace")))
@example(b"\xff\xfe")
@example(b"steps: [")
@example(b"\x00")
@example(b"!!python/object/apply:os.system [echo]")
@example(b"? [a]\n: b")
@example(b"{" * 3000)
@example(b"steps: &a [*a]")
@example(b"<<: 3")
@example(b"steps: 1_0")
def test_any_bytes_as_yaml(folder: Path, content: bytes) -> None:
    loaded(folder, content)


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in pairwise("abcdefgh")
)
"""A hundred million values in a few lines."""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("steps: 3\nsteps: 4\n", "'steps' is given twice"),
        ("optim: {lr: 1e-3, lr: 1e-4}\n", "'lr' is given twice"),
        ("task: &a {name: addition, x: *a}\n", "within itself|recursive"),
        ("task: !!set {a, b}\n", "could not determine a constructor"),
        (BOMB, "values once its aliases"),
        ("", "is empty"),
        ("- 1\n", "holds list"),
        ("steps: true\n", "True is given where a number"),
        ("optim: {lr: .inf}\n", "finite"),
        ("seed: 99999999999999999999\n", "less than"),
        ("task: {name: addition, 3: 4}\n", "3"),
    ],
)
def test_yaml_that_would_be_read_otherwise_than_it_is_written(folder: Path, text: str, words: str) -> None:
    path = folder / "odd.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        load_config(str(path))


def test_dates_and_numbers_stay_what_they_are(folder: Path) -> None:
    path = folder / "dates.yaml"
    path.write_text("task: {name: 'x:y', when: 2020-01-01, digits: 007, share: 1e-3, word: NaN}\noptim: {lr: 1e-3}\n")
    config = load_config(str(path))
    assert isinstance(config.task, dict)
    assert config.task["when"] == "2020-01-01"
    assert config.task["word"] == "NaN"
    assert config.optim.lr == 1e-3


@FAST
@given(st.sampled_from([*KEYS, "", ".", "a..b", "task.x", "method.objective.clip_low"]), texts)
@example("steps", "[")
@example("steps", "*a")
@example("task", "2020-01-01")
@example("optim.lr", "nan")
@example("optim.lr", "inf")
@example("steps.x", "1")
@example("model.tiny.hidden.x", "1")
def test_any_change(folder: Path, key: str, text: str) -> None:
    loaded(folder, b"task: addition\nmodel: tiny\n", f"{key}={text}")


def test_words_are_not_read_as_numbers(folder: Path) -> None:
    for word in ("inf", "nan", "Infinity", "1_0e3", "e5"):
        config = loaded(folder, b"task: addition\n", f"method={word}")
        assert config is not None
        assert config.method == word
    config = loaded(folder, b"task: addition\n", "optim.lr=3e-4")
    assert config is not None
    assert config.optim.lr == 3e-4


@pytest.mark.parametrize("source", ["\0", "x" * 5000, ".", "/", "/dev/null", ""])
def test_odd_sources(source: str) -> None:
    with pytest.raises(InputError):
        load_config(source)


# ── methods ─────────────────────────────────────────────────────────────────────────────────────────────────────────
SETTINGS = sorted({name for entry in CATALOGUE.values() for name in entry.settings})
part_names = st.sampled_from(sorted({name for kind in PARTS.values() for name in kind}))
part_maps = st.dictionaries(st.sampled_from(["low", "high", "coef", "scale"]), values, max_size=2)
part_specs = part_names | values | st.builds(lambda name, more: {"part": name, **more}, part_names, part_maps)
stages = st.dictionaries(
    st.sampled_from([*KINDS, "add", "greedy_baseline", "on_policy", "x"]),
    part_specs | st.lists(part_specs, max_size=2),
    max_size=3,
)


def composed(spec: Any) -> None:
    try:
        compose(spec)
    except InputError as error:
        check(error)


@settings(FAST, max_examples=300)
@given(st.sampled_from(sorted(CATALOGUE)), st.dictionaries(st.sampled_from(SETTINGS), values, max_size=2))
def test_any_settings_of_any_method(name: str, chosen: dict[str, Any]) -> None:
    known = {key: value for key, value in chosen.items() if key in CATALOGUE[name].settings} or chosen
    composed({"name": name, **known})


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_every_setting_of_every_method_with_a_strange_value(name: str) -> None:
    for key in CATALOGUE[name].settings:
        for value in (None, "x", float("nan"), [], {}, -1, 10**400, "\ud800"):
            composed({"name": name, key: value})


@settings(FAST, max_examples=300)
@given(st.sampled_from(["grpo", "ppo", "dapo"]), stages)
def test_any_exchange_of_parts(base: str, chosen: dict[str, Any]) -> None:
    composed({"base": base, **chosen})


@FAST
@given(values | stages)
def test_any_method_specification(spec: Any) -> None:
    composed(spec)


CODE = {
    "syntax": "def f(:\n",
    "raises": "raise RuntimeError('no')\n",
    "exits": "import sys\nsys.exit(3)\n",
    "imports": "import a_module_that_is_nowhere\n",
    "empty": "",
    "number": "f = 3\n",
    "class": "class f:\n    pass\n",
    "nul": "f = '\0'\n",
    "latin": "f = '\xe9'\n",
    "recursive": "def f(*a, **k):\n    return f(*a, **k)\n",
    "wants": "def f(x, y):\n    return 0.0\n",
}


@pytest.mark.parametrize("name", CODE)
@pytest.mark.parametrize("load", [load_reward, compose])
def test_files_with_code_that_does_not_work(folder: Path, name: str, load: Any) -> None:
    path = folder / f"{name}_{load.__name__}.py"
    path.write_bytes(CODE[name].encode("latin-1"))
    try:
        load(f"{path}:f")
    except InputError as error:
        check(error)


@pytest.mark.parametrize(
    "spec", ["nowhere:f", "json:nothing", ":", "a:", ":b", "x.py:f", "\0:f", "a b:f", "os:path", "..:f"]
)
@pytest.mark.parametrize("load", [load_reward, compose])
def test_odd_import_paths(spec: str, load: Any) -> None:
    with pytest.raises(InputError):
        load(spec)


@FAST
@given(
    values
    | st.lists(
        st.builds(lambda name, weight: {"name": name, "weight": weight}, texts | st.just("exact_match"), values),
        max_size=3,
    )
)
def test_any_reward_specification(spec: Any) -> None:
    try:
        load_reward(spec)
    except InputError as error:
        check(error)


def test_the_schema_is_covered() -> None:
    assert {"optim.lr", "model.lora.r", "run.keep", "reward.timeout", "eval.k"} <= set(KEYS)
    assert json.dumps(KEYS)
