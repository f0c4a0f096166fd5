"""Rules of methods whose papers could be checked in part: advantages, rewards and what is left out of a group.

Expected numbers are computed here from the written facts, in plain Python.
"""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
import torch

import grouprl
from facts import centred, ppo, slope, standardised, still
from small import f64, near, small

# --- 171 INTELLECT-2 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.1, 1.5, 3.9, 4.1, 10.0])
def test_intellect2_bounds_the_loss_on_both_sides(ratio: float) -> None:
    """-min(min(w, δ)A, clip(w, 0.8, 1.2)A), δ = 4: nothing changes for A > 0; for A < 0 the loss is at most 4|A|."""
    method, log = grouprl.method("intellect2", kl_coef=0.0, entropy_coef=0.0), math.log(ratio)
    loss, grad_bt, _ = slope(method, small([1, 0]), [[log], [log]])
    a, b = standardised([1, 0])
    clip = min(max(ratio, 0.8), 1.2)
    terms = [-min(min(ratio, 4) * x, clip * x) for x in (a, b)]
    assert loss == pytest.approx(sum(terms) / 2)
    pushed = 0.0 if ratio > 4 else ppo(b, ratio, 0.8, 1.2)
    near(grad_bt, [[ppo(a, ratio, 0.8, 1.2) / 2], [pushed / 2]])


def test_intellect2_golden_and_numbers() -> None:
    """A = -1, w = 10: loss 4; the filter takes groups of advantage 0 out of the mean over tokens."""
    entry = grouprl.methods()["intellect2"]
    assert (entry.settings["delta"], entry.settings["kl_coef"], entry.settings["entropy_coef"]) == (4.0, 0.001, 0.0001)
    method = grouprl.method("intellect2", kl_coef=0.0, entropy_coef=0.0, scale="none")
    batch = small([1, -1, 0.3, 0.3], [1, 1, 2, 2], [0, 0, 1, 1])
    loss, _, ready = slope(method, batch, [[-100.0], [math.log(10)], [0.0, 0.0], [0.0, 0.0]])
    assert loss == pytest.approx((0 + 4) / 2, abs=1e-6)
    assert ready.weight_bt[2:].abs().sum() == 0


# --- MaxRL ------------------------------------------------------------------------------------------------------------


def test_maxrl_measures_rewards_in_units_of_their_mean() -> None:
    """(r - mean)/mean: 1, 0, 0, 0 gives 3, -1, -1, -1; a group without a right completion has no gradient."""
    batch = small([1, 0, 0, 0, 0.5, 0.5, 2, 0, 0], groups=[0] * 4 + [1] * 3 + [2] * 2)
    rewards = [[1, 0, 0, 0], [0.5, 0.5, 2], [0, 0]]
    expected = [(r - statistics.fmean(g)) / (statistics.fmean(g) + 1e-6) for g in rewards for r in g]
    near(grouprl.method("maxrl").prepare(batch).advantage_bt[:, 0], expected)
    assert expected[0] == pytest.approx(3, abs=2e-5)


def test_maxrl_is_the_gradient_of_the_log_likelihood_of_being_right() -> None:
    """∇ log Σ_i w_i r_i at equal weights is Σ r_i ∇w_i / mean r; with a baseline of 1 the mean advantage is 0."""
    adv_b = grouprl.method("maxrl", eps=0.0).prepare(small([1, 1, 0, 0, 0])).advantage_bt[:, 0]
    near(adv_b, [1.5, 1.5, -1, -1, -1])


# --- GDPO -------------------------------------------------------------------------------------------------------------


def test_gdpo_judges_components_apart_and_whitens_over_the_batch() -> None:
    """Two groups; components of spread 1 and 100 weigh the same; then mean 0 and spread 1 over all completions."""
    groups = {"accuracy": [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]], "length": [[100.0, 300.0, 200.0], [0.0, 50.0, 100.0]]}
    flat = {name: torch.tensor([r for g in value for r in g], dtype=torch.float64) for name, value in groups.items()}
    batch = small([0.0] * 6, groups=[0, 0, 0, 1, 1, 1]).replace(rewards=flat)
    parts = [[a for g in value for a in standardised(g)] for value in groups.values()]
    summed = [sum(column) for column in zip(*parts, strict=True)]
    near(grouprl.method("gdpo", batch_scale=False).prepare(batch).advantage_bt[:, 0], summed)
    near(grouprl.method("gdpo").prepare(batch).advantage_bt[:, 0], standardised(summed))


def test_gdpo_tells_sums_apart_that_grpo_cannot() -> None:
    """Components (1, 0) and (1, 1) against (0, 0): with equal sums GRPO sees one level, GDPO two."""
    rewards = {"a": [1.0, 0.0, 0.0, 0.0], "b": [0.0, 1.0, 1.0, 0.0]}
    flat = {k: torch.tensor(v, dtype=torch.float64) for k, v in rewards.items()}
    adv_b = grouprl.method("gdpo", batch_scale=False).prepare(small([1, 1, 1, 0]).replace(rewards=flat)).advantage_bt
    summed = [x + y for x, y in zip(*(standardised(v) for v in rewards.values()), strict=True)]
    near(adv_b[:, 0], summed)
    assert summed[0] != pytest.approx(summed[1])


# --- Pass@k -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rewards", [[0.2, 0.9, 0.4], [1, 1, 0], [0, 0, 0], [-1, -3, -2, -1.5]])
def test_passk_is_the_leave_one_out_gain_of_the_groups_best(rewards: list[float]) -> None:
    """max R minus the maximum without i: 0 for all but the only best one."""
    without = [max(rewards[:i] + rewards[i + 1 :]) for i in range(len(rewards))]
    near(grouprl.method("passk").prepare(small(rewards)).advantage_bt[:, 0], [max(rewards) - w for w in without])


# --- GRPO of NeMo-RL --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rewards", [[1, 0, 0, 0], [0.5, 0.1, 0.9], [1, 1, 0, 0, 0]])
def test_nemo_rl_leaves_the_judged_completion_out_of_mean_and_spread(rewards: list[float]) -> None:
    expected = []
    for i, r in enumerate(rewards):
        others = rewards[:i] + rewards[i + 1 :]
        spread = statistics.stdev(others)
        expected.append((r - statistics.fmean(others)) / (spread + 1e-6 if spread else 1))
    batch = small(rewards, ref_bt=[[-1.0]] * len(rewards))
    near(grouprl.method("grpo@nemo_rl").prepare(batch).advantage_bt[:, 0], expected)


# --- 300 APO ----------------------------------------------------------------------------------------------------------


def test_apo_asymmetric_fades_the_kl_of_good_completions_to_hard_prompts() -> None:
    """w(d) = 1 - exp(-e(1 - d)) for A > 0 and 0 < d < 1: d = 0.5 gives 0.743; 1 for the others and at d = 0 or 1."""
    assert 1 - math.exp(-math.e * 0.5) == pytest.approx(0.743, abs=5e-4)
    for right in (1, 2, 3):
        rewards = [1.0] * right + [0.0] * (4 - right)
        batch = small(rewards, ref_bt=[[-1.5]] * 4).replace(correct_b=torch.tensor(rewards) > 0)
        difficulty = 1 - right / 4
        weight = 1 - math.exp(-math.e * (1 - difficulty))
        with_kl, without = (
            slope(grouprl.method("apo_asymmetric", kl_coef=c), batch, still(batch))[1] for c in (0.1, 0.0)
        )
        per_token = 0.1 * (1 - math.exp(-0.5)) / 4  # d/dlp of k3 = exp(ref - lp) - (ref - lp) - 1 is 1 - exp(ref - lp)
        near(with_kl - without, [[per_token * (weight if r else 1)] for r in rewards])


def test_apo_asymmetric_pushes_wrong_completions_that_are_longer_than_right_ones() -> None:
    """A ← A·(2 - base^-Δ), Δ = length - mean length of the right; nobody right: no change. A base of 1.1 shows it."""
    rewards, lengths = [1.0, 1.0, 0.0, 0.0, 0.0], [2, 4, 3, 5, 9]
    batch = small(rewards, lengths, ref_bt=[[-1.0] * n for n in lengths]).replace(correct_b=torch.tensor(rewards) > 0)
    plain = standardised(rewards, 1e-9)
    for base in (1.00001, 1.1):
        factors = [1 + 1 - base ** -max(0, n - 3) if r == 0 else 1 for r, n in zip(rewards, lengths, strict=True)]
        ready = grouprl.method("apo_asymmetric", length_base=base).prepare(batch)
        near(ready.advantage_bt[:, 0], [a * f for a, f in zip(plain, factors, strict=True)])
    none = batch.replace(correct_b=torch.zeros(5, dtype=torch.bool))
    near(grouprl.method("apo_asymmetric", length_base=1.1).prepare(none).advantage_bt[:, 0], plain)
    factor = 2 - 1.00001**-1000
    assert factor == pytest.approx(1.00995, abs=5e-6), "the released constant hardly pushes at all"


# --- 147 EIS-GRPO -----------------------------------------------------------------------------------------------------


def test_eis_grpo_judges_all_forms_of_a_prompt_in_one_group() -> None:
    """A judge that always says "first" is right in one order and wrong in the other: ±0.935 with four rollouts each."""
    rewards = [1, 1, 1, 1, 0, 0, 0, 0]
    batch = small(rewards).replace(keys={"variant": torch.tensor([0] * 4 + [1] * 4)})
    adv_b = grouprl.method("eis_grpo").prepare(batch).advantage_bt[:, 0]
    near(adv_b, standardised(rewards))
    assert float(adv_b[0]) == pytest.approx(0.935, abs=5e-4)
    apart = small(rewards, groups=[0] * 4 + [1] * 4)
    near(grouprl.method("eis_grpo").prepare(apart).advantage_bt, [[0.0]] * 8)


# --- Kimi's mirror descent --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moved", [0.0, 0.3, -2.0])
def test_opmd_kimi_has_the_papers_gradient(moved: float) -> None:
    """mean_i [(R_i - mean)∇log π(y) - τ/2 ∇(log π/π_old (y))²], ascended; sequences, not tokens."""
    tau, rewards = 0.1, [1.0, 0.0, 0.5]
    batch = small(rewards, [2, 1, 1])
    _, grad_bt, _ = slope(grouprl.method("opmd_kimi"), batch, [[moved, 0.1], [0.2], [0.0]])
    distance = [moved + 0.1, 0.2, 0.0]
    row = [-(a - tau * d) / 3 for a, d in zip(centred(rewards), distance, strict=True)]
    near(grad_bt, [[row[0]] * 2, [row[1], 0], [row[2], 0]])


# --- 148 ConciseR, 287 self-rewarded efficiency -----------------------------------------------------------------------


def test_conciser_pays_for_brevity_only_where_all_are_right() -> None:
    """R + (1 - |y|/Lmax) in all-right groups; a group with one wrong completion is judged without lengths."""
    batch = small([1, 1, 1, 1, 1, 0], [1, 2, 4, 1, 4, 2], [0, 0, 0, 1, 1, 1], max_length=4)
    ready = grouprl.method("conciser").prepare(batch.replace(correct_b=batch.reward_b > 0))
    solved = standardised([1 + 1 - n / 4 for n in (1, 2, 4)])
    near(ready.advantage_bt[:, 0], [*solved, *standardised([1, 1, 0])])
    assert sum(solved) == pytest.approx(0)


def test_self_rewarded_efficiency_measures_by_the_shortest_right_one() -> None:
    """Bonus min|y|/|y_i| for the right: 1 for the shortest; a short wrong completion changes nothing."""
    rewards, lengths = [1.0, 1.0, 1.0, 0.0], [2, 4, 5, 1]
    batch = small(rewards, lengths).replace(correct_b=torch.tensor(rewards) > 0)
    ready = grouprl.method("self_rewarded_efficiency").prepare(batch)
    near(ready.reward_b, [1 + 0.5 * 2 / 2, 1 + 0.5 * 2 / 4, 1 + 0.5 * 2 / 5, 0.0])


# --- 111 SRPO ---------------------------------------------------------------------------------------------------------


def test_srpo_history_gives_truncated_completions_advantage_0_and_means_over_tokens() -> None:
    """The truncated one still counts in mean and spread; no KL."""
    rewards, lengths, cut = [1.0, 0.0, 0.0], [1, 2, 3], [False, False, True]
    batch = small(rewards, lengths, truncated_b=cut)
    method = grouprl.method("srpo_history")
    assert method.regularize == ()
    _, grad_bt, ready = slope(method, batch, still(batch))
    adv = [a * (not c) for a, c in zip(standardised(rewards), cut, strict=True)]
    near(ready.advantage_bt[:, 0], adv)
    near(grad_bt[:, 0], [-a / 6 for a in adv])


# --- 66 XRPO ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [(-1.0, -0.2, -0.2, -0.4), (-0.3, -0.3, -0.3, -0.3), (-2.0, -1.9, -0.1, -3.0)])
def test_xrpo_sharpens_right_completions_that_were_unlikely(old: tuple[float, ...]) -> None:
    """A + min(max(2.5(1 - η), 0), A/2), η = exp(s - mean_g s), for A > 0 alone."""
    rewards = [1.0, 1.0, 1.0, 0.0]
    batch = small(rewards, [2, 2, 2, 2], old_bt=[[x, x] for x in old]).replace(correct_b=torch.tensor(rewards) > 0)
    expected = []
    for a, s in zip(standardised(rewards), old, strict=True):
        eta = math.exp(s - statistics.fmean(old))
        expected.append(a + min(max(2.5 * (1 - eta), 0), 0.5 * a) if a > 0 else a)
    near(grouprl.method("xrpo").prepare(batch).advantage_bt[:, 0], expected)


# --- PODS, 36 D3S -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rewards", [[0.1, 0.9, 0.4, 0.5], [3.0, 1.0, 2.0, 7.0, 4.0, 2.5, 0.5, 6.0]])
@pytest.mark.parametrize("rate", [0.5, 0.25])
def test_pods_keeps_the_subset_of_largest_variance_and_judges_it_alone(rewards: list[float], rate: float) -> None:
    size = round((1 - rate) * len(rewards))
    subsets = list(itertools.combinations(range(len(rewards)), size))
    best = max(statistics.pvariance([rewards[i] for i in s]) for s in subsets)
    ready = grouprl.method("pods", rate=rate).prepare(small(rewards))
    kept = [i for i, w in enumerate(ready.weight_bt[:, 0].tolist()) if w != 0]
    assert len(kept) == size
    assert statistics.pvariance([rewards[i] for i in kept]) == pytest.approx(best)
    near(ready.advantage_bt[kept, 0], standardised([rewards[i] for i in kept]))


def test_d3s_keeps_completions_by_variance_over_the_batch_then_tokens_by_advantage_and_entropy() -> None:
    """Brute force over subsets of half the completions; then the upper 40 % of tokens by |A|·H; A is not renewed."""
    groups = [[1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.6, 0.5]]
    adv = [a for g in groups for a in standardised(g)]
    entropy = [[0.1 + 0.3 * i, 0.2 + 0.11 * i * i, 0.05 * (8 - i)] for i in range(8)]
    batch = small([r for g in groups for r in g], [3] * 8, [0] * 4 + [1] * 4, entropy_bt=entropy)
    ready = grouprl.method("d3s").prepare(batch)
    best = max(statistics.pvariance([adv[i] for i in s]) for s in itertools.combinations(range(8), 4))
    rows = [i for i in range(8) if ready.multiplier_bt[i].any()]
    tokens = [(i, t) for i in range(8) for t in range(3) if ready.multiplier_bt[i, t]]
    chosen = [s for s in itertools.combinations(range(8), 4) if set(rows) <= set(s)]
    s = next(s for s in chosen if statistics.pvariance([adv[i] for i in s]) == pytest.approx(best))
    scores = sorted((abs(adv[i]) * entropy[i][t], (i, t)) for i in s for t in range(3))
    assert sorted(tokens) == sorted(place for _, place in scores[-len(tokens) :])
    assert len(tokens) == math.floor(0.4 * 11) + 1  # upper 40 % by an interpolated quantile of 12 scores
    near(ready.advantage_bt[:, 0], adv)


# --- 35 TempSamp-R1 ---------------------------------------------------------------------------------------------------


def shaped(r: float, tau: float = 0.8) -> float:
    return tau + 0.01 * math.log(r - tau + 1) if r >= tau else tau - (math.exp(tau - r) - 1) / (math.e - 1)


def test_temp_samp_compresses_the_top_and_expands_the_bottom() -> None:
    """r̃ of 0, .2, .5, .7, .8, .9, 1 is .0868, .3215, .5964, .7388, .8, .8010, .8018."""
    rewards = [0, 0.2, 0.5, 0.7, 0.8, 0.9, 1]
    assert [shaped(r) for r in rewards] == pytest.approx(
        [0.0868, 0.3215, 0.5964, 0.7388, 0.8, 0.8010, 0.8018], abs=5e-5
    )
    batch = small(rewards).replace(source_b=torch.tensor([0] * 6 + [2]))
    ready = grouprl.method("temp_samp").prepare(batch)
    near(ready.reward_b, [shaped(r) for r in rewards])
    near(ready.advantage_bt[:, 0], standardised([shaped(r) for r in rewards]))


@pytest.mark.parametrize("rewards", [[0.2, 0.6, 0.1, 1.0], [0.3, 0.3, 0.3, 1.0]])
def test_temp_samp_anchors_the_solution_at_the_best_of_the_others(rewards: list[float]) -> None:
    """The sampled ones are judged among themselves; the solution gets 1.2 times their largest advantage."""
    batch = small(rewards).replace(source_b=torch.tensor([0, 0, 0, 2]))
    own = standardised(rewards[:3])
    adv_b = grouprl.method("temp_samp", variant="anchor").prepare(batch).advantage_bt[:, 0]
    near(adv_b, [*own, 1.2 * max(own)])


def test_temp_samp_without_a_solution_and_shaping_is_grpo() -> None:
    rewards = [0.2, 0.6, 0.1]
    near(
        grouprl.method("temp_samp", variant="anchor").prepare(small(rewards)).advantage_bt[:, 0], standardised(rewards)
    )


# --- 32 SubPO, 177 N-PG-IGT -------------------------------------------------------------------------------------------


def test_a_step_is_weighed_by_the_rest_of_its_walk_beyond_the_groups_mean() -> None:
    """Gains (1, 0, 1) and (0, 1): rests 2, 1, 1 and 1, 1; means 1.5 and 1 of both, 1 of the third step alone."""
    batch = small([2.0, 1.0], [3, 2], turn_reward_bs=[[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    ready = grouprl.method("subpo").prepare(batch.replace(turn_bt=torch.tensor([[0, 1, 2], [0, 1, -1]])))
    near(ready.advantage_bt, [[0.5, 0.0, 0.0], [-0.5, 0.0, 0.0]])


def test_where_the_set_function_adds_up_weights_are_returns_to_go() -> None:
    luck = torch.Generator().manual_seed(0)
    reward_bs = torch.randint(8, (4, 5), generator=luck).double() / 8
    batch = small(reward_bs.sum(1).tolist(), [5] * 4, turn_reward_bs=reward_bs.tolist())
    ready = grouprl.method("subpo").prepare(batch.replace(turn_bt=torch.arange(5).expand(4, 5)))
    rest_bs = reward_bs.flip(1).cumsum(1).flip(1)
    near(ready.advantage_bt, (rest_bs - rest_bs.mean(0)).tolist())


def test_n_pg_igt_has_reinforces_loss_and_a_step_of_the_rates_length_in_its_update() -> None:
    entry = grouprl.method("n_pg_igt", baseline="group")
    ready = entry.compute_advantages(small([1.0, 0.0], [1, 1]))
    near(ready.advantage_bt, [[0.5], [-0.5]])
    assert entry.update.share(0) == 1.0  # type: ignore[union-attr]
    assert entry.update.share(2) == pytest.approx(0.5**0.8)  # type: ignore[union-attr]


def test_harpg_has_reinforces_loss_and_corrects_its_momentum_in_the_update() -> None:
    entry = grouprl.method("harpg", baseline="group", normalised=False)
    ready = entry.compute_advantages(small([1.0, 0.0], [1, 1]))
    near(ready.advantage_bt, [[0.5], [-0.5]])
    assert entry.update.share(1) == pytest.approx(2 / 3)  # type: ignore[union-attr]
    assert entry.update.direction(f64([3.0, 4.0])).tolist() == [3.0, 4.0]  # type: ignore[union-attr]


def test_barfi_has_the_loss_of_the_primary_component_and_unpays_one_that_points_the_other_way() -> None:
    entry = grouprl.method("barfi", rate=0.4)
    rewards = {"accuracy": f64([1.0, 0.0]), "format": f64([0.0, 0.5])}
    near(entry.compute_advantages(small([1.0, 0.5]).replace(rewards=rewards)).advantage_bt, [[0.5], [-0.5]])
    store = {"gradient/format": f64([-3.0, -4.0])}
    weights = []
    for _ in range(3):
        gains = entry.update.learn(store, f64([0.6, 0.8]))  # type: ignore[union-attr]
        assert gains == {"format": pytest.approx(-1.0)}
        weights.append(entry.update.weight(store, "format"))  # type: ignore[union-attr]
    assert weights == pytest.approx([0.6, 0.2, 0.0])
    assert entry.update.weight(store, "accuracy") == 1.0  # type: ignore[union-attr]
