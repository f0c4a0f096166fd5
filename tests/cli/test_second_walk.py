"""What a second walk as a new user found: models that do not fit their files, findings that mislead, options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.core.errors import InputError
from grouprl.monitor.health import examine
from grouprl.monitor.history import HealthFacts
from grouprl.policy import build_tiny, load_policy
from grouprl.storage.run_folder import cannot_be_made
from grouprl.training.starting import choose


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    network, tokenizer = build_tiny("0123456789+=|", hidden=16, layers=2, heads=2, intermediate=16, max_positions=64)
    network.save_pretrained("model")
    tokenizer.save_pretrained("model")
    return tmp_path / "model"


def refused(command: str, *more: str) -> str:
    done = CliRunner().invoke(app, [command, "addition", "--set", "model=./model", *more, "--json"])
    assert done.exit_code == 2, done.output
    assert not Path("runs").exists()
    return json.loads(done.stdout)["error"]["message"]


def not_loaded(model: Path) -> str:
    with pytest.raises(InputError) as error:
        load_policy(str(model))
    return str(error.value)


def configured(model: Path, **settings: int) -> None:
    file = model / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


def test_weights_that_do_not_fit_the_configuration_are_refused_by_plan_and_loading(model: Path) -> None:
    configured(model, num_hidden_layers=3)  # the third would be random numbers
    for said in (refused("plan"), not_loaded(model)):
        assert "does not fit its configuration" in said
        assert "model.layers.2." in said
    configured(model, num_hidden_layers=2, intermediate_size=24)
    for said in (refused("plan"), not_loaded(model)):
        assert "24" in said
        assert "16" in said


def test_weights_that_are_missing_are_refused_by_plan_and_loading(model: Path) -> None:
    load_policy(str(model))  # whole as it is
    weights = load_file(model / "model.safetensors")
    save_file({"head.weight": weights.popitem()[1], **weights}, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="which would be random numbers"):
        load_policy(str(model))  # here names differ, so that only loading tells
    (model / "model.safetensors").unlink()
    assert "has no weights" in refused("plan")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model-2.safetensors")}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    for said in (refused("plan"), not_loaded(model)):
        assert "lacks model-2.safetensors" in said


def test_adapters_of_no_module_are_refused_by_the_plan(model: Path) -> None:
    pytest.importorskip("peft")
    assert "at least one name" in refused("plan", "--set", "model.lora={target_modules: []}")


def evaluation(step: int, right: float, prompts: int = 64, reward: float | None = None) -> dict[str, float | str]:
    values = {"reward": right if reward is None else reward, "pass@1": right, "greedy": right}
    ends = (("", 0.0), ("_low", -0.03), ("_high", 0.03))
    found = {f"eval/{name}{end}": value + more for name, value in values.items() for end, more in ends}
    return {"phase": "eval", "step": step, "eval/prompts": prompts, **found}


def keys(*evaluations: dict[str, float | str]) -> set[str]:
    last = int(evaluations[-1]["step"])
    steps = [
        {"phase": "train", "step": s, "grad_norm": 0.5, "lr": 1e-3, "reward_mean": 0.5} for s in range(1, last + 1)
    ]
    return {each.code for each in examine([evaluations[0], *steps, *evaluations[1:]], HealthFacts()) if each.persists}


def test_a_run_that_has_solved_its_task_is_not_told_that_it_stands_still() -> None:
    solved = (evaluation(0, 0.5), evaluation(20, 0.996), evaluation(30, 0.996))
    assert "stands_still" not in keys(*solved)
    assert "stands_still" in keys(evaluation(0, 0.5), evaluation(20, 0.8), evaluation(30, 0.8))
    assert "stands_still" in keys(*(evaluation(step, 0.996, reward=1.2) for step in (0, 20)))  # graded: there is more


def test_a_gain_over_the_first_evaluation_counts_however_many_prompts_it_had() -> None:
    first = evaluation(0, 0.52, prompts=1024)
    assert "no_gain" not in keys(first, evaluation(10, 0.84), evaluation(30, 0.85))
    assert "no_gain" in keys(first, evaluation(10, 0.52), evaluation(30, 0.53))
    assert "no_gain" in keys(first, evaluation(10, 0.90), evaluation(30, 0.70))  # worse than it was


def test_a_setting_given_as_an_option_is_told_how_it_is_given() -> None:
    done = CliRunner().invoke(app, ["train", "addition", "--steps", "3", "--json"])
    assert done.exit_code == 2
    assert "--set steps=" in json.loads(done.stdout)["error"]["message"]
    done = CliRunner().invoke(app, ["plan", "addition", "--lr", "3", "--json"])
    assert "--set optim.lr=" in json.loads(done.stdout)["error"]["message"]
    done = CliRunner().invoke(app, ["plan", "addition", "--run", "3", "--json"])
    assert "a section of settings: --set run.KEY=" in json.loads(done.stdout)["error"]["message"]
    assert "--set" not in CliRunner().invoke(app, ["tasks", "--steps", "3", "--json"]).stdout


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc")
def test_a_folder_in_which_nothing_can_be_made_is_known_before_the_run(tmp_path: Path) -> None:
    assert "nothing can be made in /proc" in cannot_be_made(Path("/proc/x"))
    assert cannot_be_made(tmp_path / "a" / "b") == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("temperature", "words"), [("1e-30", "greedy"), ("1e30", "uniform"), ("1.0", "")])
def test_the_plan_says_where_a_temperature_leaves_nothing_to_chance_or_all(temperature: str, words: str) -> None:
    done = CliRunner().invoke(app, ["plan", "addition", "--set", f"sampling.temperature={temperature}", "--json"])
    said = [note for note in json.loads(done.stdout)["notes"] if "sampling.temperature" in note]
    assert [words in note for note in said] == ([True] if words else [])


FORKS = """
import os
from types import SimpleNamespace
from grouprl.envs.environment_pool import Environments
from grouprl.rewards.contract import call_reward

def forks(completion, *_):
    os.fork()
    return 1.0

async def later(completion):
    return forks(completion)

found = call_reward(forks, ["a", "b"], [{}, {}], ["1", "2"]) + call_reward(later, ["a"], [{}], ["3"])
held = Environments(lambda: SimpleNamespace(reset=forks))
held.call("reset", 0, (None, 0))
print("came here", found, flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_that_a_reward_or_an_environment_forks_never_goes_on_with_the_run() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["came here [1.0, 1.0, 1.0]"], done.stderr
    assert done.stderr.count("a process that the reward forked came back from it; it is ended") == 3
    assert done.stderr.count("a process that the environment forked came back from it; it is ended") == 1


def test_a_file_that_names_its_run_folder_resumes_that_run(model: Path) -> None:
    done = model.parent / "out"
    settings = {"task": "addition", "model": str(model), "steps": 2, "run": {"folder": str(done)}}
    (model.parent / "run.yaml").write_text(json.dumps(settings))
    done.mkdir()
    (done / "config.yaml").write_text(json.dumps(settings))
    assert choose("run.yaml", [], None, resume=True).folder == done
    assert choose("run.yaml", ["steps=4"], None, resume=True).folder == done
