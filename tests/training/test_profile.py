"""The profile of a step: exclusive times, counted arithmetic, and that it changes nothing."""

import ast
import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

import grouprl
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.core.spans import hearing, listening, span, spanned
from grouprl.policy import Tokens, build_tiny
from grouprl.policy.language.arithmetic import RATES, Matrices, backward, operations, rate, timed
from grouprl.training import loop, profile
from grouprl.training.profile import INSIDE_SAMPLING, PARTS, STEP, Clock, Profile, Work
from grouprl.training.profile_table import WORDS, profile_rows


@pytest.fixture
def ticking(monkeypatch):
    """A clock that moves by hand."""
    now = [0.0]
    monkeypatch.setattr(profile.time, "perf_counter", lambda: now[0])
    return now


class Timed:
    """A listener that hands spans to a clock."""

    def __init__(self):
        self.clock = Clock(torch.device("cpu"))

    def enter(self, name):
        self.clock.enter(name)

    def leave(self, name):
        self.clock.leave()

    def note(self, what, facts):
        raise AssertionError


def test_times_are_exclusive_and_inner_parts_take_their_place(ticking):
    def wait(seconds):
        ticking[0] += seconds

    product = spanned("products")(lambda: wait(2))
    write = spanned("decode: other")(lambda: (wait(1), product(), wait(3)))
    prefill = spanned("prefill")(lambda: (wait(5), product()))
    timed = Timed()
    with listening(timed):
        spanned("step")(lambda: (wait(10), write(), prefill(), product()))()
    assert timed.clock.seconds == {"other": 12.0, "decode: other": 4.0, "decode: products": 2.0, "prefill": 7.0}


def test_a_part_that_raises_is_closed(ticking):
    timed = Timed()
    with pytest.raises(ValueError), listening(timed), span("score"):
        ticking[0] += 1
        raise ValueError
    assert timed.clock.seconds == {"score": 1.0}
    assert not timed.clock.inside("score")


def tiny():
    model, _ = build_tiny("abcd", hidden=8, layers=2, heads=2, kv_heads=1, intermediate=12)
    return model


def test_matrices_are_those_of_the_layers():
    found = Matrices.of(tiny())
    # q and o [8,8], k and v [8,4], gate and up [8,12], down [12,8]; in both layers
    assert dict(found.inner) == {(8, 8): 4, (8, 4): 4, (8, 12): 4, (12, 8): 2}
    assert found.head == (8, tiny().config.vocab_size)
    assert (found.layers, found.width) == (2, 8)
    per_token = 2 * 2 * (2 * 64 + 2 * 32 + 3 * 96)
    assert operations(found.forward(10, 0)) == pytest.approx(10 * per_token)
    assert operations(found.forward(0, 3)) == pytest.approx(3 * 2 * 8 * found.head[1])
    assert found.attention(5, 7) == 4 * 7 * 8 * 2 * 5


def test_backward_costs_two_products_of_the_same_size():
    assert backward({(5, 3, 2): 4}) == {(5, 2, 3): 4, (3, 5, 2): 4}
    assert timed({(5, 3, 2): 4}, lambda shape: 10.0) == 2 * 5 * 3 * 2 * 4 / 10


def test_rate_is_positive_and_remembered():
    assert rate((8, 4, 2)) == rate((8, 4, 2)) == RATES[(8, 4, 2), "cpu", torch.get_num_threads(), torch.float32] > 0


def test_work_counts_distinct_histories_once_and_no_last_token():
    work, matrices = Work(Matrices.of(tiny())), Matrices.of(tiny())
    tokens = Tokens.of([[1, 2, 3]] * 2 + [[4]], [[5, 6], [5], [6, 7, 8, 9]])
    work.sample(tokens)
    work.run(tokens, gradient=True)
    alike = Work(Matrices.of(tiny()))
    alike.sample(Tokens.of([[1, 2, 3]] * 3 + [[4]], [[5, 6], [5, 6], [5], [6, 7, 8, 9]]))
    assert alike.products["decode: products"] == work.products["decode: products"]
    assert alike.attention == {name: work.attention[name] for name in ("prefill", "decode: products")}
    assert work.attention["decode: products"] == matrices.attention(1, 3.5) + matrices.attention(3, 2.5)
    assert operations(work.products["prefill"]) == pytest.approx(operations(matrices.forward(4, 2)))
    assert operations(work.products["decode: products"]) == pytest.approx(operations(matrices.forward(4, 4)))
    forward = operations(matrices.forward(4 + 4, 7))
    assert operations(work.products["forward"]) == pytest.approx(forward)
    assert operations(work.products["backward"]) == pytest.approx(2 * forward)
    assert work.attention["backward"] == 2 * work.attention["forward"]


def config(**changes):
    return parse_config(
        {
            "task": {"name": "addition", "digits": 1},
            "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
            "steps": 4,
            "warmup": {"steps": 5, "batch": 8},
            "batch": {"prompts": 4, "group_size": 4},
            "eval": {"every": 0, "prompts": 4, "final_prompts": 4},
            "run": {"threads": 1},
            **changes,
        }
    )


def launch(folder, **options):
    console = Console(file=io.StringIO(), width=100)
    loop.train(config(**options.pop("settings", {})), folder=folder, console=console, **options)
    return console.file.getvalue()


def test_a_profiled_run_has_the_same_results_and_leaves_a_table(tmp_path):
    plain, text = launch(tmp_path / "plain"), launch(tmp_path / "profiled", profile=2)
    assert hearing() is None
    assert "Where" not in plain
    assert "Where 2 steps went" in text
    assert "decode: attention" in text
    data = json.loads((tmp_path / "profiled" / "profile.json").read_text())
    assert data["steps"] == 2
    for part in ("prefill", "decode: products", "decode: attention", "decode: sampling", "score", "records"):
        assert data["seconds"][part] > 0
    assert data["total"] == pytest.approx(sum(data["seconds"].values()))
    assert 0 < data["useful"] < 1
    assert "what it is" in (tmp_path / "profiled" / "profile.md").read_text()
    model = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("plain", "profiled")]
    assert model[0] == model[1]


def test_a_model_run_by_transformers_is_divided_too(tmp_path):
    launch(tmp_path / "run", profile=1, settings={"model": {**config().model.model_dump(), "engine": "transformers"}})
    data = json.loads((tmp_path / "run" / "profile.json").read_text())
    assert data["engine"] == "transformers"
    assert data["seconds"]["decode: attention"] > 0
    assert data["seconds"]["decode: products"] > 0


def test_too_short_a_run_says_so(tmp_path):
    assert "No step was profiled" in launch(tmp_path / "run", profile=3, settings={"steps": 2})


def test_only_a_language_model_is_profiled():
    with pytest.raises(InputError, match="--profile with object"):
        Profile(object(), 1)


def spans_in_code():
    """Every name that hot code gives a span."""
    files = Path(grouprl.__file__).parent.rglob("*.py")
    calls = (node for path in files for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    names = [c.args[0] for c in calls if getattr(c.func, "id", "") in ("span", "spanned")]
    return {name.value for name in names if isinstance(name, ast.Constant)}


def test_every_span_is_a_part_of_the_profile():
    inside = {f"decode: {name}" for name in INSIDE_SAMPLING}
    assert spans_in_code() - set(INSIDE_SAMPLING) - {STEP} == set(PARTS) - inside - {"other"}


def test_every_part_is_explained():
    assert set(WORDS) == set(PARTS)
    data = {
        "seconds": {"score": 1.0, "advantages": 0.0},
        "total": 2.0,
        "products_alone": {"score": 0.5},
        "useful": 0.25,
    }
    assert [row[:5] for row in profile_rows(data)] == [
        ["score", "1000.0", "50.0%", "500.0", "50%"],
        ["a step", "2000.0", "100%", "500.0", "25%"],
    ]
