"""The benchmark's own arithmetic and its turn-taking; nothing here depends on how fast the machine is."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import floor
import gate
import report
import rewards
from gate import Worker
from grouprl.config.run import parse_config
from jobs import JOBS, A, smaller
from race import Race, spread
from warm import warm_folder

ECHO = """
import sys
sys.path.insert(0, {bench!r})
from gate import Gate
gate = Gate()
print("noise on the standard output")
gate.ready()
for number in range(2):
    gate.wait()
    gate.step_done({{"number": number}})
"""


def test_products_of_a_step_are_those_counted_by_hand(monkeypatch):
    monkeypatch.setattr(floor, "rate", lambda shape: 1.0)
    job = smaller(A)  # 2 prompts x 4 completions, d = 64, f = 176, 3 layers
    work = floor.Work(sampled=8 + 8 * 5, trained=48, rows_trained=8, prompts_trained=2, prompt_tokens=7, vocabulary=10)
    found = floor.floor_of(job, work)
    per_token = 2 * 3 * (64 * 3 * 64 + 64 * 64 + 64 * 2 * 176 + 176 * 64)
    per_logits = 2 * 64 * 10
    look_back = 4 * (7 + 48 / 8 / 2) * 64 * 3
    reading, decoded, learning = 2 * 7, 40, 2 * 7 + 40
    rollout = (reading + decoded) * per_token + (2 + decoded) * per_logits + look_back * (reading / 2 + decoded)
    training = 3 * (learning * per_token + 48 * per_logits + look_back * learning)
    assert found.rollout == pytest.approx(rollout)
    assert found.training == pytest.approx(training)
    assert found.operations == pytest.approx(found.seconds)


@pytest.mark.parametrize(
    ("completion", "value"),
    [("0516|175", 1.0), ("|175", 1.0), ("|174", 0.0), ("175", 0.0), ("|0175++++", 1.0), ("|", 0)],
)
def test_sum_after_bar(completion, value):
    assert rewards.sum_after_bar(completion, answer="175", other="column") == value


def test_even_digits_is_a_share():
    assert rewards.even_digits("0123|") == 2 / 5
    assert rewards.even_digits("") == 0.0


def test_ratios_are_taken_pair_by_pair():
    race = Race([{"wall": 1.0}, {"wall": 2.0}], [{"wall": 3.0}, {"wall": 2.0}], (0, 0), (0, 0))
    assert race.ratios("wall") == [3.0, 1.0]


def test_spread_is_the_quartiles():
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == (1.5, 4.5)
    assert spread([2.0]) == (2.0, 2.0)


@pytest.mark.parametrize("name", list(JOBS))
def test_every_job_is_a_valid_configuration(name):
    job = JOBS[name]
    config = parse_config(job.config("folder", 3))
    assert config.batch.prompts * config.batch.group_size == job.rows
    assert config.updates_per_rollout == 1


def test_worker_takes_a_step_per_turn_whatever_it_prints(tmp_path):
    script = tmp_path / "echo.py"
    script.write_text(ECHO.format(bench=str(Path(floor.__file__).parent)))
    with Worker(str(script), log=tmp_path / "log") as worker:
        assert 0 < worker.start["rss_mb"] < 200
        first = worker.step()
        assert first["number"] == 0
        assert first["wall"] > 0
        assert worker.step()["number"] == 1
        with pytest.raises(RuntimeError, match="noise on the standard output"):
            worker.step()


def test_peak_memory_grows_with_what_is_held():
    """In a process of its own: a peak is that of the whole process, whatever ran in it before."""
    code = "from gate import peak_mb; before = peak_mb(); held = bytearray(2**28); print(peak_mb() - before)"
    folder = Path(gate.__file__).parent
    grown = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True).stdout
    assert float(grown) == pytest.approx(256, abs=16)


def test_the_library_s_worker_steps_on_a_warmed_model(tmp_path):
    job = smaller(A)
    model = warm_folder(job, tmp_path / "model")
    written = (model / "model.safetensors").stat().st_mtime_ns
    assert warm_folder(job, model) == model
    assert (model / "model.safetensors").stat().st_mtime_ns == written
    with Worker("ours.py", "A mixed", str(model), str(tmp_path / "run"), "2", "quick", log=tmp_path / "log") as worker:
        step = worker.step()
    assert step["tokens"] >= job.rows
    assert step["rows_trained"] > 0
    assert step["wall"] >= step["seconds_rollout"] + step["seconds_update"]


def test_markdown_has_a_line_per_row():
    assert report.markdown(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
