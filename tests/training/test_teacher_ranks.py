"""A reference of other weights on several ranks, in parts as the policy is: a larger teacher, an average of models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

import rank_memory
import rank_runs
from ranks import run_on_ranks

SCRIPTS = Path(__file__).parents[1] / "support"
WAYS = {
    2: ("minillm", "minillm+lora", "minillm+tensor", "minillm+context+packed+anew", "minillm+offload"),
    3: ("minillm+context+all",),
}
"""Matrices cut by two ranks; rows shared by all, laid out for the teacher as for the policy or in another way."""


@pytest.mark.parametrize("ranks", [2, 3])
def test_steps_with_a_larger_teacher_are_those_of_one_process(ranks: int) -> None:
    found = json.loads(run_on_ranks(SCRIPTS / "rank_steps.py", ranks, *WAYS[ranks]).splitlines()[-1])["found"]
    assert set(found) == set(WAYS[ranks])
    for way, apart in found.items():
        assert apart["moved"] > 1e-3, way
        assert apart["kl"] > 1e-2, "there is something to learn"
        for what in ("weights", "metrics", "logp", "teacher"):
            assert apart[what] < 1e-12, (way, what, apart)
        assert apart["held"] < 1.1 / ranks, "rank 0 holds its part of the teacher alone"


def taught(folder: Path) -> Path:
    """The configuration of a run with a larger teacher."""
    teacher = rank_runs.save_model(folder / "teacher", seed=3, width=24, layers=3)
    model = {"name": str(rank_runs.save_model(folder / "gpt2")), "dtype": "float64", "reference": str(teacher)}
    return rank_runs.write_config(folder, model=model, method="minillm")


def test_a_run_with_a_larger_teacher_is_that_of_one_process_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    config = taught(tmp_path)
    rank_runs.train_on(1, config, tmp_path / "one", "-q")
    rank_runs.train_on(2, config, tmp_path / "two", "-q")
    for what, apart in rank_runs.apart(tmp_path / "one", tmp_path / "two").items():
        assert apart < 1e-12, what
    kept = [load_file(tmp_path / run / "reference.safetensors") for run in ("one", "two")]
    assert kept[0].keys() == kept[1].keys()
    assert all((x == kept[1][name]).all() for name, x in kept[0].items())
    codes, said = rank_runs.on_ranks(2, config, tmp_path / "killed", "-q", fault="1 backward 9 kill")
    assert codes[0] == 3, said
    weights = next((tmp_path / "teacher").glob("*.safetensors"))
    rank_runs.save_model(tmp_path / "teacher", seed=4, width=24, layers=3)
    assert weights.is_file(), "other weights in the folder: the run has kept its own"
    rank_runs.train_on(2, config, tmp_path / "killed", "-q", "--resume")
    assert rank_runs.evidence(tmp_path / "killed") == rank_runs.evidence(tmp_path / "two"), "byte for byte"


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 3)])
def test_a_run_with_a_larger_teacher_continues_on_another_number_of_ranks(
    first: int, then: int, tmp_path: Path
) -> None:
    config = taught(tmp_path)
    rank_runs.train_on(1, config, tmp_path / "one", "-q")
    codes, said = rank_runs.on_ranks(first, config, tmp_path / "moved", "-q", fault="0 metrics 7 int")
    assert codes[0] == 130, said
    rank_runs.train_on(then, config, tmp_path / "moved", "--resume", "-q")
    for what, apart in rank_runs.apart(tmp_path / "one", tmp_path / "moved").items():
        assert apart < 1e-12, what


def test_an_average_of_models_beside_a_critic_is_that_of_one_process(tmp_path: Path) -> None:
    other = rank_runs.save_model(tmp_path / "other", seed=5)
    soup = {"initial": 0.25, str(other): 0.75}
    model = {"name": str(rank_runs.save_model(tmp_path / "gpt2")), "dtype": "float64", "reference": soup}
    config = rank_runs.write_config(tmp_path, model=model, method={"name": "ppo", "kl_coef": 0.05}, steps=2)
    for ranks in (1, 2):
        rank_runs.train_on(ranks, config, tmp_path / f"r{ranks}", "-q")
    for what, apart in rank_runs.apart(tmp_path / "r1", tmp_path / "r2").items():
        assert apart < 1e-12, what
    rows = [row for row in rank_runs.metrics(tmp_path / "r2") if row["phase"] == "train"]
    assert max(abs(row["kl_ref"]) for row in rows) > 1e-3


@pytest.mark.parametrize(
    ("reference", "said"), [({"initial": 0.5, "LARGER": 0.5}, "averaged"), ({"FOREIGN": 1.0}, "another tokenizer")]
)
def test_what_is_refused_in_one_process_is_refused_on_ranks(
    reference: dict[str, float], said: str, tmp_path: Path
) -> None:
    from grouprl.policy.language.tiny import char_tokenizer

    rank_runs.save_model(tmp_path / "LARGER", seed=3, width=24)
    rank_runs.save_model(tmp_path / "FOREIGN", seed=3)
    char_tokenizer(rank_runs.ALPHABET[::-1]).save_pretrained(tmp_path / "FOREIGN")
    guides = {name if name == "initial" else str(tmp_path / name): share for name, share in reference.items()}
    model = {"name": str(rank_runs.save_model(tmp_path / "gpt2")), "dtype": "float64", "reference": guides}
    config = rank_runs.write_config(tmp_path, model=model, warmup={"steps": 0})
    codes, words = rank_runs.on_ranks(2, config, tmp_path / "run", "-q")
    assert codes[0] == 2, words
    assert said in " ".join(words.split())
    assert "Traceback" not in words


def test_a_plan_knows_what_ranks_gather_of_a_teacher(tmp_path: Path) -> None:
    """Beside the layers of the policy, and held against what ranks take at most."""
    model = str(rank_memory.write_model(tmp_path, "20M"))
    peaks = []
    for more in ([], ["teacher"]):
        said = run_on_ranks(SCRIPTS / "rank_memory.py", 2, model, *more)
        (found,) = json.loads(said.splitlines()[-1]).values()
        peaks.append(max(found["step"]))
    plans = [rank_memory.planned("model-20M", 2, teacher=teacher) for teacher in (False, True)]
    print(peaks, plans)
    for peak, planned in zip(peaks, plans, strict=True):
        # What a process takes besides varies by some ten MiB with the load of the machine; a teacher is 64 of them.
        assert planned == pytest.approx(peak, rel=0.1, abs=30 * rank_memory.MIB)
