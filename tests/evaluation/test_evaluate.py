"""pass@k, intervals around accuracies, and the evaluation that counts completions."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.core.errors import InputError, RunError
from grouprl.evaluation.evaluate import evaluate
from grouprl.evaluation.pass_at_k import interval, pass_at_k, pass_at_k_each, wilson
from grouprl.monitor.glossary import check_names
from grouprl.policy import load_policy
from grouprl.rollout.seeds import sample_seed
from grouprl.tasks import Example, Task


class Letters(Task):
    """Completions count as correct when they begin with a letter."""

    name = "letters"
    alphabet = "abc012"
    max_new_tokens = 4
    count: int | None = 6
    reward = staticmethod(lambda completion, first: float(completion[:1].isalpha()) + 0.25 * (first == "a"))

    def example(self, split, index):
        text = "abc012"[index % 6]
        return Example(f"letters/{split}/{index}", text, {"first": text})

    def size(self, split):
        return self.count


@pytest.fixture(scope="module")
def policy():
    return load_policy("tiny", alphabet="abc012", hidden=16, layers=1, heads=2, intermediate=16, max_positions=32)


def request(policy, **changes):
    settings = {"prompts": 6, "samples": 4, "k": (1, 2, 4), "max_new_tokens": 4, "seed": 3}
    return evaluate(policy, changes.pop("task", Letters()), **{**settings, **changes})


# --- the estimator ------------------------------------------------------------------------------------------------


def test_pass_at_k_by_hand():
    assert pass_at_k(4, 1, 1) == pytest.approx(0.25)
    assert pass_at_k(4, 1, 2) == pytest.approx(1 - 3 / 6)  # C(3,2)/C(4,2)
    assert pass_at_k(5, 2, 3) == pytest.approx(1 - 1 / 10)
    assert pass_at_k(5, 0, 3) == 0.0
    assert pass_at_k(5, 3, 3) == 1.0  # only two wrong completions: any three hold a right one
    assert pass_at_k(3, 3, 1) == 1.0


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_completion(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    subsets = list(itertools.combinations([1] * c + [0] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_k_is_unbiased_and_exact_for_large_n():
    n, p, k = 20, 0.15, 5
    weights = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    assert sum(w * pass_at_k(n, c, k) for c, w in enumerate(weights)) == pytest.approx(1 - (1 - p) ** k)
    assert pass_at_k(10_000, 3, 100) == pytest.approx(1 - math.comb(9997, 100) / math.comb(10_000, 100))


def test_each_prompt_may_have_its_own_number_of_completions():
    assert pass_at_k_each([4, 3], [1, 3], 2) == pytest.approx([0.5, 1.0])


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1)])
def test_pass_at_k_refuses_impossible_numbers(n, c, k):
    with pytest.raises(InputError):
        pass_at_k(n, c, k)


# --- intervals ----------------------------------------------------------------------------------------------------


def test_wilson_by_hand():
    # 8 of 10: centre (0.8 + z²/20) / (1 + z²/10) = 0.7167, half-width 0.2266 (Agresti and Coull 1998)
    value, low, high = wilson(0.8, 10)
    assert (value, low, high) == pytest.approx((0.8, 0.4902, 0.9433), abs=1e-4)


def test_ends_do_not_collapse():
    assert wilson(0.0, 20) == pytest.approx((0.0, 0.0, 0.1611), abs=1e-4)
    assert wilson(1.0, 20) == pytest.approx((1.0, 0.8389, 1.0), abs=1e-4)
    assert interval(np.ones(20), 8) == pytest.approx((1.0, 0.8389, 1.0), abs=1e-4)


def test_one_completion_per_prompt_is_wilson_exactly():
    value_q = np.array([1.0] * 7 + [0.0] * 3)
    assert interval(value_q, 1) == pytest.approx(wilson(0.7, 10))


def test_more_completions_help_only_as_far_as_prompts_differ():
    same = interval(np.array([1.0] * 7 + [0.0] * 3), 16)  # each prompt always right or always wrong
    assert same == pytest.approx(wilson(0.7, 10))
    alike = interval(np.full(10, 0.75), 16)  # every prompt equally hard: all 160 completions count
    assert alike == pytest.approx(wilson(0.75, 160))


@pytest.mark.parametrize(
    ("examples", "completions", "k"), [(200, 1, 1), (200, 4, 1), (200, 8, 4), (30, 8, 1), (30, 8, 4)]
)
def test_coverage(examples, completions, k):
    rng = np.random.default_rng(0)
    truth = _true_pass_at_k(k)
    hits = 0
    for _ in range(600):
        p_q = rng.beta(0.6, 0.9, examples)
        value_q = pass_at_k_each(np.full(examples, completions), rng.binomial(completions, p_q), k)
        _, low, high = interval(value_q, completions)
        hits += low <= truth <= high
    assert 0.925 <= hits / 600 <= 0.975


def _true_pass_at_k(k):
    """1 - E[(1-p)^k] for p ~ Beta(0.6, 0.9)."""
    fail = 1.0
    for i in range(k):
        fail *= (0.9 + i) / (1.5 + i)
    return 1 - fail


# --- evaluation of a policy ----------------------------------------------------------------------------------------


def test_counts_are_those_of_the_completions(policy):
    found = request(policy, samples=1, k=(1,))
    correct = [sample.reward >= 1.0 for sample in found.samples]
    assert found.greedy.value == pytest.approx(np.mean(correct))
    for example, completion, reward, right in found.samples:
        assert right is None  # 0.25 and 1.25 are shades: nobody says what is right
        assert reward == float(completion[:1].isalpha()) + 0.25 * (example == "a")
    assert found.greedy.low <= found.greedy.value <= found.greedy.high


def test_same_seed_same_numbers_however_it_is_cut(policy):
    whole = request(policy)
    assert request(policy, batch_rows=5) == whole
    assert request(policy, seed=4).pass_at != whole.pass_at or request(policy, seed=4).length_mean != whole.length_mean


def test_a_completion_depends_on_its_own_seed_only(policy):
    few, many = request(policy, greedy=False, prompts=3), request(policy, greedy=False)
    assert few.samples == many.samples[:3]
    assert (
        len(
            {
                sample_seed(use, s, q, i)
                for use in ("train", "eval")
                for s in range(3)
                for q in range(20)
                for i in range(4)
            }
        )
        == 480
    )


def test_pass_at_k_rises_with_k(policy):
    found = request(policy)
    values = [found.pass_at[k].value for k in (1, 2, 4)]
    assert values == sorted(values)
    assert 0 < values[0] < 1


def test_greedy_only_and_sampled_only(policy):
    greedy = request(policy, samples=0)
    assert greedy.pass_at == {}
    assert greedy.greedy is not None
    sampled = request(policy, greedy=False)
    assert sampled.greedy is None
    assert sampled.pass_at.keys() == {1, 2, 4}


def test_record_names_are_in_the_glossary(policy):
    record = request(policy).record()
    check_names(record)
    assert {"eval/greedy", "eval/pass@1", "eval/pass@4_low", "eval/length_mean", "eval/truncated"} <= record.keys()
    assert record["eval/prompts"] == 6


def test_progress_counts_every_completion(policy):
    seen = []
    request(policy, batch_rows=8, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (30, 30)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_own_reward_and_threshold(policy):
    found = request(policy, reward=lambda completion: len(completion) / 100, correct_at=0.0)
    assert found.pass_at[1].value == 1.0
    assert request(policy, reward=lambda completion: len(completion) / 100, correct_at=9.0).pass_at[1].value == 0.0


def test_a_small_split_is_used_whole_and_said(policy):
    found = request(policy, prompts=100)
    assert found.prompts == 6
    assert "6 held-out prompts, fewer than the 100 requested" in found.notes[0]


def test_unscored_completions_are_left_out_not_zero(policy):
    def reward(completion, first):
        if first == "b":
            return None
        return 1.0

    found = request(policy, reward=reward)
    assert found.pass_at[1].value == 1.0
    assert found.failed == 0


def test_a_failing_reward_stops_naming_a_sample(policy):
    with pytest.raises(RunError, match=r"letters/eval/0#0.*boom"):
        request(policy, prompts=400, reward=_broken, task=_Endless())


def test_few_failures_are_counted(policy):
    def reward(completion, first):
        if first == "b":
            raise ValueError("boom")
        return 1.0

    found = request(policy, reward=reward)
    assert found.failed == 5  # four samples and the greedy completion
    assert found.pass_at[1].value == 1.0


class _Endless(Letters):
    count = None


def _broken(completion):
    raise ValueError("boom")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"samples": 2, "k": (1, 4)}, "pass@4 with 2 samples"),
        ({"samples": 0, "greedy": False}, "nothing to evaluate"),
        ({"prompts": 0}, "prompts=0"),
        ({"max_new_tokens": 40}, "room for 32 positions"),
    ],
)
def test_bad_requests(policy, changes, words):
    with pytest.raises(InputError, match=words):
        request(policy, **changes)


def test_a_task_without_prompts(policy):
    class Empty(Letters):
        count = 0

    with pytest.raises(InputError, match="no held-out prompts"):
        request(policy, task=Empty())
