"""Rows that begin alike go through the model once as far as they do, and every number stays what it was."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_results import assert_same, results
from grouprl.policy import CausalPolicy, Tokens, char_tokenizer
from grouprl.policy.fast_forward.token_plan import plan_pass
from grouprl.policy.microbatch import split_tree
from grouprl.policy.passes import PassSettings
from grouprl.records import tokens as tokens_module
from grouprl.records.shared_prefixes import common_beginning, histories
from policies import ALPHABET, FAMILIES, make_model, precise_norms

CPU = torch.device("cpu")
TREES = {
    "completions that begin alike": Tokens.of([[1, 5, 6]] * 4, [[4, 5, 6, 7], [4, 5, 8], [4, 5, 6, 9, 9], [7, 7]]),
    "one completion twice": Tokens.of([[1, 5]] * 3, [[4, 5, 6], [4, 5, 6], [4, 6]]),
    "one inside another": Tokens.of([[1, 5]] * 3, [[4, 5, 6, 7], [4, 5], [4]]),
    "one instruction, several prompts": Tokens.of([[1, 9, 9, 5], [1, 9, 9, 6], [1, 9, 9, 5]], [[4], [4, 5], [4, 6]]),
    "a prompt that ends where another's completion goes on": Tokens.of([[1, 5, 4], [1, 5]], [[6, 7], [4, 6, 8]]),
    "more keys than a short row's": Tokens.of([[1, *[5] * 140]] * 3, [[4, 5, 6], [4, 5, 7, 8], [9]]),
    "nothing to say": Tokens.of([[1, 5], [1, 5], [1, 5, 6]], [[], [4], []]),
}


def policies(family="llama"):
    model = precise_norms(make_model(FAMILIES[family], torch.float64))
    tokenizer = char_tokenizer(ALPHABET)
    return [
        CausalPolicy(model, tokenizer, engine="lean", passes=PassSettings(shared_prefix=way)) for way in ("on", "off")
    ]


def test_a_tree_by_hand():
    tree = histories([(1, 2, 3), (5,), (1, 2, 4, 4), (1, 2, 3)])
    assert tree.order == (0, 3, 2, 1)
    assert tree.common_r.tolist() == [0, 3, 2, 0]
    assert tree.distinct == 6
    assert tree.ratio == 11 / 6
    paths = [path[:length].tolist() for path, length in zip(tree.paths(), tree.length_r, strict=True)]
    assert paths == [[0, 1, 2], [0, 1, 2], [0, 1, 3, 4], [5]]
    assert histories([]).ratio == 1.0
    assert [
        common_beginning(*pair) for pair in [((), (1,)), ((1, 2), (1, 2)), ((1, 2, 3), (1, 2, 4)), ((2,), (1,))]
    ] == [
        0,
        2,
        2,
        0,
    ]


def test_a_pass_by_hand():
    """Prompt 1 5, completions 4 6 and 4 7 8: their last tokens are read by nobody."""
    plan = plan_pass(Tokens.of([[1, 5], [1, 5]], [[4, 6], [4, 7, 8]]), torch.float32, CPU)
    assert plan.ids_s.tolist() == [1, 5, 4, 7]
    assert plan.position_s.tolist() == [0, 1, 2, 3]
    assert plan.place_m is not None
    assert plan.needed_u is not None
    assert plan.needed_u.tolist() == [1, 2, 3], "the prompt's first token predicts nothing"
    assert plan.needed_u[plan.state_n[plan.place_m]].tolist() == [1, 2, 1, 2, 3]
    assert plan.target_n[plan.place_m].tolist() == [4, 6, 4, 7, 8]
    assert len(plan.target_n) == 4, "4 after 1 5 is predicted once for both"
    long, short = sorted(plan.blocks, key=lambda block: -block.token_rl.shape[1])
    assert long.token_rl.tolist() == long.key_rk.tolist() == [[0, 1, 2]]
    assert (short.token_rl.tolist(), short.key_rk.tolist()) == ([[3]], [[0, 1, 2, 3]])
    assert short.bias.tolist() == [[[[0, 0, 0, 0]]]]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tree", TREES)
def test_shared_histories_change_no_number(family, tree):
    together, apart = policies(family)
    tokens = TREES[tree]
    assert plan_pass(tokens, torch.float64, CPU).blocks[0].key_rk is not None
    assert_same(results(together, tokens), results(apart, tokens), 1e-10)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(3, 4), max_size=3), st.lists(st.integers(3, 4), max_size=7)),
        min_size=1,
        max_size=9,
    ).filter(lambda rows: any(response for _, response in rows)),
    st.sampled_from([4, 9, 10**6]),
)
def test_any_rows_in_any_passes(rows, budget):
    together, apart = policies()
    together.token_budget = budget
    tokens = Tokens.of([[1, *prompt] for prompt, _ in rows], [response for _, response in rows])
    assert_same(results(together, tokens), results(apart, tokens), 1e-10)


def test_passes_hold_every_row_once_and_neighbours_together():
    generator = np.random.default_rng(0)
    prompts = [[1, i % 3 + 3] for i in range(30)]
    tokens = Tokens.of(prompts, [generator.integers(3, 5, size=8).tolist() for _ in range(30)])
    passes = split_tree(tokens, range(30), 60, pays=1.05)
    assert sorted(row for rows in passes for row in rows) == list(range(30))
    assert len(passes) < len(split_tree(tokens, range(30), 60, pays=99.0))
    firsts = [tokens.prompt_ids[row] for rows in passes for row in rows]
    assert firsts == sorted(firsts)
    assert split_tree(tokens, [], 60, pays=1.05) == []


def test_what_does_not_pay_is_left_alone():
    tokens = Tokens.of([[1], [1]], [[4] * 30, [5] * 30])
    assert plan_pass(tokens, torch.float32, CPU, pays=1.05).blocks[0].key_rk is None
    assert plan_pass(tokens, torch.float32, CPU).blocks[0].key_rk is not None


def test_where_sharing_is_forbidden_no_tree_is_made(monkeypatch):
    def refuse(rows):
        raise AssertionError("a tree was made")

    monkeypatch.setattr("grouprl.records.tokens.histories", refuse)
    together, apart = policies()
    assert apart.logp(Tokens.of([[1, 5]] * 3, [[4, 5, 6], [4, 5, 6], [4, 6]])).shape == (3, 3)
    with pytest.raises(AssertionError, match="a tree was made"):
        together.logp(Tokens.of([[1, 5]] * 2, [[4, 5, 6], [4, 5, 6]]))


def test_a_tree_is_made_once_for_what_fits_into_one_pass(monkeypatch):
    made, make = [], tokens_module.histories
    monkeypatch.setattr(tokens_module, "histories", lambda rows: made.append(len(rows)) or make(rows))
    together, _ = policies()
    together.logp(Tokens.of([[1, 5]] * 3, [[4, 5, 6], [4, 5, 6], [4, 6]]))
    assert made == [3]
