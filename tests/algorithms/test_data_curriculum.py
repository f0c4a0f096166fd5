"""Curricula: which prompts are sampled, by hand-made pasts and by simulated prompt sets."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fake_context import CharacterPolicy, FakeContext, Numbers, seen
from grouprl import InputError
from grouprl.algorithms.curriculum.papers.bandit import BanditOverSources, ThompsonSampling, ucb
from grouprl.algorithms.curriculum.papers.curriculum import EasyToHard, HardStage, HistoryResampling, at_random, best
from grouprl.algorithms.curriculum.papers.difficulty import DifficultyTargeted, VarianceSampling, attend, distinct_3
from grouprl.algorithms.curriculum.papers.probe import probe_prompts
from grouprl.algorithms.curriculum.papers.reward_selection import OpenPrompts, RewardSelection, selected
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.sampling.papers.budget import EntropyTemperature, LengthBudget
from grouprl.core.errors import RunError
from grouprl.records.samples import subset

ALL = [VarianceSampling(), DifficultyTargeted(predict="ledger"), ThompsonSampling(), BanditOverSources()]
ALL += [HistoryResampling(), EasyToHard(), HardStage(after=0.0), OpenPrompts(), RewardSelection(keep=8, completions=2)]


def step(part: Any, context: FakeContext, advantage: float = 0.0) -> list[int]:
    """One step: choose, completion, observe; returns the numbers of the prompts."""
    requests = part.choose(context.prompts, context)
    context.finish(context.sample(requests), part, advantage=advantage)
    return [request.index for request in requests]


def copied(context: FakeContext) -> FakeContext:
    """A context that goes on where `context` is, from what a checkpoint would hold."""
    other = FakeContext(
        context.rates, task=context.task, prompts=context.prompts, completions=context.group_size, steps=context.steps
    )
    other.step, other.memory = context.step, torch.load(_saved(context.memory), weights_only=True)
    other.source.restore(context.source.state())
    other.prompt_history.restore(torch.load(_saved(context.prompt_history.state()), weights_only=True))
    return other


def _saved(state: Any) -> Any:
    import io

    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return buffer


RATES = [k / 11 for k in range(12)]


@pytest.mark.parametrize("part", ALL, ids=lambda part: part.name)
def test_equal_seeds_and_resumes_choose_equally(part: Any) -> None:
    one, two = FakeContext(RATES, prompts=4), FakeContext(RATES, prompts=4)
    first = [step(part, one, 0.3) for _ in range(4)]
    assert [step(part, two, 0.3) for _ in range(4)] == first
    resumed = copied(one)
    assert [step(part, resumed, 0.3) for _ in range(4)] == [step(part, one, 0.3) for _ in range(4)]


@pytest.mark.parametrize("part", ALL, ids=lambda part: part.name)
def test_every_choice_is_a_prompt_and_the_count_is_right(part: Any) -> None:
    context = FakeContext(RATES, prompts=5)
    for _ in range(3):
        chosen = step(part, context)
        assert len(chosen) == 5
        assert set(chosen) <= set(range(12))


@pytest.mark.parametrize("part", [*ALL, LengthBudget(), EntropyTemperature()], ids=lambda part: part.name)
def test_a_step_without_a_row_is_survived(part: Any) -> None:
    context = FakeContext(RATES)
    nothing = subset(context.sample(context.take(2)), np.zeros(0, dtype=int))
    context.finish(nothing, part)
    requests = context.take(4) if part.kind == "sampling" else part.choose(4, context)
    context.finish(context.sample(requests), part)


@pytest.mark.parametrize("part", ALL, ids=lambda part: part.name)
def test_endless_prompts_are_refused(part: Any) -> None:
    (said,) = part.refuse(RunFacts(examples=None))
    assert "never end. Set data.prompts" in said
    assert part.refuse(RunFacts(examples=64)) == []


@pytest.mark.parametrize(
    "part", [*ALL[1:3], EasyToHard(until=0.1), HardStage(after=0.0, keep=1.0), ALL[-1]], ids=lambda p: p.name
)
def test_a_second_round_of_a_step_samples_other_prompts(part: Any) -> None:
    context = FakeContext(RATES, prompts=4)
    context.step = 5
    first = [request.index for request in part.choose(4, context)]
    second = [request.index for request in part.choose(4, context)]
    assert not set(first) & set(second)
    assert len({*first, *second}) == 8


def test_best_takes_the_largest_and_starts_again_when_there_are_too_few() -> None:
    key_n = np.array([0.1, 0.9, 0.5])
    assert best(key_n, 2, []) == [1, 2]
    assert best(key_n, 2, [1]) == [2, 0]
    assert best(key_n, 5, []) == [1, 2, 0, 1, 2]


def test_at_random_takes_none_twice() -> None:
    rng = np.random.default_rng(0)
    assert sorted(at_random(np.arange(6), 6, rng, [])) == list(range(6))
    assert set(at_random(np.arange(6), 4, rng, [0, 1])) == {2, 3, 4, 5}


# ── variance ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_variance_scores_of_certain_and_open_prompts() -> None:
    part = VarianceSampling(outcome=1.0, diversity=0.0, momentum=0.0)
    context = FakeContext([0.0, 1.0, 0.5])
    for index, right in enumerate((0, 4, 2)):
        seen(context, index, right, 4)
    part.observe(context.sample([context.request(i) for i in range(3)]), None, context)
    assert context.state_of(part)["weight"].tolist() == pytest.approx([0.0, 0.0, 0.25 / (0.25 + 1e-8)])


def test_momentum_one_keeps_and_zero_replaces_the_weights() -> None:
    for momentum, expected in ((1.0, [1.0, 1.0]), (0.0, [0.0, 1.0]), (0.75, [0.75, 1.0])):
        part = VarianceSampling(outcome=1.0, diversity=0.0, momentum=momentum)
        context = FakeContext([0.0, 0.5])
        seen(context, 0, 0, 4)
        seen(context, 1, 2, 4)
        part.observe(context.sample([context.request(0)]), None, context)
        assert context.state_of(part)["weight"].tolist() == pytest.approx(expected, abs=1e-6)


def test_without_a_weighted_share_the_stream_is_the_plain_one() -> None:
    context, plain = FakeContext(RATES), FakeContext(RATES)
    part = VarianceSampling(share=0.0)
    for _ in range(5):
        assert step(part, context) == [request.index for request in plain.take(4)]


def test_weighted_samples_have_the_frequencies_of_the_weights() -> None:
    part, context = VarianceSampling(share=1.0), FakeContext([0.5] * 4)
    weight = [0.0, 1.0, 2.0, 5.0]
    part._memory(context)["weight"] = torch.tensor(weight, dtype=torch.float64)
    sampled = Counter(part.pick(8000, np.random.default_rng(1), [], context))
    for index, w in enumerate(weight):
        share = w / 8
        assert abs(sampled[index] / 8000 - share) <= 3 * (share * (1 - share) / 8000) ** 0.5


def test_equal_weights_of_zero_are_sampled_uniformly() -> None:
    part, context = VarianceSampling(share=1.0), FakeContext([0.5] * 4)
    part._memory(context)["weight"] = torch.zeros(4, dtype=torch.float64)
    assert set(part.pick(100, np.random.default_rng(1), [], context)) == {0, 1, 2, 3}


def test_distinct_3_counts_runs_of_three() -> None:
    assert distinct_3([(1, 2, 3, 4), (1, 2, 3, 4)]) == 0.5
    assert distinct_3([(1, 1, 1, 1, 1)]) == pytest.approx(1 / 3)
    assert distinct_3([(1,), (1,), (2,)]) == pytest.approx(2 / 3)


def test_a_refresh_measures_every_prompt_and_trains_on_none() -> None:
    part = VarianceSampling(refresh_every=2, probe=8, outcome=1.0, diversity=0.0)
    context = FakeContext([0.0, 0.5, 1.0], prompts=2)
    step(part, context)
    assert context.notes["completions_probed"] == 24
    assert context.state_of(part)["rate"][0] == 0
    assert context.state_of(part)["rate"][2] == 1
    step(part, context)
    assert context.notes["completions_probed"] == 24
    step(part, context)
    assert context.notes["completions_probed"] == 48
    assert sum(len(context.prompt_history.visits(i)) for i in range(3)) == 6


# ── a wanted difficulty ──────────────────────────────────────────────────────────────────────────────────────────


class Embedder(CharacterPolicy):
    """Hidden states by hand: two kinds of prompts."""

    def hidden(self, tokens: Any) -> list[torch.Tensor]:
        kinds = [
            int(chr(ids[0])) if prompt == (ord("q"),) else 0
            for prompt, ids in zip(tokens.prompt_ids, tokens.response_ids, strict=True)
        ]
        return [torch.tensor([[1.0, 0.0], [1.0, 0.0]]) if k % 2 else torch.tensor([[0.0, 1.0]]) for k in kinds]


def test_the_wanted_difficulty_is_taken_for_certain() -> None:
    part, context = DifficultyTargeted(predict="ledger"), FakeContext([0, 0.25, 0.5, 0.75, 1.0], prompts=1)
    for index in range(5):
        seen(context, index, index, 4)
    for context.step in range(20):
        assert [request.index for request in part.choose(1, context)] == [2]


def test_a_high_temperature_chooses_uniformly() -> None:
    part, context = DifficultyTargeted(predict="ledger", temperature=1e9), FakeContext([0.5] * 4)
    for index in range(4):
        seen(context, index, index, 4)
    sampled = Counter(part.pick(1, np.random.default_rng(k), [], context)[0] for k in range(2000))
    assert all(abs(sampled[i] / 2000 - 0.25) < 3 * (0.25 * 0.75 / 2000) ** 0.5 for i in range(4))


def test_equal_references_predict_the_same_for_all() -> None:
    z_nh = torch.randn(7, 3)
    rate_n = attend(z_nh, z_nh[:4], torch.full((4,), 0.3, dtype=torch.float64), 1.0)
    assert rate_n.tolist() == pytest.approx([0.3] * 7)


def test_attention_by_hand() -> None:
    rate_n = attend(
        torch.tensor([[2.0**0.5, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([1.0, 0.0]), 1.0
    )
    assert rate_n.item() == pytest.approx(np.e / (np.e + 1))


def test_prompts_that_look_alike_are_predicted_alike() -> None:
    part = DifficultyTargeted(reference=4, every=2)
    context = FakeContext([0.0, 1.0] * 5, completions=8, policy=Embedder())
    part.choose(2, context)
    rate_n, sampled = context.state_of(part)["rate"], context.notes["completions_probed"]
    assert sampled == 32
    assert rate_n[0::2].max() < rate_n[1::2].min()
    context.step = 1
    part.choose(2, context)
    assert context.notes["completions_probed"] == sampled
    context.step = 2
    part.choose(2, context)
    assert context.notes["completions_probed"] == 2 * sampled


# ── Thompson sampling ────────────────────────────────────────────────────────────────────────────────────────────


def test_without_decay_the_posterior_counts_every_completion() -> None:
    part, context = ThompsonSampling(decay=1.0, sampled_decay=1.0), FakeContext(RATES)
    for _ in range(6):
        step(part, context)
    right_n, wrong_n = part.counts(context)
    for index in range(12):
        visits = context.prompt_history.visits(index)
        assert right_n[index] == sum(v.right for v in visits)
        assert right_n[index] + wrong_n[index] == 4 * len(visits)


def test_full_decay_returns_to_the_prior() -> None:
    part, context = ThompsonSampling(decay=0.0, sampled_decay=0.0), FakeContext(RATES)
    requested = set(step(part, context))
    again = set(step(part, context))
    right_n, wrong_n = part.counts(context)
    assert all(right_n[i] + wrong_n[i] == (4 if i in again else 0) for i in requested | again)


def test_counts_shrink_faster_where_told() -> None:
    part, context = ThompsonSampling(decay=0.5, sampled_decay=0.25), FakeContext([1.0, 1.0])
    context.state_of(part)["counts"] = torch.tensor([[8.0, 8.0], [4.0, 4.0]], dtype=torch.float64)
    seen(context, 0, 3, 4)
    part.observe(context.sample([context.request(0)]), None, context)
    right_n, wrong_n = part.counts(context)
    assert right_n.tolist() == [8 / 4 + 3, 4]
    assert wrong_n.tolist() == [4 / 4 + 1, 2]


def test_thompson_sampling_settles_on_prompts_of_even_odds() -> None:
    rates = [0.0] * 15 + [0.5] * 10 + [1.0] * 15
    part, context = ThompsonSampling(), FakeContext(rates, prompts=5, completions=8, steps=200)
    chosen = [step(part, context) for _ in range(60)]
    late = [index for indices in chosen[-20:] for index in indices]
    assert np.mean([15 <= i < 25 for i in late]) > 0.9


@pytest.mark.parametrize(("decay", "found"), [(1.0, False), (0.97, True)])
def test_a_prompt_that_became_possible_is_found_again_only_with_decay(decay: float, found: bool) -> None:
    def rate(index: int, step: int) -> float:
        return 0.5 if index < 2 or step >= 60 else 0.0

    part = ThompsonSampling(decay=decay, sampled_decay=decay)
    context = FakeContext(rate, task=Numbers(4), prompts=2, completions=16, steps=400)
    context.state_of(part)["counts"] = torch.tensor([[0.0] * 4, [0.0, 0.0, 400.0, 400.0]], dtype=torch.float64)
    chosen = [step(part, context) for _ in range(200)]
    late = {index for indices in chosen[-60:] for index in indices}
    assert ({2, 3} <= late) is found


def test_the_information_gain_prefers_harder_prompts() -> None:
    context = FakeContext([0.5] * 2)
    counts = torch.tensor([[3300.0, 6700.0], [6700.0, 3300.0]], dtype=torch.float64)
    for gain, firsts in (("variance", {0, 1}), ("information", {0})):
        part = ThompsonSampling(gain=gain)
        context.state_of(part)["counts"] = counts
        assert {part.pick(1, np.random.default_rng(k), [], context)[0] for k in range(40)} == firsts


# ── sources ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_scores_of_sources_by_hand() -> None:
    assert ucb([0.2] * 10, 10, 100) == pytest.approx(1.1160, abs=1e-4)
    assert ucb([0.3] * 90, 90, 100) == pytest.approx(0.6185, abs=1e-4)
    assert ucb([], 0, 0) == 0


def test_chances_of_sources() -> None:
    part = BanditOverSources(temperature=0.5)
    assert part.probabilities({}, ["a", "b"]).tolist() == pytest.approx([0.5, 0.5])
    store = {"windows": {"a": [0.2] * 10, "b": [0.3] * 90}, "asked": {"a": 10, "b": 90}}
    p = part.probabilities(store, ["a", "b", "new"])
    assert p[0] > p[1] > 0
    assert p[2] > p[0]
    expected = np.exp((1.11595 - 0.61851) / 0.5)
    assert p[0] / p[1] == pytest.approx(expected, rel=1e-3)


def test_the_window_forgets_and_the_count_does_not() -> None:
    part, context = BanditOverSources(by="source", window=6), FakeContext([0.5] * 4)
    for context.step, size in enumerate((0.1, 0.7)):
        seen(context, 0, 2, 4, advantage=size)
        part.observe(context.sample([context.request(0)]), None, context)
    assert context.state_of(part)["windows"] == {"even": [0.1] * 2 + [0.7] * 4}
    assert context.state_of(part)["asked"] == {"even": 8}


def test_the_source_that_teaches_is_sampled_most() -> None:
    part, context = BanditOverSources(by="source"), FakeContext([0.5, 0.0] * 10, prompts=8, steps=100)
    chosen: list[int] = []
    for _ in range(60):
        requests = part.choose(8, context)
        sampled = context.sample(requests)
        for request in requests:
            seen(context, request.index, 0, 4, advantage=0.8 if request.index % 2 == 0 else 0.0)
        part.observe(sampled, None, context)
        chosen = [*chosen, *(request.index for request in requests)]
        context.step += 1
    assert np.mean([index % 2 == 0 for index in chosen[-160:]]) > 0.9


def test_sources_by_level_and_a_missing_column() -> None:
    assert len(BanditOverSources(by="level").choose(4, FakeContext([0.5] * 8))) == 4
    with pytest.raises(InputError, match="no such column"):
        BanditOverSources(by="origin").choose(4, FakeContext([0.5] * 8))


# ── epochs and levels ────────────────────────────────────────────────────────────────────────────────────────────


def test_solved_prompts_are_left_out_of_the_next_epoch() -> None:
    part, context = HistoryResampling(), FakeContext([1.0, 0.5, 0.0], prompts=3, completions=2)
    assert sorted(step(part, context)) == [0, 1, 2]
    for index, right in enumerate((4, 2, 0)):
        seen(context, index, right, 4)
    assert context.notes.pop("prompts_open") == 1.0
    assert sorted(request.index for request in part.choose(2, context)) == [1, 2]
    assert context.notes["prompts_open"] == pytest.approx(2 / 3)


def test_solved_prompts_come_back_only_by_option() -> None:
    def epochs(part: HistoryResampling) -> list[set[int]]:
        context = FakeContext([1.0, 0.0, 0.0, 0.0], prompts=1)
        found = []
        for _ in range(4):
            now: set[int] = set(step(part, context))
            while context.state_of(part)["left"]:
                now |= set(step(part, context))
            found.append(now)
        return found

    rest, whole = {1, 2, 3}, {0, 1, 2, 3}
    assert epochs(HistoryResampling()) == [whole, rest, rest, rest]
    assert epochs(HistoryResampling(readmit_every=2)) == [whole, rest, whole, rest]


def test_when_everything_is_solved_nothing_is_sampled() -> None:
    part, context = HistoryResampling(), FakeContext([1.0] * 4, prompts=3)
    assert len(step(part, context)) == 3
    assert len(step(part, context)) == 3  # the last of the first epoch, and those whose completions were not in by then
    while requested := part.choose(3, context):
        context.finish(context.sample(requested), part)
        assert context.step < 6
    assert part.choose(3, context) == []


def test_levels_are_unlocked_evenly() -> None:
    part, context = EasyToHard(), FakeContext([0.5] * 8, prompts=8, steps=8)
    hardest = [max(context.task.example("train", i).level for i in step(part, context)) for _ in range(8)]
    assert hardest == [0, 0, 1, 1, 2, 2, 3, 3]


def test_levels_are_all_open_after_until() -> None:
    part, context = EasyToHard(until=0.5), FakeContext([0.5] * 8, prompts=8, steps=8)
    assert [len(set(step(part, context))) for _ in range(5)] == [2, 4, 6, 8, 8]


def test_a_level_opens_when_the_one_before_is_mastered() -> None:
    def rate(index: int, step: int) -> float:
        return float(step >= 3)

    part = EasyToHard(mastery=0.9)
    context = FakeContext(rate, task=Numbers(8), prompts=8, steps=100)
    assert [len(set(step(part, context))) for _ in range(6)] == [2, 2, 2, 2, 4, 6]


def test_one_level_is_no_order() -> None:
    with pytest.raises(InputError, match="at least two levels"):
        EasyToHard().choose(2, FakeContext([0.5] * 4, task=Numbers(4, per_level=9)))


def test_the_hard_stage_samples_the_prompts_of_lowest_reward() -> None:
    part, context = HardStage(after=0.5, keep=0.5), FakeContext(RATES, prompts=12, completions=32, steps=4)
    plain = FakeContext(RATES)
    for _ in range(2):
        assert step(part, context) == [request.index for request in plain.take(12)]
    assert set(step(part, context)) == set(range(6))


@pytest.mark.parametrize("part", [HardStage(after=1.0), HardStage(keep=1.0)])
def test_a_stage_that_never_comes_or_keeps_all_is_idle(part: HardStage) -> None:
    assert part.idle(RunFacts())


@pytest.mark.parametrize(("which", "kept"), [("hard", [0, 1, 2]), ("medium", [2, 3, 4]), ("easy", [4, 5, 6])])
def test_prompts_are_selected_once_by_what_they_earn_at_first(which: Any, kept: list[int]) -> None:
    assert selected(range(7), 3, which) == kept
    rates = [k / 6 for k in (5, 3, 0, 6, 1, 2, 4)]
    part, context = RewardSelection(keep=3, which=which, completions=400), FakeContext(rates, prompts=3)
    wanted = {index for index in range(7) if round(6 * rates[index]) in kept}
    assert [set(step(part, context)) for _ in range(3)] == [wanted] * 3
    assert context.notes["completions_probed"] == 7 * 400
    assert context.notes["selected_reward"] == pytest.approx(np.mean(kept) / 6, abs=0.05)
    assert len(part.choose(5, context)) == 5, "epochs follow each other"


def test_a_selection_among_prompts_that_nobody_can_score_ends_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_scored(context: Any, indices: Any, completions: int) -> Any:
        sampled = probe_prompts(context, indices, completions)
        return subset(sampled, np.zeros(len(sampled), dtype=bool))

    monkeypatch.setattr("grouprl.algorithms.curriculum.papers.reward_selection.probe_prompts", none_scored)
    with pytest.raises(RunError, match="not one completion to the 8 prompts could be scored"):
        RewardSelection(keep=3).choose(4, FakeContext())


def test_the_prompts_that_the_policy_is_least_sure_of_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measure is a mean over the tokens of a completion, whose number differs."""

    def entropies(context: Any, indices: Any, completions: int) -> Any:
        sampled = probe_prompts(context, indices, completions)
        there_bt = sampled.rollout.entropy_bt > 0
        return replace(
            sampled,
            rollout=replace(sampled.rollout, entropy_bt=there_bt * torch.tensor(sampled.index_b % 5.0)[:, None]),
        )

    monkeypatch.setattr("grouprl.algorithms.curriculum.papers.reward_selection.probe_prompts", entropies)
    part, context = OpenPrompts(share=0.5), FakeContext(prompts=2, lengths=lambda index, _: 1 + index)
    assert set(step(part, context)) | set(step(part, context)) == {2, 3, 4, 7}
    assert context.notes["selected_entropy"] == pytest.approx((2 + 3 + 4 + 2) / 4)
    assert OpenPrompts(share=1.0).idle(RunFacts())


def test_a_selection_of_all_or_more_is_idle() -> None:
    assert "keeps 8 of 8" in RewardSelection(keep=8).idle(RunFacts(examples=8))[0]
    assert RewardSelection(keep=7).idle(RunFacts(examples=8)) == []
    assert selected("abc", 5, "medium") == list("abc")


@pytest.mark.parametrize("made", [BanditOverSources, EasyToHard])
def test_what_tells_prompts_apart_is_checked_before_a_run(made: Any) -> None:
    run = RunFacts(examples=8, kinds={"level": 1, "source": 2, "answer": 8})
    assert made(by="source").refuse(run) == made(by="source").idle(run) == []
    assert made(by="level").refuse(run) == []
    assert "same level" in made(by="level").idle(run)[0]
    assert "Did you mean 'source'" in made(by="sourc").refuse(run)[0]


def test_settings_without_effect_are_named() -> None:
    assert VarianceSampling(momentum=1.0).idle(RunFacts())
    assert VarianceSampling(share=0.0).idle(RunFacts())
    assert EasyToHard(mastery=0.5, until=0.5).idle(RunFacts())
    assert not any(part.idle(RunFacts()) for part in ALL[:6])
