"""Engines by name: a configuration chooses what samples, and is told where it cannot."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from grouprl.config.run import load_config, parse_config
from grouprl.core.errors import InputError
from grouprl.orchestrator.asynchronous.sync import SharedMemorySync
from grouprl.orchestrator.resolve import resolve
from grouprl.plan.plan import plan
from grouprl.policy import load_policy
from grouprl.rollout.canary_tokens import canary_tokens
from grouprl.rollout.engines import ENGINES, LOCAL, chosen_engine, local_engine, register_engine
from grouprl.testing import check_sync
from grouprl.training.loop import train

CAREFUL = """
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from grouprl.rollout.local.sampler import LocalSampler


class Careful:
    exact = False

    def __init__(self, policy, log="told.txt"):
        self.local, self.log = LocalSampler(policy), Path(log)

    @property
    def version(self):
        return self.local.version

    def publish(self, version, policy):
        self.local.publish(version, policy)
        with self.log.open("a") as file:
            file.write(f"{version} ")

    def sample(self, requests):
        return replace(self.local.sample(requests), exact=False)

    def session(self):
        return nullcontext(self)


class Sure(Careful):
    exact = True


def half(policy):
    return LocalSampler


def broken(policy):
    raise OSError("no such server")


number = 3
"""
RUN: dict[str, Any] = {
    "task": {"name": "reverse", "length": 2},
    "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
    "steps": 3,
    "batch": {"prompts": 4, "group_size": 4},
    "eval": {"every": 0, "prompts": 4, "final_prompts": 4},
}


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The file of engines; the working directory is its folder."""
    (tmp_path / "engines_of_mine.py").write_text(CAREFUL)
    monkeypatch.chdir(tmp_path)
    before = dict(ENGINES)
    yield "engines_of_mine.py"
    ENGINES.clear()
    ENGINES.update(before)


def run(folder: Path, engine: str, *, async_steps: int = 0, resume: bool = False, **settings: Any) -> Path:
    changes = {"sampling": {"engine": engine, "engine_settings": settings}}
    config = parse_config({**RUN, **changes, "run": {"threads": 1, "async_steps": async_steps}})
    return train(config, folder=folder, resume=resume, console=Console(file=io.StringIO())).folder


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def test_a_run_samples_with_the_engine_that_its_file_names(engines: str, tmp_path: Path) -> None:
    folder = run(tmp_path / "run", f"{engines}:Careful", log="mine.txt")
    assert (tmp_path / "mine.txt").read_text().split() == ["0", "1", "2", "3"]
    assert load_config(str(folder / "config.yaml")).sampling.engine == f"{tmp_path / engines}:Careful"
    assert str(tmp_path / engines) in json.loads((folder / "run.json").read_text())["code"]


def test_an_asynchronous_run_samples_with_it_in_its_own_process(engines: str, tmp_path: Path) -> None:
    folder = run(tmp_path / "run", f"{engines}:Sure", async_steps=1, log=str(tmp_path / "child.txt"))
    told = (tmp_path / "child.txt").read_text().split()
    assert {"0", "1", "2"} <= set(told)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["phase"] == "train"] == [1, 2, 3]


def test_a_registered_name(engines: str, tmp_path: Path) -> None:
    register_engine("mine")(local_engine)
    assert weights(run(tmp_path / "mine", "mine")) == weights(run(tmp_path / "local", LOCAL))
    with pytest.raises(InputError, match="'mine' is already registered"):
        register_engine("mine")(dict)


@pytest.mark.parametrize(
    ("engine", "settings", "said"),
    [
        ("locl", {}, "Engines are local.*Did you mean 'local'"),
        ("{file}:Carful", {}, "Careful"),
        ("{file}:number", {}, "is int"),
        ("{file}:Careful", {"logs": "x"}, "engine_settings.*logs"),
        (LOCAL, {"rows": 3}, "engine_settings.*rows"),
    ],
)
def test_what_is_no_engine_is_refused_before_the_run(engines: str, engine: str, settings: Any, said: str) -> None:
    sampling = {"engine": engine.format(file=engines), "engine_settings": settings}
    with pytest.raises(InputError, match=rf"(?s){said}"):
        plan(parse_config({**RUN, "sampling": sampling}))


@pytest.mark.parametrize(("name", "said"), [("half", "has no exact|no version"), ("broken", "OSError: no such server")])
def test_an_engine_that_fails_or_lacks_something_is_named(engines: str, name: str, said: str) -> None:
    with pytest.raises(InputError, match=f"the engine '{engines}:{name}'.*({said})"):
        chosen_engine(f"{engines}:{name}", {})(None)


@pytest.mark.parametrize(("name", "exact"), [("Careful", False), ("Sure", True), ("half", False)])
def test_the_plan_believes_what_the_class_says(engines: str, name: str, exact: bool) -> None:
    config = parse_config({**RUN, "sampling": {"engine": f"{engines}:{name}"}})
    assert resolve(config).exact is exact
    assert any("by the engine" in note for note in plan(config).notes)


def test_the_fingerprint_of_a_local_run_is_as_before() -> None:
    plain = parse_config(RUN)
    assert parse_config({**RUN, "sampling": {"engine": LOCAL}}).fingerprint() == plain.fingerprint()
    assert parse_config({**RUN, "sampling": {"engine": "x:Y"}}).fingerprint() != plain.fingerprint()


def test_shared_memory_brings_weights_as_the_protocol_says() -> None:
    policy = load_policy("tiny", alphabet="ab", hidden=16, layers=1, heads=2, intermediate=32)
    sync = SharedMemorySync(policy, remembered=3, canary=canary_tokens(policy))
    check_sync(sync, policy)
    sync.close()
