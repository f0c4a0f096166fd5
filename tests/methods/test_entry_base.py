"""Entries that start from another entry."""

from __future__ import annotations

from typing import Literal

import pytest

import grouprl
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.method import Method
from grouprl.core.errors import InputError
from grouprl.core.numbers import Positive
from grouprl.methods.card import Card
from grouprl.methods.describe import settings_of
from grouprl.methods.registry import CATALOGUE, entry, find

CARD = Card(title="Mine", summary="GRPO with a token mean", formula="", defaults={"clip_high": "mine: 0.5"})


@pytest.fixture
def forget():
    """Take the entries that a test registers out of the catalogue again."""
    before = set(CATALOGUE)
    yield
    for name in set(CATALOGUE) - before:
        del CATALOGUE[name]


def test_an_entry_has_the_settings_types_and_lines_of_its_base(forget):
    def mine(base: Method, kl_coef: float, clip_high: Positive = 0.5, extra: bool = True) -> Method:
        assert kl_coef == 0.25
        return base.with_parts(aggregate=TokenMean()) if extra else base

    entry("mine", mine, CARD, base="grpo")

    found, grpo = find("mine"), find("grpo")
    assert found.settings == {**grpo.settings, "clip_high": 0.5, "extra": True}
    assert found.card.defaults == {**grpo.card.defaults, "clip_high": "mine: 0.5"}
    types = {row["name"]: row["type"] for row in settings_of(grpo)}
    assert {row["name"]: row["type"] for row in settings_of(found)} == {**types, "extra": "true | false"}

    made = grouprl.method("mine", eps=0.125, kl_coef=0.25)
    assert made.advantage == grouprl.method("grpo", eps=0.125).advantage
    assert made.objective.clip_high == 0.5, "the base is composed with the entry's default"
    assert made.aggregate == TokenMean()
    assert made.settings["eps"] == 0.125
    plain = grouprl.method("mine", extra=False, kl_coef=0.25, clip_high=0.2)
    assert list(plain.parts()) == list(grouprl.method("grpo", kl_coef=0.25).parts())


def test_only_what_is_kept_can_be_set(forget):
    def mine(base: Method, clip_low: float, clip_high: Positive = 0.5) -> Method:
        return base

    entry("mine", mine, CARD, base="grpo", keeps=("eps",))

    assert list(find("mine").settings) == ["clip_low", "clip_high", "eps"], "in the base's order"
    assert find("mine").card.defaults.keys() == {"clip_low", "clip_high", "eps"}
    with pytest.raises(InputError, match="no setting 'kl_coef'"):
        grouprl.method("mine", kl_coef=0.1)
    with pytest.raises(InputError, match=r"clip_low = 2"):
        grouprl.method("mine", clip_low=2)  # at most 1, as in the base


def test_a_setting_of_another_type_is_not_the_base_s(forget):
    def mine(base: Method, scale: Literal["log"] = "log", clip_high: Positive = 0.5) -> Method:
        return base

    entry("mine", mine, CARD, base="grpo", keeps=())

    assert grouprl.method("mine").advantage == grouprl.method("grpo").advantage


def test_what_the_base_lacks_cannot_be_kept(forget):
    def mine(base: Method) -> Method:
        return base

    entry("mine", mine, CARD, base="grpo", keeps=("clip_hihg",))

    with pytest.raises(InputError, match=r"keeps the setting 'clip_hihg' of grpo.*clip_high"):
        grouprl.method("mine")

    def lost(base: Method) -> Method:
        return base

    entry("lost", lost, CARD, base="gropo")

    with pytest.raises(InputError, match="unknown method 'gropo'"):
        grouprl.method("lost")


def test_bases_stand_on_bases():
    assert find("st_ppo").base == "turn_ppo"
    assert find("turn_ppo").base == "ppo"
    assert find("st_ppo").settings == {"least": 1.0, **find("turn_ppo").settings}
    assert grouprl.method("st_ppo", clip_low=0.1).objective == grouprl.method("turn_ppo", clip_low=0.1).objective
    assert grouprl.method("turn_ppo").reward_transform == ()


def test_no_card_repeats_a_line_of_its_base():
    for name, mine in CATALOGUE.items():
        inherited = find(mine.base).card.defaults if mine.base else {}
        again = [key for key, line in mine.written.defaults.items() if line == inherited.get(key)]
        assert not set(again) & set(mine.settings), name
