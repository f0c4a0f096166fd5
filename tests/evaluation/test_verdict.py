"""What a stranger is told first: the verdict of a run, marks of graded rewards, refusals that do not wait."""

from __future__ import annotations

import io
import json
import os
import socket
import time
from pathlib import Path

import pyarrow.parquet
import pytest
from rich.console import Console

import grouprl
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.experiments.pilot import finals
from grouprl.experiments.result import measure_of
from grouprl.experiments.run_outcome import RunOutcome
from grouprl.monitor.health import examine
from grouprl.monitor.history import HealthFacts
from grouprl.monitor.outcome import verdict
from grouprl.monitor.summary import summary_table
from grouprl.policy.language.hub import check_on_hub
from grouprl.storage.run_folder import RunFolder
from grouprl.tasks import environments, load_task
from grouprl.tasks.rows import LONGEST
from grouprl.training.loop import train
from grouprl.training.opening import resume
from grouprl.view.charts import whole_ticks
from grouprl.view.report import write_report

TINY = {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "max_positions": 64}}


def evaluated(half: float = 0.03, graded: bool = False, **values: float) -> dict:
    ends = {"": 0.0, "_low": -half, "_high": half}
    numbers = {f"eval/{name}{end}": value + by for name, value in values.items() for end, by in ends.items()}
    return {**numbers, "eval/graded": float(graded)}


def quiet() -> Console:
    return Console(file=open(os.devnull, "w"))


# --- the verdict --------------------------------------------------------------------------------------------------


def test_a_run_learned_if_the_interval_of_the_difference_is_above_zero() -> None:
    before, after = evaluated(**{"pass@1": 0.29}), evaluated(**{"pass@1": 0.97})
    found = verdict(before, after)
    assert found.kind == "learned"
    assert found.words == "Learned: held-out sampled pass@1 0.29 → 0.97, difference +0.68 [+0.64, +0.72]."
    assert verdict(after, before).kind == "worse"
    still = evaluated(half=0.001, **{"pass@1": 0.29})
    assert "difference +0.00 [+0.00, +0.00]" in verdict(still, still).words
    assert verdict(before, before).kind == "unclear"
    assert verdict(before, evaluated(**{"pass@1": 0.33})).kind == "unclear"  # 0.04 less 0.03·√2 is below 0
    assert verdict(before, evaluated(**{"pass@1": 0.34})).kind == "learned"


def test_sums_that_differ_by_rounding_show_no_gain() -> None:
    point = {"eval/reward": 3.5, "eval/reward_low": 3.5, "eval/reward_high": 3.5, "eval/graded": 1.0}
    for by, kind in ((4.4e-16, "unclear"), (-4.4e-16, "unclear"), (1e-3, "learned"), (-1e-3, "worse")):
        gain = {f"eval/reward_gain{end}": by for end in ("", "_low", "_high")}
        assert verdict(point, {**point, **gain}).kind == kind


def test_a_method_that_samples_in_proportion_to_rewards_is_not_judged_by_their_mean() -> None:
    before, after = ({**evaluated(reward=mean, graded=True), "eval/proportional": 1.0} for mean in (0.3, -1.7))
    found = verdict(before, after)
    assert found.kind == "unclear"
    assert found.words.startswith("Held-out mean reward 0.30 → -1.70, difference -2.00")
    assert "in proportion to rewards" in found.words
    records = [before | {"phase": "eval", "step": 0, "eval/prompts": 4}]
    records += [{"phase": "train", "step": step, "lr": 0.1, "grad_norm": 1.0} for step in range(1, 31)]
    records += [after | {"phase": "eval", "step": 30, "eval/prompts": 4}]
    assert "no_gain" not in [each.code for each in examine(records, HealthFacts())]
    apart = [{name: x for name, x in record.items() if name != "eval/proportional"} for record in records]
    assert "no_gain" in [each.code for each in examine(apart, HealthFacts())]


def test_the_flow_methods_say_that_they_sample_in_proportion() -> None:
    aims = {name for name in grouprl.methods() if grouprl.method(name).objective.proportional}
    assert aims == {"vargrad", "tb", "db", "subtb"}


def test_graded_rewards_are_judged_by_their_mean() -> None:
    before = evaluated(graded=True, reward=0.05, **{"pass@1": 0.0})
    after = evaluated(graded=True, reward=0.78, **{"pass@1": 0.0})
    assert verdict(before, after).words.startswith("Learned: held-out mean reward 0.05 → 0.78")


def test_returns_are_judged_by_their_mean_although_a_threshold_says_which_are_right() -> None:
    before, after = (
        {**evaluated(reward=mean, **{"pass@1": 0.0, "greedy": 0.0}), "eval/returns": 1.0} for mean in (22.0, 180.0)
    )
    assert verdict(before, after).words.startswith("Learned: held-out mean reward 22.00 → 180.00")
    shown = Console(file=io.StringIO(), width=120)
    shown.print(summary_table(before, after))
    rows = [line.split()[0] for line in shown.file.getvalue().splitlines() if "[" in line]
    assert rows[:3] == ["mean", "greedy", "sampled"]
    numbers = {"reward": 22.0, "pass@1": 0.0, "returns": 1.0}
    outcome = RunOutcome((0.0,), {f"eval/{name}": (value,) for name, value in numbers.items()}, {}, {})
    assert measure_of([outcome], None) == "eval/reward"


def test_an_evaluation_of_an_environment_with_a_threshold_reports_its_returns(tmp_path) -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install 'grouprl[control]'")
    config = parse_config(
        {
            "task": {"name": "control:CartPole-v1", "horizon": 8},
            "model": {"name": "mlp", "settings": {"hidden": [4]}},
            "method": {"name": "ppo_control", "size": 16},
            "steps": 1,
            "batch": {"prompts": 2, "group_size": 1},
            "eval": {"every": 0, "final_prompts": 3},
            "run": {"threads": 1},
        }
    )
    train(config, folder=tmp_path / "run", console=quiet())
    after = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))["after"]
    assert (after["eval/graded"], after["eval/returns"]) == (0, 1)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "held-out mean reward" in page
    assert page.index("Held-out reward") < page.index("Correct episodes")
    assert page.index("<h3>Mean reward</h3>") < page.index("<h3>Right, greedy</h3>")


def test_a_run_without_an_end_has_no_verdict() -> None:
    one = evaluated(**{"pass@1": 0.29})
    assert verdict({}, one).kind == verdict(one, {}).kind == "unfinished"
    assert verdict(one, evaluated(greedy=0.5)).kind == "unfinished"  # nothing in common
    assert verdict({"eval/pass@1": 0.2}, one).kind == "unfinished"  # no interval


def test_steps_are_whole() -> None:
    assert whole_ticks(0, 1, 6) == [0, 1]
    assert whole_ticks(0, 3, 6) == [0, 1, 2, 3]
    assert whole_ticks(0, 100, 6) == [0, 20, 40, 60, 80, 100]


# --- a graded run is graded from then on ------------------------------------------------------------------------------

REWARD = """
def shades(completion):
    return 0.5 if completion.startswith("a") else 0.0


def plain(completion):
    return 0.0
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(REWARD)
    return tmp_path


def settings(function: str) -> dict:
    return {
        "task": {"name": "reverse", "length": 2},
        "model": TINY,
        "steps": 4,
        "batch": {"prompts": 1, "group_size": 2},
        "eval": {"every": 0, "final_prompts": 32},
        "reward": {"function": f"mine.py:{function}", "workers": 0},
        "run": {"threads": 1, "checkpoint_every": 2},
    }


def correct(run, step: int) -> set:
    return set(pyarrow.parquet.read_table(run / "rollouts" / f"step-{step:06d}.parquet")["correct"].to_pylist())


def test_a_step_of_zeros_in_a_graded_run_is_not_called_wrong(work) -> None:
    graded = train(parse_config(settings("shades")), folder=work / "graded", console=quiet()).folder
    rewards = [
        pyarrow.parquet.read_table(path)["reward"].to_pylist() for path in sorted(graded.glob("rollouts/*.parquet"))
    ]
    assert any(set(step) == {0.0} for step in rewards), "a step that by itself looks like right or wrong"
    assert all(correct(graded, step) == {None} for step in (1, 2, 3, 4))
    session = resume(graded)
    assert session.graded
    session.leave()
    plain = train(parse_config(settings("plain")), folder=work / "plain", console=quiet()).folder
    assert all(correct(plain, step) == {False} for step in (1, 2, 3, 4))


def test_the_page_has_a_verdict_every_stored_step_and_a_folded_configuration(work) -> None:
    run = train(parse_config(settings("shades")), folder=work / "graded", console=quiet()).folder
    page = write_report(run).read_text()
    assert page.index('class="verdict-line') < page.index('class="cards"')
    assert page.index("</header>") < page.index("<nav")  # beside the sections, so that it can stay while they scroll
    assert "position: sticky" in page
    assert "<details><summary>Resolved configuration" in page
    assert all(f"<summary>step {step} ·" in page and f"--step {step}</code>" in page for step in (1, 2, 3, 4))
    (run / "rollouts" / "step-000002.parquet").write_bytes(b"no table")
    assert "step 2: cannot be read" in write_report(run).read_text()


def test_the_components_of_a_reward_have_curves(tmp_path) -> None:
    records = [{"phase": "train", "step": s, "reward_mean": s, "reward/right": s, "reward/short": 1.0} for s in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    page = write_report(tmp_path).read_text()
    chart = page[page.index("Components of the reward") :]
    assert "right" in chart[:400]
    assert "short" in chart[:400]


def test_what_is_counted_has_a_chart_and_a_card_apart_from_rewards(tmp_path) -> None:
    """A gap in percent is no reward: on one axis with costs around -3 it would flatten them."""
    ends = {
        "eval/reward": -3.0,
        "eval/reward/turn_rewards": -3.0,
        "eval/reward/#gap_percent": 40.0,
        "eval/graded": True,
    }
    records: list[dict] = [{"phase": "eval", "step": step, **ends} for step in (0, 2)]
    records += [{"phase": "train", "step": s, "reward_mean": -s, "reward/#gap_percent": 50.0} for s in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "summary.json").write_text(json.dumps({"before": ends, "after": ends}))
    page = write_report(tmp_path).read_text()
    whole = page[page.index("Held-out reward") :]
    assert "gap_percent" not in whole[: whole.index("<svg")]
    assert "turn_rewards" not in whole[: whole.index("<svg")], "it is the reward itself"
    assert "Components of the reward" not in page
    apart = page[page.index("gap (%), counted, not paid") :]
    assert all(label in apart[: apart.index("<svg")] for label in ("training", "held out"))
    assert "Counted: gap (%)" in page
    assert "gap_percent" not in page


@pytest.mark.parametrize("largest", [0.0, 0.25])
def test_costs_say_what_they_are_and_nothing_of_rewards_of_1(largest: float, tmp_path) -> None:
    """No tour has a reward of 1, and a share of 0 beside its interval would be read as a measure of tours."""
    shares = {"eval/greedy": 0.0, "eval/pass@1": largest, "eval/pass@1_low": 0.0, "eval/pass@1_high": 0.3}
    ends = {"eval/reward": -3.0, "eval/graded": True, **shares}
    records: list[dict] = [{"phase": "eval", "step": step, **ends} for step in (0, 2)]
    records += [{"phase": "train", "step": s, "reward_mean": -s, "pass@1": 0.0} for s in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    said = {"before": ends, "after": ends, "reward_is": "minus the length"}
    (tmp_path / "summary.json").write_text(json.dumps(said))
    page = write_report(tmp_path).read_text()
    assert "Mean reward, minus the length" in page
    for words in ("Reward ≥ 1, greedy", "Reward ≥ 1, sampled (pass@1)", "with a reward of 1 or more"):
        assert (words in page) is (largest > 0), words


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_mistyped_run_is_refused_without_asking_the_hub(work, monkeypatch) -> None:
    def never(*args, **kwargs):
        raise AssertionError("somebody asked")

    monkeypatch.setattr(socket, "getaddrinfo", never)
    (work / "runs" / "addition-grpo-s0").mkdir(parents=True)
    (work / "runs" / "addition-grpo-s0" / "config.yaml").write_text("task: addition\n")
    for spec, words in (
        ("runs/addition-grpo-s9", "Did you mean runs/addition-grpo-s0"),
        ("runs/zzz", "It has addition"),
    ):
        begun = time.perf_counter()
        with pytest.raises(InputError, match=words):
            check_on_hub(spec)
        assert time.perf_counter() - begun < 30


def test_prompts_that_no_model_could_read_are_refused(tmp_path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": "x" * n, "answer": "1"}) for n in (3, LONGEST + 1)))
    with pytest.raises(InputError, match=r"line 2 .*has 1,000,001 characters"):
        load_task(f"jsonl:{path}")


def test_a_constructor_that_hangs_is_refused(work, monkeypatch) -> None:
    (work / "hang.py").write_text(
        "import time\n\n\nclass Hangs:\n    def __init__(self):\n        try:\n            time.sleep(100)\n"
        "        except Exception:\n            time.sleep(100)\n"
    )
    monkeypatch.setattr(environments, "MAKING", 0.3)
    begun = time.perf_counter()
    with pytest.raises(InputError, match=r"was not made in time.*0\.3 seconds"):
        load_task({"name": "env:hang.py:Hangs", "turns": 2})
    assert time.perf_counter() - begun < 30


def test_a_reward_that_compares_within_a_group_is_no_measure_of_gain() -> None:
    """Its mean is one half before and after, so that it would tell of no gain whatever is learned."""
    before, after = ({**evaluated(reward=0.5), "eval/compared": 1.0} for _ in range(2))
    told = verdict(before, after, 10)
    assert told.kind == "unclear"
    assert "its mean stays near one half" in told.words
    gold = ({**x, **evaluated(**{"reward/gold": value})} for x, value in ((before, 0.3), (after, 0.6)))
    told = verdict(*gold, 10)
    assert told.kind == "learned"
    assert "true reward (gold) 0.30 → 0.60" in told.words


def test_runs_with_such_a_reward_are_not_compared_by_its_mean(tmp_path: Path) -> None:
    def outcome(**numbers: float) -> RunOutcome:
        told = {"eval/compared": 1.0, "eval/reward": 0.5, "eval/pass@1": 0.0, **numbers}
        return RunOutcome((0.0,), {name: (value,) for name, value in told.items()}, {}, {})

    with pytest.raises(InputError, match=r"one half for every policy.*reward\.gold"):
        measure_of([outcome(**{"eval/graded": 1.0})], None)
    gold = outcome(**{"eval/graded": 1.0, "eval/reward/gold": 0.3})
    assert measure_of([gold], None) == "eval/reward/gold"
    assert measure_of([outcome(**{"eval/graded": 0.0})], None) == "eval/pass@1"  # its judge knows what is right
    for folder, more in (("bare", {}), ("gold", {"eval/reward/gold": 0.3})):
        run = RunFolder.create(tmp_path / folder)
        row = {"phase": "eval", "step": 1, "eval/graded": 1.0, "eval/compared": 1.0, "eval/reward": 0.5, **more}
        run.metrics.write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert finals([tmp_path / "bare"]) == ("", [])
    assert finals([tmp_path / "gold"]) == ("eval/reward/gold", [0.3])


def test_the_health_report_tells_no_missing_gain_of_such_a_reward() -> None:
    def said(**more: float) -> set[str]:
        steps = [{"phase": "train", "step": n, "grad_norm": 1.0, "lr": 1e-3} for n in range(1, 41)]
        evals = [{"phase": "eval", "step": n, "eval/prompts": 64, **evaluated(reward=0.5), **more} for n in (0, 40)]
        return {each.code for each in examine([*steps, *evals], HealthFacts())}

    assert "no_gain" in said()
    assert "no_gain" not in said(**{"eval/compared": 1.0})
    assert "no_gain" in said(**{"eval/compared": 1.0}, **evaluated(**{"reward/gold": 0.3}))
