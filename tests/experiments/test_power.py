"""Power before compute: shares of groups that teach, and prompts and seeds that show a difference."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.cli.plan_power import power_data
from grouprl.config.run import load_config
from grouprl.core.errors import InputError
from grouprl.evaluation.pass_at_k import t_quantile
from grouprl.experiments.gradient_noise import GradientNoise, _products, gradient_noise, parted
from grouprl.experiments.pilot import held_against, pilot_of
from grouprl.experiments.power import (
    Spread,
    extrapolated,
    prompts_needed,
    seeds_needed,
    smallest_difference,
    teaching,
)
from policies import make_policy, make_tokens
from viewed_runs import run_folder


def groups(*rewards: list[float]) -> list[np.ndarray]:
    return [np.array(each) for each in rewards]


def test_a_part_of_a_group_differs_as_often_as_its_subsets_do():
    group = [0.0, 0.5, 0.5, 1.0, 1.0, 1.0]
    for size in range(1, 7):
        subsets = [len(set(each)) > 1 for each in itertools.combinations(group, size)]
        assert teaching(groups(group, group), size).value == pytest.approx(sum(subsets) / len(subsets))
    assert teaching(groups([1.0, 0.0, 0.0, 1.0]), 2).value == pytest.approx(2 / 3)


def test_no_share_is_certain():
    share = teaching(groups(*[[0.0, 1.0]] * 10), 2)
    assert share.value == 1.0
    assert 0.6 < share.low < 0.8


def test_uniform_chances_are_extrapolated_exactly():
    # c of 2 is 0, 1, 2: E[p] = 1/2 and E[p²] = 1/3, those of a uniform p, for which E[p^G] = 1/(G + 1)
    pilot = groups([0.0, 0.0], [0.0, 1.0], [1.0, 1.0])
    for size in (2, 4, 9):
        assert extrapolated(pilot, size) == pytest.approx(1 - 2 / (size + 1))


def test_limits_of_the_extrapolation():
    sure = groups([0.0, 0.0], [1.0, 1.0])
    assert extrapolated(sure, 64) == pytest.approx(0.0)
    equal = groups(*[[0.0, 1.0]] * 2, [0.0, 0.0])  # E[p²] is 0, below E[p]²: p = 1/3 everywhere, and a third is alike
    fall = (1 / 27 + 8 / 27) / (1 / 9 + 4 / 9)
    assert extrapolated(equal, 3) == pytest.approx(1 - 1 / 3 * fall)
    assert extrapolated(groups([0.0, 0.5]), 4) is None
    with pytest.raises(InputError, match="a group of one"):
        extrapolated(groups([1.0]), 4)
    with pytest.raises(InputError, match="Smaller groups are drawn"):
        teaching(sure, 3)


def test_the_extrapolation_keeps_a_known_spread():
    rng = np.random.default_rng(0)
    p_q = rng.beta(0.5, 1.5, 4000)
    pilot = [(rng.random(4) < p).astype(float) for p in p_q]
    truth = float(np.mean(1 - p_q**16 - (1 - p_q) ** 16))
    assert extrapolated(pilot, 16) == pytest.approx(truth, abs=0.02)


def test_the_spread_of_rewards_is_parted():
    spread = Spread.of(groups([0.0, 2.0], [10.0, 12.0], [20.0, 22.0]))
    assert (spread.mean, spread.within) == (11.0, 2.0)
    assert spread.between == pytest.approx(100 - 2 / 2)
    assert spread.half_width(25, 4) == pytest.approx(1.959964 * math.sqrt((99 + 2 / 4) / 25), rel=1e-6)
    assert spread.of_difference(4, shared=True) == pytest.approx(1.0)
    assert spread.of_difference(4, shared=False) == pytest.approx(199.0)


def test_the_spread_of_several_pilots_is_theirs_together_and_not_that_of_their_means():
    """By hand: variances within 1/2 and 1/8, between 2 - 1/4 and 0 - 1/16; weights 1 and 2 (groups less one)."""
    first = [np.array([0.0, 1.0]), np.array([2.0, 3.0])]
    second = [np.array([10.0, 10.5])] * 3
    found = Spread.pooled([first, second])
    assert found.within == pytest.approx((0.5 + 2 * 0.125) / 3)
    assert found.between == pytest.approx((1.75 - 2 * 0.0625) / 3)
    assert Spread.pooled([second, first]) == found
    assert Spread.pooled([first]) == Spread.of(first)


def test_numbers_beyond_counting_are_none_or_refused():
    assert prompts_needed(1.0, 1e-200) is None
    assert prompts_needed(1e300, 1e-9) is None
    assert seeds_needed(1e200, 1e-200) is None
    with pytest.raises(InputError, match=r"rewards of the pilot up to 1e\+200.*Scale the reward down"):
        Spread.of([np.array([1e200, -1e200])] * 2)


@pytest.mark.parametrize("shared", [True, False])
def test_repeated_experiments_have_the_power_that_a_pilot_promised(shared: bool):
    """Of 40 pilots each, 100 experiments with as many prompts as it asks for; the difference is real."""
    rng, difference, shown = np.random.default_rng(0), 0.1, []
    for _ in range(40):
        pilot = [(rng.random(8) < p).astype(float) for p in rng.beta(2, 2, 100)]
        n = prompts_needed(Spread.of(pilot).of_difference(1, shared=shared), difference)
        p_tn = rng.beta(2, 2, (100, n)) * (1 - difference)
        q_tn = (p_tn if shared else rng.beta(2, 2, (100, n)) * (1 - difference)) + difference
        gap_tn = (rng.random((100, n)) < q_tn).astype(float) - (rng.random((100, n)) < p_tn)
        t = gap_tn.mean(1) / (gap_tn.std(1, ddof=1) / math.sqrt(n))
        shown.append((np.abs(t) > 1.96).mean())
    assert np.mean(shown) == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 1.0), (0.2, 0.2), (0.05, 2.0)])
def test_the_interval_of_teaching_groups_holds_the_true_share(alpha: float, beta: float):
    rng, held = np.random.default_rng(1), []
    both = [math.prod((one + i) / (alpha + beta + i) for i in range(8)) for one in (alpha, beta)]
    for _ in range(200):
        _, low, high = teaching([(rng.random(8) < p).astype(float) for p in rng.beta(alpha, beta, 50)], 8)
        held.append(low <= 1 - sum(both) <= high)
    assert np.mean(held) >= 0.93


def test_prompts_are_those_of_the_textbook():
    assert prompts_needed(0.5, 0.1) == 393  # (1.95996 + 0.84162)² = 7.8489 times 50 is 392.4
    assert smallest_difference(0.5, 393) == pytest.approx(0.1, abs=1e-4)
    with pytest.raises(InputError, match="above 0"):
        prompts_needed(0.5, 0.0)


def test_seeds_have_the_power_that_they_are_said_to_have():
    assert seeds_needed(1.0, 1.0) == 18  # (2.1098 + 0.8416)²·2 = 17.4, and with 17: (2.1199 + 0.8416)²·2 = 17.5
    assert seeds_needed(0.0, 0.1) == 2
    assert seeds_needed(1.0, 1e-6) is None
    drawn = np.random.default_rng(0).normal(1.0, math.sqrt(2), (4000, 18))
    t = drawn.mean(1) / (drawn.std(1, ddof=1) / math.sqrt(18))
    assert (np.abs(t) > t_quantile(17)).mean() == pytest.approx(0.8, abs=0.03)


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    folders = [run_folder(tmp_path / name, steps=steps) for name, steps in (("a", 2), ("b", 3))]
    for folder, value in zip(folders, (0.4, 0.6), strict=True):
        record = {"eval/pass@1": value, "eval/reward": value, "eval/prompts": 64, "eval/graded": 1.0}
        ends = {"eval/reward_low": value - 0.1, "eval/reward_high": value + 0.1}
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"phase": "eval", "step": 3, **record, **ends}) + "\n")
    return folders


def test_a_pilot_is_read_from_stored_rows(runs):
    pilot = pilot_of(runs[0])
    assert pilot.steps == (1, 2)
    assert [group.tolist() for group in pilot.rewards] == [[1.0, 0.0], [0.75, 0.25]] * 2  # one row has no reward
    (held,) = held_against(runs[0], pilot)
    assert held.what == "± of eval/reward on 64 prompts"
    assert held.seen == pytest.approx(0.1)
    # means 1/2 in every group: nothing between prompts; within (1/2 + 1/8)/2 of them
    assert held.predicted == pytest.approx(1.959964 * math.sqrt(0.3125 / 64), rel=1e-6)


def test_a_recorded_interval_is_predicted_by_the_samples_of_its_own_evaluation(runs):
    """Whatever the planned run would sample: with four completions of each prompt it is half as wide."""
    pilot = pilot_of(runs[0])
    path = runs[0] / "metrics.jsonl"
    one = held_against(runs[0], pilot)[0].predicted
    path.write_text(path.read_text().replace('"eval/prompts": 64', '"eval/samples": 4, "eval/prompts": 64'))
    assert held_against(runs[0], pilot)[0].predicted == pytest.approx(one / 2)


def test_tokens_of_a_pilot_are_those_that_its_policy_wrote(tmp_path):
    """Of an episode all rows count, but not what its environment showed; of stored rows nothing was sampled."""
    folder = run_folder(tmp_path / "turns", steps=1)
    path = folder / "rollouts" / "step-000001.parquet"
    row = pq.read_table(path).to_pylist()[0] | {"completion_ids": [1] * 6, "source": "sampled"}
    written = [True, True, False, False, False, True]
    first = [row | {"sample": n, "reward": float(n), "mask": written} for n in range(2)]
    second = row | {"sample": 1, "row": 1, "group": 99, "mask": [True] * 6}
    shown = row | {"sample": 2, "source": "demonstration", "mask": [True] * 6}
    pq.write_table(pa.Table.from_pylist([*first, second, shown]), path)
    with pytest.raises(InputError, match="fewer than two groups"):
        pilot_of(folder)
    other = [each | {"group": 5} for each in first]
    pq.write_table(pa.Table.from_pylist([*first, second, shown, *other]), path)
    assert pilot_of(folder).tokens == (4 * 3 + 6) / 4


def test_a_run_without_groups_is_refused(tmp_path):
    folder = run_folder(tmp_path / "none", steps=1)
    (folder / "rollouts" / "step-000001.parquet").unlink()
    with pytest.raises(InputError, match=r"run\.rollouts_every=1"):
        pilot_of(folder)


def test_the_command_tells_shares_prompts_seeds_and_what_was_seen(runs):
    options = [part for run in runs for part in ("--power", str(run))]
    done = CliRunner().invoke(app, ["plan", "addition", *options, "--see", "0.2"], env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    assert "Loading" not in done.output
    for words in ("groups of 2", "as configured: not known", "of each method; eval/reward of 2 runs", "Held against"):
        assert words in done.output
    found = json.loads(CliRunner().invoke(app, ["plan", "addition", *options, "--json"]).stdout)
    assert found["deviation"] == pytest.approx(math.sqrt(0.02))
    assert found["seeds"] == seeds_needed(math.sqrt(0.02), 0.03)
    assert found["tokens"] == 2 * found["seeds"] * found["tokens_per_run"]
    one = CliRunner().invoke(app, ["plan", "addition", *options[:2]], env={"COLUMNS": "160"})
    assert "not known from one run" in one.output


def test_a_method_that_samples_until_groups_differ_needs_more_tokens(tmp_path):
    """A third of the pilot's groups differ: of its prompts it samples three times as many, or as its rounds allow."""
    folder = run_folder(tmp_path / "third", steps=1)
    path = folder / "rollouts" / "step-000001.parquet"
    row = pq.read_table(path).to_pylist()[0]
    rewards = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    rows = [{**row, "group": i // 2, "reward": x, "source": "sampled"} for i, x in enumerate(rewards)]
    pq.write_table(pa.Table.from_pylist(rows), path)

    def tokens(method: str) -> tuple[int, float | None]:
        config = load_config("addition", [f"method={method}", "batch.group_size=2"])
        found = power_data(config, [folder], 0.1)
        return found["tokens_per_run"], found["rounds"]

    whole, none = tokens("grpo")
    assert none is None
    assert tokens("dapo") == (pytest.approx(3 * whole, abs=2), pytest.approx(3.0))
    few = "{base: dapo, refill: {part: dynamic_sampling, max_rounds: 2}}"
    assert tokens(few) == (pytest.approx(2 * whole, abs=2), 2.0)


def test_the_order_of_pilots_changes_nothing(runs):
    """They have unlike rewards; the first one counted alone."""
    path = runs[1] / "rollouts" / "step-000003.parquet"
    rows = pq.read_table(path).to_pylist()
    wider = [{**row, "reward": None if row["reward"] is None else 3 * row["reward"]} for row in rows]
    pq.write_table(pa.Table.from_pylist(wider, schema=pq.read_table(path).schema), path)
    found = [power_data(load_config("addition"), order, 0.1) for order in (runs, runs[::-1])]
    assert found[0]["tokens_per_run"] == found[1]["tokens_per_run"]
    for name in ("prompts", "smallest_difference"):
        assert found[0][name] == found[1][name] != power_data(load_config("addition"), runs[:1], 0.1)[name]


def test_equal_rewards_and_equal_ends_tell_nothing(runs, monkeypatch):
    """They have no spread, which is no reason to believe that two prompts or two seeds would do."""
    monkeypatch.setattr("grouprl.experiments.power.Spread.pooled", lambda _: Spread(0.0, 0.0, 0.0))
    monkeypatch.setattr("grouprl.experiments.pilot.finals", lambda _: ("eval/reward", [0.0, 0.0]))
    options = ["plan", "addition", *(part for run in runs for part in ("--power", str(run)))]
    done = CliRunner().invoke(app, options, env={"COLUMNS": "160"})
    assert "not known, as all rewards of the pilot are equal" in done.output
    assert "not known as all runs ended with the same" in done.output
    found = json.loads(CliRunner().invoke(app, [*options, "--json"]).stdout)
    assert [found[name] for name in ("prompts", "smallest_difference", "seeds", "tokens")] == [None] * 4


def test_what_belongs_to_a_pilot_needs_one(runs):
    assert "--see belongs to --power" in CliRunner().invoke(app, ["plan", "addition", "--see", "0.1"]).output
    refused = CliRunner().invoke(app, ["plan", "addition", "--power", str(runs[0]), "--see", "0"])
    assert refused.exit_code == 2


def test_signal_and_noise_of_gradients_are_parted():
    rng = np.random.default_rng(0)
    gradient_gp = rng.normal(0.0, 2.0, (40, 30)) + 1.0  # |mean|² is 30, the variance 30·4
    square = (gradient_gp**2).sum(1)
    along = gradient_gp @ gradient_gp.sum(0)
    signal, noise, low, high = parted(square, along)
    pairs = gradient_gp @ gradient_gp.T
    assert signal == pytest.approx((pairs.sum() - np.trace(pairs)) / (40 * 39))
    assert signal + noise == pytest.approx(square.mean())
    assert low < 30 < high
    assert noise == pytest.approx(120, rel=0.15)
    with pytest.raises(InputError, match="at least three"):
        parted(square[:2], along[:2])


def test_noise_alone_is_told_to_be_noise():
    gradient_gp = np.random.default_rng(1).normal(0.0, 1.0, (40, 30))
    _, _, low, high = parted((gradient_gp**2).sum(1), gradient_gp @ gradient_gp.sum(0))
    assert low < 0 < high
    assert GradientNoise(1, 40, -1.0, 30.0, low, high).scale is None
    assert GradientNoise(1, 40, 3.0, 30.0, low, high).scale == 10
    assert GradientNoise(1, 40, 3.0, 30.0, low, high).ratio(40) == pytest.approx(2.0)


def test_gradients_of_groups_add_up_to_that_of_the_step():
    policy, tokens = make_policy(), make_tokens([3, 5, 4], 2, 6)
    rows = [
        {
            "group": i // 2,
            "prompt_ids": list(prompt),
            "completion_ids": list(ids),
            "mask": [True] * (len(ids) - 1) + [False],
            "advantage": [1.0 - i % 2 * 1.5] * len(ids),
        }
        for i, (prompt, ids) in enumerate(zip(tokens.prompt_ids, tokens.response_ids, strict=True))
    ]
    square, along = _products(policy, rows)
    (together,), _ = _products(policy, [row | {"group": 0} for row in rows])  # a step of one group has all tokens
    assert len(square) == 3
    assert along.sum() == pytest.approx(together * len(square) ** 2, rel=1e-4)
    assert _products(policy, rows[2:] + rows[:2])[0] == pytest.approx(square[[1, 2, 0]], rel=1e-4)
    rows[0]["advantage"][-1] = 100.0  # behind the mask
    assert _products(policy, rows)[0] == pytest.approx(square, rel=1e-4)


def test_a_run_without_advantages_is_refused(runs):
    with pytest.raises(InputError, match="no tokens with advantages"):
        gradient_noise(runs[0])  # its rows have no prompts in tokens
