"""The machinery of the recorded learning runs, with two methods and two steps."""

import json
from pathlib import Path

import pytest
import yaml

import learn
import learn_report
from claims import NOT_RUN

TINY = {
    "steps": 2,
    "warmup": {"steps": 2, "batch": 4},
    "batch": {"prompts": 2, "group_size": 4},
    "eval": {"final_prompts": 4, "samples": 1},
}


def outcome(before: float, after: float, method: str = "grpo") -> dict:
    def record(value):
        return {
            "eval/pass@1": value,
            "eval/pass@1_low": value - 0.02,
            "eval/pass@1_high": value + 0.02,
            "eval/greedy": 1.0,
        }

    config = {"optim": {"lr": 1e-3}, "steps": 5, "batch": {"minibatches": 2}}
    head = {"task": "reverse", "method": method, "seed": 0, "config": config, "seconds": 3.0}
    return {**head, "before": record(before), "after": record(after), "curve": [before, after]}


def test_the_interval_of_the_gain_must_exceed_the_margin():
    assert learn_report.learned(outcome(0.4, 0.55))
    assert not learn_report.learned(outcome(0.4, 0.52))  # 0.12 less 0.02·√2 is below 0.1
    assert not learn_report.learned(outcome(0.5, 0.3))
    assert not learn_report.learned({"error": "refused"})


def test_settings_are_laid_over_each_other_by_section():
    assert learn.merged({"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"y": 4}, "b": {"z": 5}}) == {
        "a": {"x": 1, "y": 4},
        "b": {"z": 5},
    }


def test_every_method_of_the_catalogue_has_a_run():
    from grouprl import methods

    named = {trial.method for trial in learn.trials(dialects=True)}
    assert named == methods().keys() - {learn_report.TAUGHT, *NOT_RUN} | {learn_report.CONTROL}
    assert not any("@" in trial.method for trial in learn.trials(dialects=False))


def test_on_policy_methods_make_one_update_per_rollout():
    from grouprl import methods
    from grouprl.config.run import parse_config

    for name, entry in methods().items():
        if name == learn_report.TAUGHT or not entry.build().on_policy:
            continue
        config = parse_config(learn.config_of(learn.Trial("reverse", name, 0), Path("model"), {}))
        assert config.updates_per_rollout == 1, name


def test_two_methods_run_once_and_are_reported(tmp_path, monkeypatch):
    trials = [learn.Trial("reverse", name, 0) for name in ("grpo", "rloo")]
    outcomes = [learn.run_trial(trial, tmp_path, TINY) for trial in trials]
    assert [len(found["curve"]) for found in outcomes] == [2, 2]
    assert outcomes[0]["before"] == outcomes[1]["before"], "both begin with the same model"

    monkeypatch.setattr(learn, "finished", lambda *_, **__: pytest.fail("a finished run was repeated"))
    assert learn.run_trial(trials[0], tmp_path, TINY) == outcomes[0]

    taught = json.loads((tmp_path / "reverse-sft-s0" / "outcome.json").read_text())
    learn_report.write([taught, *outcomes], tmp_path / "docs")
    page = (tmp_path / "docs" / "learning.md").read_text()
    for method in ("sft", "grpo", "rloo"):
        assert f"| `{method}` | 0 of 1 |" in page, "nothing is learnt in two steps, and the page says so"
    assert len(json.loads((tmp_path / "docs" / "learning.json").read_text())["runs"]) == 3
    assert (tmp_path / "docs" / "learning.png").read_bytes().startswith(b"\x89PNG")


def test_a_method_has_the_best_of_three_rates_on_a_seed_apart(tmp_path):
    found = learn.run_trial(learn.Trial("reverse", "grpo", 0), tmp_path, TINY)
    assert list(found["tried"]) == ["0.00033", "0.001", "0.003"]
    assert found["config"]["optim"]["lr"] == float(learn.best_rate(found["tried"]))
    ran = yaml.safe_load((tmp_path / "reverse-grpo-lr0.003" / "config.yaml").read_text())
    assert ran["seed"] == learn.TUNING_SEED
    assert ran["optim"]["lr"] == 0.003


def test_the_best_rate_is_the_lowest_of_equals_and_never_one_at_which_the_run_was_lost():
    assert learn.best_rate({"0.1": 0.5, "0.2": 0.7, "0.3": 0.7}) == "0.2"
    assert learn.best_rate({"0.1": None, "0.2": 0.0}) == "0.2"


def test_newer_runs_take_the_place_of_older_ones_of_the_same_method_task_and_seed():
    old, newer = outcome(0.4, 0.5), {**outcome(0.4, 0.9), "tried": {"0.1": 0.9, "0.3": None}}
    other = outcome(0.4, 0.6, "rloo")
    assert learn.joined([old, other], [newer]) == [newer, other]
    page = learn_report.page([newer, other])
    assert "| 0.1: 0.900, 0.3: lost | 3 |" in page
    assert "1 runs are at the method's own" in " ".join(page.split())


def test_a_refused_run_is_reported_and_tried_again(tmp_path):
    (tmp_path / "reverse-sft-s0").mkdir()
    (tmp_path / "reverse-sft-s0" / "outcome.json").write_text("{}")
    refused = learn.run_trial(learn.Trial("reverse", "grpp", 0), tmp_path, TINY)
    assert "grpo" in refused["error"], "the suggestion"
    assert not (tmp_path / "reverse-grpp-s0" / "outcome.json").exists()
    assert refused["error"] in learn_report.page([refused])


def test_a_page_lists_what_did_not_learn():
    page = learn_report.page([outcome(0.4, 0.9), outcome(0.4, 0.41, "rloo")])
    assert "did not learn" in page
    assert "| `grpo` | 1 of 1 | 0.400 [0.380, 0.420] | 0.900 [0.880, 0.920] |" in page


def test_the_control_s_reward_ignores_the_completion_but_its_verdict_does_not():
    values = [learn.coin(text, answer="abc")["reward"] for text in map(str, range(200))]
    assert 60 < sum(values) < 140
    assert learn.coin("abc", answer="abc")["correct"] == 1.0
    assert learn.coin("abd", answer="abc")["correct"] == 0.0


def test_the_control_is_reported_apart():
    page = learn_report.page([outcome(0.4, 0.9), outcome(0.4, 0.41, learn_report.CONTROL)])
    assert "Every run met it" in page
    assert "grpo, coin" in page
