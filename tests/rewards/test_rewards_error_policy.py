"""The error policy: what is kept when a reward fails, and when the run stops."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from grouprl.core.errors import InputError, RunError
from grouprl.rewards import ErrorPolicy, score
from grouprl.rewards.contract import Failure


def scored(outcomes):
    """Scores from one letter a sample: '1' and '0' are values, 'n' is None, 'e' raises, 'b' is a bad value."""

    def reward(completion):
        if completion == "e":
            raise ValueError("broken verifier")
        return {"1": 1.0, "0": 0.0, "n": None, "b": math.nan}[completion]

    return score(reward, list(outcomes), [{}] * len(outcomes), ids=[f"s{i}" for i in range(len(outcomes))])


GROUPS = np.array([0, 0, 1, 1, 2, 2])


def test_drop_group_is_the_default_and_drops_whole_groups():
    assert ErrorPolicy().apply(scored("10e1n1"), GROUPS).tolist() == [True, True, False, False, False, True]


def test_drop_row():
    assert ErrorPolicy("drop_row").apply(scored("10e1b1"), GROUPS).tolist() == [True, True, False, True, False, True]


def test_zero_writes_the_zero_and_keeps_the_row():
    scores = scored("10e1n1")
    assert ErrorPolicy("zero").apply(scores, GROUPS).tolist() == [True, True, True, True, False, True]
    assert scores.reward_b[2] == 0.0
    assert math.isnan(scores.reward_b[4])
    assert scores.status_b[2] == "error"


def test_raise_names_the_sample_and_shows_the_traceback():
    with pytest.raises(RunError, match=r"sample s2: .*broken verifier(.|\n)*Traceback"):
        ErrorPolicy("raise").apply(scored("10e1n1"), GROUPS)
    assert ErrorPolicy("raise").apply(scored("10n111"), GROUPS).tolist() == [True, True, False, True, True, True]


def test_consecutive_failures_stop_the_run_across_batches():
    policy = ErrorPolicy(max_consecutive=5, max_fraction=1.0)
    policy.apply(scored("11eeee"), GROUPS)
    with pytest.raises(RunError, match="5 samples in a row; for instance sample s0"):
        policy.apply(scored("e11111"), GROUPS)


def test_a_success_between_resets_the_count():
    policy = ErrorPolicy(max_consecutive=5, max_fraction=1.0)
    for _ in range(10):
        policy.apply(scored("1eeee1"), GROUPS)


def test_a_run_of_failures_that_ended_within_the_batch_counts():
    with pytest.raises(RunError, match="4 samples in a row"):
        ErrorPolicy(max_consecutive=3, max_fraction=1.0).apply(scored("1eeee1"), GROUPS)


def test_the_fraction_is_of_the_last_window_of_samples():
    policy = ErrorPolicy(max_consecutive=100, max_fraction=0.25, window=12)
    policy.apply(scored("e1e1e1"), GROUPS)  # 3 of a window of 12: just allowed
    with pytest.raises(RunError, match="4 of the last 12"):
        policy.apply(scored("11111e"), GROUPS)
    policy = ErrorPolicy(max_consecutive=100, max_fraction=0.25, window=12)
    for outcomes in ("e1e1e1", "111111", "e1e1e1", "111111"):  # never more than 3 in 12
        policy.apply(scored(outcomes), GROUPS)


def test_one_inapplicable_sample_is_free_but_a_whole_batch_counts_as_failed():
    policy = ErrorPolicy(max_consecutive=6, max_fraction=1.0)
    for _ in range(5):
        policy.apply(scored("nnnnn1"), GROUPS)
    with pytest.raises(RunError, match="does not apply"):
        policy.apply(scored("nnnnnn"), GROUPS)


def test_state_survives_a_checkpoint():
    policy = ErrorPolicy(max_consecutive=5, max_fraction=1.0)
    policy.apply(scored("11eeee"), GROUPS)
    resumed = ErrorPolicy(max_consecutive=5, max_fraction=1.0)
    resumed.load_state_dict(json.loads(json.dumps(policy.state_dict())))
    assert resumed.state_dict() == policy.state_dict()
    with pytest.raises(RunError, match="in a row"):
        resumed.apply(scored("e11111"), GROUPS)


def test_bad_settings():
    with pytest.raises(InputError, match="'drop_group'"):
        ErrorPolicy("drop_groups")
    with pytest.raises(InputError, match="0\\.\\.1"):
        ErrorPolicy(max_fraction=1.5)
    with pytest.raises(InputError, match="at least 1"):
        ErrorPolicy(max_consecutive=0)
    with pytest.raises(InputError, match="shape"):
        ErrorPolicy().apply(scored("11"), np.array([0]))


def test_no_samples():
    assert ErrorPolicy().apply(scored(""), np.array([], dtype=np.int64)).tolist() == []


@pytest.mark.parametrize(
    ("by", "words"),
    [(["environment"], "The environment failed"), (["reward", "environment"], "The reward or environment failed")],
)
def test_it_says_who_failed(by, words):
    def fails(completion, who):
        return Failure("no", status="error", by=who)

    scores = score(fails, ["x"] * len(by), [{"who": each} for each in by], ids=[f"q{i}" for i in range(len(by))])
    with pytest.raises(RunError, match=f"^{words}; for instance sample q0: no"):
        ErrorPolicy("raise").apply(scores, np.zeros(len(by), dtype=int))


PAIRS = np.array([0, 0, 1, 1])


def test_whole_batches_that_fail_in_one_way_stop_the_run():
    with pytest.raises(RunError, match="in one way on every sample of 2 prompts in a row; for instance sample s0"):
        ErrorPolicy().apply(scored("eeee"), PAIRS)
    later = ErrorPolicy()
    later.apply(scored("1111"), PAIRS)
    later.apply(scored("eeee"), PAIRS)
    restored = ErrorPolicy()
    restored.load_state_dict(json.loads(json.dumps(later.state_dict())))
    for policy in (later, restored):
        with pytest.raises(RunError, match="of 4 prompts in a row"):
            policy.apply(scored("eeee"), PAIRS)


def test_one_bad_prompt_costs_that_prompt_alone():
    policy = ErrorPolicy()
    for outcomes in ("ee", "11", "ee", "11"):  # one prompt a step
        policy.apply(scored(outcomes), np.zeros(2, dtype=int))
    assert policy.apply(scored("ee11"), PAIRS).tolist() == [False, False, True, True]
    policy.raise_if_all_failed()


@pytest.mark.parametrize("outcomes", ["eebb", "eenn", "nn1e"])
def test_failures_of_several_ways_are_those_of_prompts(outcomes):
    ErrorPolicy().apply(scored(outcomes), PAIRS)


def test_what_an_environment_took_does_not_count_as_alike():
    ErrorPolicy().apply(replace(scored("eeee"), lost_b=np.array([True, True, True, True])), PAIRS)


def test_whoever_allows_every_failure_is_not_stopped():
    policy = ErrorPolicy(max_fraction=1.0)
    for _ in range(8):
        policy.apply(scored("eeee"), PAIRS)
    policy.raise_if_all_failed()


def test_a_run_in_which_nothing_was_scored_has_failed():
    policy = ErrorPolicy()
    policy.apply(scored("ee"), np.zeros(2, dtype=int))
    with pytest.raises(RunError, match="No sample of this run could be scored; for instance sample s1"):
        policy.raise_if_all_failed()
    ErrorPolicy().raise_if_all_failed()
