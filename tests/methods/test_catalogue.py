"""Every entry of the catalogue, tested from its own card and against what must hold for all of them."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grouprl
from batches import Case, in_pieces, outcome, padded, pieces_of, random_case, same
from grouprl.algorithms.method import Method
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.methods import CATALOGUE, Entry, Golden, Reduction
from grouprl.methods.compose import FLAGS, STAGES

NAMES = sorted(CATALOGUE)
GRADIENTS = ("grad_bt", "entropy_grad_bt", "value_grad_bt", "cross_grad_bt")
every_entry = pytest.mark.parametrize("name", NAMES)
BATCH_FIELDS = {f.name for f in dataclasses.fields(Batch)}
GOLDEN = [(n, i) for n in NAMES for i in range(len(CATALOGUE[n].card.golden))]
REDUCTIONS = [(n, i) for n in NAMES for i in range(len(CATALOGUE[n].card.reduces))]


# --- the card -----------------------------------------------------------------------------------------------------


@every_entry
def test_the_card_is_complete(name):
    entry: Entry = CATALOGUE[name]
    card = entry.card
    for field in ("title", "summary", "formula", "papers", "differs", "golden", "source"):
        assert getattr(card, field), f"{name}: the card has no {field}"
    assert set(card.defaults) == set(entry.settings), "each setting has exactly one source of its default"
    assert all(card.defaults.values())
    assert (card.confidence == "verified") == (not card.uncertain), "what is uncertain is said iff not verified"
    assert not {p.year for p in card.papers} & {0}, "every paper has a year"
    assert any(g.advantage is not None for g in card.golden), "a golden example gives advantages"
    assert any(g.grad is not None for g in card.golden), "a golden example gives a gradient"
    assert entry.compose.__doc__
    assert entry.build().on_policy == ("exactly one update per rollout" in card.needs)


@every_entry
def test_settings_round_trip(name):
    entry = CATALOGUE[name]
    method = entry.build()
    assert method.name == name
    assert method == grouprl.method(name, **method.settings)
    assert dict(method.settings) == entry.settings
    assert not set(entry.settings) & {*STAGES, *FLAGS, "name", "base", "add", "part"}, (
        "names with a meaning of their own"
    )
    with pytest.raises(InputError, match="no setting 'no_such_setting'"):
        grouprl.method(name, no_such_setting=1)


@every_entry
def test_every_part_says_what_it_does(name):
    method = grouprl.method(name)
    for part in method.parts():
        assert len(part.words()) > 10
        assert isinstance(part.formula(), str)
        assert {name.partition(".")[0] for name in part.needs()} <= BATCH_FIELDS
    assert method.couples in ("sequence", "group", "batch")


@pytest.mark.parametrize("name", [n for n in NAMES if "@" in n])
def test_a_dialect_belongs_to_an_entry(name):
    original, _, peer = name.partition("@")
    assert original in CATALOGUE
    assert CATALOGUE[name].dialect_of == peer
    assert any(char.isdigit() for char in CATALOGUE[name].card.source), "the source names the version checked"


# --- golden values ------------------------------------------------------------------------------------------------


def ragged(rows: list, lengths: list[int], fill: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    out = torch.full((len(lengths), max(lengths)), fill, dtype=dtype)
    for i, row in enumerate(rows):
        assert len(row) == lengths[i], f"row {i} has {len(row)} numbers for {lengths[i]} tokens"
        out[i, : len(row)] = torch.tensor(row, dtype=dtype)
    return out


def golden_case(golden: Golden) -> Case:
    lengths = list(golden.lengths)
    mask_bt = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    if "mask_bt" in golden.fields:
        mask_bt = golden_field("mask_bt", golden.fields["mask_bt"], lengths)
    old_bt = torch.full(mask_bt.shape, -1.0, dtype=torch.float64)
    shift_bt = torch.zeros_like(old_bt) if golden.log_ratio is None else ragged(golden.log_ratio, lengths, 0.0)
    fields = {"group_b": torch.tensor(golden.groups or [0] * len(lengths)), "old_bt": old_bt, "behavior_bt": old_bt}
    for key, value in golden.fields.items():
        whole, _, entry = key.partition(".")
        if key == "mask_bt":
            continue
        if entry:
            fields[whole] = fields.get(whole, {}) | {entry: golden_field(key, value, lengths)}
        else:
            fields[key] = golden_field(key, value, lengths)
    reward_b = torch.tensor(golden.rewards, dtype=torch.float64)
    batch = Batch(mask_bt=mask_bt, reward_b=reward_b, **fields)
    zero_bt = torch.zeros_like(old_bt)
    return Case(batch, old_bt + shift_bt, zero_bt, zero_bt if batch.value_bt is None else batch.value_bt, zero_bt)


def golden_field(key: str, value: object, lengths: list[int]) -> object:
    """A batch field from plain numbers: one for all, one per row, or ragged per token (also `stats.certainty`)."""
    if not isinstance(value, list | tuple):
        return value
    if isinstance(value[0], list | tuple) and (key.endswith("_bt") or key.startswith(("stats.", "marks.", "refs."))):
        kinds = {type(x) for row in value for x in row}
        dtype, fill = {frozenset({bool}): (torch.bool, 0), frozenset({int}): (torch.int64, -1)}.get(
            frozenset(kinds), (torch.float64, 0.0)
        )
        return ragged(value, lengths, fill, dtype)
    tensor = torch.tensor(value)
    return tensor.double() if tensor.is_floating_point() or key.startswith("past.") else tensor


@pytest.mark.parametrize(("name", "index"), GOLDEN)
def test_golden_values(name, index):
    golden = CATALOGUE[name].card.golden[index]
    assert not (golden.advantage is None and golden.loss is None and golden.grad is None)
    method, case = grouprl.method(name, **golden.settings), golden_case(golden)
    ready, close = method.prepare(case.batch), {"rtol": 0, "atol": golden.tolerance}
    mask_bt = case.batch.mask_bt
    if golden.advantage is not None:
        pairs = zip(golden.advantage, golden.lengths, strict=True)
        rows = [list(a) if isinstance(a, list | tuple) else [a] * n for a, n in pairs]
        torch.testing.assert_close(ready.advantage_bt, ragged(rows, list(golden.lengths), 0.0), **close)
    logp_bt = case.logp_bt.clone().requires_grad_()
    scores = {name: x.requires_grad_() for name, x in case.batch.row_outputs.items()}
    values = {"action_value": logp_bt} if "action_value" in method.outputs else {}
    values |= {name: x for name, x in case.batch.stats.items() if name in method.outputs}
    value = method.loss(logp_bt, ready, case.entropy_bt, outputs={**scores, **values}).value
    if golden.loss is not None:
        assert float(value.detach()) == pytest.approx(golden.loss, abs=golden.tolerance)
    if golden.grad is not None and scores:
        grad_bn = torch.stack(torch.autograd.grad(value, [*scores.values()]), dim=1)
        torch.testing.assert_close(grad_bn, torch.tensor(golden.grad).double(), **close)
    elif golden.grad is not None:
        (grad_bt,) = torch.autograd.grad(value, logp_bt)
        torch.testing.assert_close(grad_bt, ragged(golden.grad, list(golden.lengths), 0.0), **close)
        assert not grad_bt[~(mask_bt | case.batch.marks.get("said", mask_bt))].any()


# --- reductions ---------------------------------------------------------------------------------------------------


def meeting(reduction: Reduction, seed: int) -> Case:
    """A random case on which every condition of the reduction holds."""
    when = set(reduction.when) - {"always"}
    sizes = [2, 2, 2] if "two_completions" in when else [4, 3, 5]
    case = random_case(
        seed,
        sizes[:1] if "one_group" in when else sizes,
        rewards="mixed" if "mixed_groups" in when else "binary" if "binary_rewards" in when else "real",
        on_policy="on_policy" in when,
        equal_lengths="equal_lengths" in when,
    )
    if "all_sampled" in when:
        own_b = torch.ones_like(case.batch.group_b)
        sampled = case.batch.replace(source_b=None, keys={**case.batch.keys, "own": own_b})
        case = dataclasses.replace(case, batch=sampled)
    if "no_turn_rewards" in when:
        zero_bs = torch.zeros_like(case.batch.need("turn_reward_bs", "the test"))
        case = dataclasses.replace(case, batch=case.batch.replace(turn_reward_bs=zero_bs))
    if "all_valid" in when:
        yes_bs = torch.ones_like(case.batch.need("valid_bs", "the test"))
        case = dataclasses.replace(case, batch=case.batch.replace(valid_bs=yes_bs))
    if "equal_durations" in when:
        stats = {**case.batch.stats, "duration": torch.full_like(case.logp_bt, 3.0)}
        case = dataclasses.replace(case, batch=case.batch.replace(stats=stats))
    if "known_worth" in when:
        past = {**case.batch.past, "q": case.batch.reward_b, "v": torch.zeros_like(case.batch.reward_b)}
        case = dataclasses.replace(case, batch=case.batch.replace(past=past))
    for name in ("format", "accuracy"):
        if f"{name}_alone" in when:
            alone = {"rewards": {name: case.batch.reward_b}, "agent_b": torch.zeros_like(case.batch.group_b)}
            case = dataclasses.replace(case, batch=case.batch.replace(**alone))
    if "no_opponents" in when:
        keys = {**case.batch.keys, "opponent": torch.zeros_like(case.batch.group_b)}
        case = dataclasses.replace(case, batch=case.batch.replace(keys=keys))
    if "no_penalty" in when:
        weights = ("root_weight", "kl_weight", "multiplier")
        none = dict.fromkeys(weights, torch.zeros_like(case.batch.reward_b))
        case = dataclasses.replace(case, batch=case.batch.replace(past={**case.batch.past, **none}))
    if "same_values" in when:
        stats = {**case.batch.stats, "post_value": case.batch.need("value_bt", "the test")}
        case = dataclasses.replace(case, batch=case.batch.replace(stats=stats))
    if "one_strategy" in when:
        keys = {**case.batch.keys, "variant": torch.zeros_like(case.batch.group_b)}
        case = dataclasses.replace(case, batch=case.batch.replace(keys=keys))
    if "one_data_group" in when:
        past = {**case.batch.past, "group_weight": torch.ones_like(case.batch.reward_b)}
        case = dataclasses.replace(case, batch=case.batch.replace(past=past))
    if "none_prefixed" in when:
        keys = {**case.batch.keys, "twin": torch.zeros_like(case.batch.group_b)}
        case = dataclasses.replace(case, batch=case.batch.replace(keys=keys))
    if "all_apart" in when:
        keys = {**case.batch.keys, "answer": torch.arange(len(case.batch.group_b))}
        case = dataclasses.replace(case, batch=case.batch.replace(keys=keys))
    if "one_agent" in when:
        case = dataclasses.replace(case, batch=case.batch.replace(agent_b=torch.zeros_like(case.batch.group_b)))
    if "distinct_states" in when:
        state_bs = case.batch.need("state_bs", "the test")
        own_bs = torch.arange(state_bs.numel()).view_as(state_bs)
        case = dataclasses.replace(case, batch=case.batch.replace(state_bs=own_bs))
    if {"one_token_turns", "one_turn"} & when:
        turn_t = torch.arange(case.logp_bt.shape[1]) * ("one_token_turns" in when)
        turn_bt = torch.where(case.batch.mask_bt, turn_t, -1)
        case = dataclasses.replace(case, batch=case.batch.replace(turn_bt=turn_bt))
    return case


@pytest.mark.parametrize(("name", "index"), REDUCTIONS)
def test_reductions(name, index):
    reduction = CATALOGUE[name].card.reduces[index]
    ours = grouprl.method(name, **reduction.settings)
    theirs = grouprl.method(reduction.to, **reduction.other)
    seen = 0.0
    for seed in range(4):
        case = meeting(reduction, seed)
        a, b = outcome(ours, case).grad_bt, outcome(theirs, case).grad_bt
        factor = reduction.scale
        if factor is None:
            factor = float((a * b).sum() / (b * b).sum()) if b.any() else 1.0
            assert factor > 0
        torch.testing.assert_close(a, factor * b, rtol=1e-4, atol=1e-6)
        seen += float(a.abs().sum())
    assert seen > 0, "a reduction between zero gradients shows nothing"


# --- what holds for every method ------------------------------------------------------------------------------------


@every_entry
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**20), drift=st.sampled_from([0.0, 0.05, 0.5]), rewards=st.sampled_from(["real", "binary"]))
def test_split_and_order_do_not_matter(name, seed, drift, rewards):
    method, case = grouprl.method(name), random_case(seed, rewards=rewards, drift=drift)
    pieces = pieces_of(method, case.batch.group_b, torch.Generator().manual_seed(seed))
    same(in_pieces(method, case, pieces), outcome(method, case))


@every_entry
@pytest.mark.parametrize("garbage", [7.5, math.nan, math.inf, -math.inf])
def test_padding_does_not_matter(name, garbage):
    method, case = grouprl.method(name), random_case(3)
    wide = outcome(method, padded(case, 2, 3, garbage, said="marks.said" in method.needs()))
    trim = {key: getattr(wide, key)[:, 2:-3] for key in GRADIENTS}
    assert not wide.grad_bt[:, :2].any()
    assert not wide.grad_bt[:, -3:].any()
    same(dataclasses.replace(wide, **trim), outcome(method, case))


@every_entry
@pytest.mark.parametrize("rewards", ["real", "binary"])
def test_order_of_rows_does_not_matter(name, rewards):
    method, case = grouprl.method(name), random_case(5, rewards=rewards)
    order = torch.randperm(case.logp_bt.shape[0], generator=torch.Generator().manual_seed(1))
    straight, mixed = outcome(method, case), outcome(method, case.rows(order))
    permuted = {key: getattr(straight, key)[order] for key in GRADIENTS}
    same(mixed, dataclasses.replace(straight, **permuted))


@every_entry
def test_names_of_groups_do_not_matter(name):
    method, case = grouprl.method(name), random_case(6)
    other = torch.tensor([901, 3, 77, 12])[case.batch.group_b]
    renamed = dataclasses.replace(case, batch=case.batch.replace(group_b=other))
    same(outcome(method, renamed), outcome(method, case))


def reward_extremes() -> dict[str, Case]:
    case = random_case(7, sizes=(4, 1, 3, 1), rewards="mixed")
    b = case.batch.group_b.shape[0]
    ones, yes = torch.ones(b, dtype=torch.float64), torch.ones(b, dtype=torch.bool)
    constant = (case.batch.group_b % 2).double()
    changes = {
        "all right": {"reward_b": ones, "correct_b": yes},
        "all wrong": {"reward_b": 0 * ones, "correct_b": ~yes},
        "all truncated": {"truncated_b": yes},
        "none truncated": {"truncated_b": ~yes},
        "groups without spread": {"reward_b": constant, "correct_b": constant.bool()},
        "a constant that is not exact": {"reward_b": 0.1 * ones, "correct_b": ~yes},
        "tiny spread": {"reward_b": ones + 1e-12 * torch.arange(b, dtype=torch.float64)},
        "huge rewards": {"reward_b": 1e12 * case.batch.reward_b},
        "groups of one": {"group_b": torch.arange(b)},
    }
    return {key: dataclasses.replace(case, batch=case.batch.replace(**change)) for key, change in changes.items()}


EXTREMES = reward_extremes()


@every_entry
@pytest.mark.parametrize("extreme", EXTREMES)
def test_extremes_of_reward_stay_finite(name, extreme):
    got = outcome(grouprl.method(name), EXTREMES[extreme])
    for tensor in (got.value, got.grad_bt, got.entropy_grad_bt, got.value_grad_bt, *got.metrics.values()):
        assert torch.isfinite(tensor).all()


@every_entry
@pytest.mark.parametrize("shift", [-50.0, 50.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_extreme_log_ratios_stay_finite(name, shift, dtype):
    case = random_case(8, dtype=dtype)
    sign_bt = torch.where(torch.arange(case.logp_bt.shape[1]) % 2 == 0, 1.0, -1.0).to(dtype)
    for pattern in (shift, shift * sign_bt):
        got = outcome(grouprl.method(name), dataclasses.replace(case, logp_bt=case.logp_bt + pattern))
        assert torch.isfinite(got.value)
        assert torch.isfinite(got.grad_bt).all()
        assert all(torch.isfinite(x) for x in got.metrics.values())


def with_dead_groups(seed: int) -> Case:
    """Groups 0 (all right) and 1 (all wrong) are dead, the others are mixed."""
    case = random_case(seed, sizes=(3, 3, 4, 4), rewards="mixed")
    dead_b = case.batch.group_b < 2
    reward_b = torch.where(dead_b, (case.batch.group_b == 0).double(), case.batch.reward_b)
    return dataclasses.replace(case, batch=case.batch.replace(reward_b=reward_b, correct_b=reward_b.bool()))


@every_entry
@pytest.mark.parametrize("seed", [1, 2])
def test_rows_called_zero_have_no_gradient(name, seed):
    method, case = grouprl.method(name), with_dead_groups(seed)
    ready = method.prepare(case.batch)
    zero_b = method.zero_rows(ready)
    got = outcome(method, case, ready)
    for grad_bt in (got.grad_bt, got.entropy_grad_bt, got.value_grad_bt):
        assert not grad_bt[zero_b].any()
    if not name.startswith("passk"):  # several of each group are best, so nobody leads
        assert got.grad_bt[~zero_b].any()


@every_entry
def test_tokens_without_advantage_have_no_gradient(name):
    method, case = grouprl.method(name), with_dead_groups(4)
    if method.regularize or method.couples != "sequence":
        pytest.skip("a regulariser or the coupling of rows acts without advantage")
    ready = method.prepare(case.batch)
    assert not outcome(method, case, ready).grad_bt[~ready.active_bt].any()
    if not method.objective.zero_rows(ready)[~(ready.advantage_bt != 0).any(1)].all():
        pytest.skip("the objective pulls completions without advantage to its anchor")
    assert not outcome(method, case, ready).grad_bt[ready.advantage_bt == 0].any()


@every_entry
def test_floating_types(name):
    exact, single = (outcome(grouprl.method(name), random_case(9, dtype=d)) for d in (torch.float64, torch.float32))
    for got, dtype in ((exact, torch.float64), (single, torch.float32)):
        for tensor in (got.value, got.grad_bt, *got.metrics.values()):
            assert tensor.dtype == dtype
    torch.testing.assert_close(single.grad_bt.double(), exact.grad_bt, rtol=1e-3, atol=1e-4)
    assert exact.grad_bt.any()


@every_entry
def test_same_input_same_bits(name):
    a, b = (outcome(grouprl.method(name), random_case(10)) for _ in range(2))
    assert torch.equal(a.grad_bt, b.grad_bt)
    assert torch.equal(a.value, b.value)


@every_entry
def test_the_callers_batch_is_not_changed(name):
    case = random_case(11)
    before = {key: x.clone() for key, x in vars(case.batch).items() if isinstance(x, torch.Tensor)}
    outcome(grouprl.method(name), case)
    for key, x in before.items():
        assert torch.equal(getattr(case.batch, key), x), key


def only_needed(case: Case, method: Method, without: str = "") -> Case:
    """Drop every optional field of the batch that the method does not declare, and `without`."""
    optional = {f.name for f in dataclasses.fields(Batch) if f.default is None}
    keep = set(method.needs()) - {without}
    changes = dict.fromkeys(optional - keep)
    for whole in ("rewards", "keys", "marks", "stats", "past", "refs", "edges"):
        entries = getattr(case.batch, whole).items()
        changes[whole] = {key: value for key, value in entries if f"{whole}.{key}" in keep}
    return dataclasses.replace(case, batch=case.batch.replace(**changes))


KNOWN_WITHOUT = ("keys.mismatched", "past.score_mean", "rewards.#best")
"""Fields that a run gives and that plain tensors may lack: no row is mismatched, no step was before, no prompt is
chosen.
"""


@pytest.mark.filterwarnings("ignore:no completion stands after another prompt")
@every_entry
def test_declared_needs_are_enough_and_each_is_needed(name):
    method, case = grouprl.method(name), random_case(12)
    assert outcome(method, only_needed(case, method)).grad_bt.any()
    for field in method.needs():
        if field in KNOWN_WITHOUT:
            assert outcome(method, only_needed(case, method, without=field)).grad_bt.any()
            continue
        with pytest.raises(InputError, match=field):
            outcome(method, only_needed(case, method, without=field))
