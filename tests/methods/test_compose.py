"""Methods from plain data: every form of a specification, provenance, refusals."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grouprl
from grouprl.algorithms import part as parts
from grouprl.core.errors import InputError
from grouprl.methods import CATALOGUE
from grouprl.methods.compose import as_data, compose

PARTS = {"objective": "clipped", "advantage": "relative", "aggregate": "token_mean"}


def test_a_name_is_the_catalogue_entry():
    got = compose("grpo")
    assert got.method == grouprl.method("grpo")
    assert got.base == "grpo"
    assert got.method.name == "grpo"


def test_entry_settings_and_their_provenance():
    got = compose({"name": "grpo", "clip_high": 0.3})
    assert got.method.objective.clip_high == 0.3
    assert got.method.settings["clip_high"] == 0.3
    assert got.provenance["clip_high"] == "set by you"
    assert got.provenance["objective.clip_high"] == "set by you through clip_high"
    assert got.provenance["objective.clip_low"] == "default of grpo"
    source = CATALOGUE["grpo"].card.defaults.get("clip_low", "")
    assert got.provenance["clip_low"] == "default of grpo" + (f": {source}" if source else "")


def test_part_settings_change_the_base_part():
    got = compose({"base": "grpo", "advantage": {"scale": "none"}})
    plain = grouprl.method("grpo")
    assert got.method.advantage.settings() == {**plain.advantage.settings(), "scale": "none"}
    assert got.method.objective == plain.objective
    assert got.provenance["advantage.scale"] == "set by you"
    assert got.provenance["advantage.eps"] == "default of grpo"


def test_a_bare_string_or_a_part_key_exchanges_the_part():
    for aggregate in ("token_mean", {"part": "token_mean"}):
        got = compose({"base": "grpo", "aggregate": aggregate})
        assert got.method.aggregate.name == "token_mean"
        assert got.provenance["aggregate"] == "set by you"
    exchanged = compose({"base": "grpo", "advantage": {"part": "relative", "center": "none"}})
    assert exchanged.provenance["advantage.center"] == "set by you"
    assert exchanged.provenance["advantage.eps"] == "default of the part"


def test_a_method_of_parts_alone():
    got = compose({"name": "mine", **PARTS})
    assert (got.base, got.method.name, got.method.aggregate.name) == ("", "mine", "token_mean")
    assert compose(PARTS).method.name == "custom"


def test_display_name():
    got = compose({"name": "grpo_without_std", "base": "grpo", "advantage": {"scale": "none"}})
    assert (got.method.name, got.base) == ("grpo_without_std", "grpo")


def test_list_stages_replace_and_add():
    kl = {"part": "kl_loss", "coef": 0.1}
    replaced = compose({"base": "grpo", "regularize": [kl]})
    assert [p.name for p in replaced.method.regularize] == ["kl_loss"]
    assert replaced.provenance["regularize.0.coef"] == "set by you"
    added = compose({"base": "grpo", "regularize": [kl], "add": {"regularize": ["entropy_bonus"]}})
    assert [p.name for p in added.method.regularize] == ["kl_loss", "entropy_bonus"]
    assert added.provenance["regularize.1"] == "set by you"
    assert compose({"base": "grpo", "regularize": []}).method.regularize == ()


def test_no_change_is_noted():
    assert compose({"base": "grpo", "aggregate": "sequence_mean"}).notes


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "catalogue name or a mapping"),
        (None, "catalogue name or a mapping"),
        (["grpo"], "catalogue name or a mapping"),
        ("grop", "Did you mean 'grpo'"),
        ({"name": 3}, "must be a string"),
        ({"name": "grpo", "clip_hihg": 0.3}, "Did you mean 'clip_high'"),
        ({"base": "grpo", "agregate": "token_mean"}, "Did you mean 'aggregate'"),
        ({"base": "grpo", "advantage": {"scal": "none"}}, "Did you mean 'scale'"),
        ({"base": "grpo", "aggregate": "token_maen"}, "Did you mean 'token_mean'"),
        ({"base": "grpo", "aggregate": None}, "aggregate is empty"),
        ({"base": "grpo", "aggregate": 3}, "A part is its name or a mapping"),
        ({"base": "grpo", "clip_high": -1}, "clip_high = -1"),
        ({"base": "grpo", "advantage": {"eps": -1}}, "eps = -1"),
        ({"base": "grpo", "regularize": "kl"}, "must be a list of parts"),
        ({"base": "grpo", "regularize": [{"coef": 0.1}]}, "regularize[0]"),
        ({"base": "grpo", "add": {"aggregate": ["token_mean"]}}, "Only list stages"),
        ({"base": "grpo", "add": ["kl"]}, "must map stages to lists"),
        ({"base": "grpo", "critic": {"coef": 1}}, "has no critic"),
        ({"base": "grpo", "on_policy": "yes"}, "true or false"),
        ({"name": "dr_grpo", "base": "grpo"}, "A catalogue name means one thing"),
        ({"name": "mine", "objective": "clipped"}, "lacks advantage and aggregate"),
        ({"objective": "clipped", "advantage": "relative", "aggregate": "token_mean", "clip_high": 1}, "clip_high"),
        ("no.such.module:f", "cannot import"),
        ("no_such_file.py:f", "there is no file"),
        (":f", "is not a module's name"),
        ("json:lods", "Did you mean 'load"),
    ],
)
def test_wrong_specifications_are_refused_in_words(spec, words):
    with pytest.raises(InputError) as caught:
        compose(spec)
    assert words in str(caught.value)


def test_a_setting_and_a_part_that_decide_the_same_number():
    for objective in ({"clip_high": 0.5}, "clipped", {"part": "clipped", "clip_low": 0.1}):
        with pytest.raises(InputError, match=r"both decide objective\.clip_high"):
            compose({"name": "grpo", "clip_high": 0.3, "objective": objective})
    assert compose({"name": "grpo", "clip_high": 0.3, "objective": {"clip_low": 0.1}}).method.objective.clip_high == 0.3


@pytest.mark.parametrize("aggregate", ["token_mean", "sequence_sum", "constant_length"])
def test_a_sequence_ratio_with_any_mean_is_a_warning(aggregate):
    composed = compose({"base": "grpo", "objective": {"ratio": "sequence"}, "aggregate": aggregate})
    assert composed.method.objective.ratio == "sequence"
    assert [said.split(" with")[0] for said in composed.warnings] == [f"aggregate '{aggregate}'"]
    assert compose({"base": "grpo", "objective": {"ratio": "sequence"}}).warnings == ()


def test_published_compositions_of_a_sequence_ratio_compose_again():
    parts = {"advantage": "relative", "aggregate": "sequence_sum"}
    luspo = compose({"name": "mine", "objective": {"part": "clipped", "ratio": "sequence"}, **parts})
    assert len(luspo.warnings) == 1
    trl_default = compose({"base": "dapo@trl", "importance_sampling_level": "sequence"})
    assert len(trl_default.warnings) == 1, "a setting of the entry is judged like a part"
    assert compose({"base": "gspo@trl", "importance_sampling_level": "token"}).warnings == ()
    assert compose("luspo").warnings == ()


def test_a_number_set_by_the_entry_and_by_the_part_is_the_same_number():
    """verl's GSPO has a token mean as published: nothing is said of it, whichever way the clip is set."""
    by_entry = compose({"base": "gspo@verl", "clip_ratio_low": 3e-4})
    by_part = compose({"base": "gspo@verl", "objective": {"clip_low": 3e-4}})
    assert by_entry.method.objective == by_part.method.objective
    assert by_entry.warnings == by_part.warnings == ()
    assert by_part.provenance["objective.clip_low"] == "set by you"


@pytest.mark.parametrize("name", sorted(parts.PARTS["objective"]))
def test_the_bounds_of_a_clip_have_one_name_in_every_part(name):
    """clip_low, clip_high, dual_clip; weights have floor and cap."""
    cls = parts.PARTS["objective"][name]
    settings = {f.name for f in dataclasses.fields(cls)}
    assert not settings & {"low", "high", "dual", "low_negative", "high_negative"}


def test_a_delta_inside_the_clip_is_the_upper_bound_in_trl():
    inside = compose({"name": "grpo@trl", "delta": 1.2, "epsilon_high": 0.3}).method.objective
    assert (inside.name, inside.bound, inside.clip_high) == ("bounded_clip", 1.2, 0.3)


def test_critic_and_advantage_belong_together():
    with pytest.raises(InputError, match="without a critic"):
        compose({"base": "grpo", "advantage": "gae"})
    with pytest.raises(InputError, match="trained for nothing"):
        compose({"base": "ppo", "advantage": "relative"})


def test_two_kl_terms_are_a_warning():
    kl = [{"part": "kl_loss", "coef": 0.1}]
    twice = compose({"base": "grpo", "regularize": kl, "add": {"regularize": kl}})
    assert "counts 2 times" in twice.warnings[0]
    assert not compose({"base": "grpo", "regularize": kl}).warnings


def test_updates_per_rollout_follow_the_objective_or_are_warned_about():
    assert "on_policy: true" in compose({"base": "grpo", "objective": "policy_gradient"}).warnings[0]
    assert not compose({"base": "grpo", "objective": "policy_gradient", "on_policy": True}).warnings
    assert "on_policy: false" in compose({"base": "rloo", "objective": "clipped"}).warnings[0]
    freed = compose({"base": "rloo", "objective": "clipped", "on_policy": False})
    assert not freed.warnings
    assert not freed.method.on_policy


KEYS = ["name", "base", "add", "part", "clip_high", "scale", "objective", "advantage", "aggregate", "regularize", "x"]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.floats()
    | st.sampled_from([*KEYS, "grpo", "clipped", "kl_loss"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(spec=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4), base=st.sampled_from(["grpo", "ppo", None]))
def test_any_specification_is_built_or_refused_in_words(spec, base):
    with contextlib.suppress(InputError):
        assert isinstance(compose({**spec, **({"base": base} if base else {})}).method, grouprl.Method)


OWN = '''
from grouprl.methods.card import Card
from grouprl.methods.registry import entry
from grouprl.methods import method

def plain(high: float = 0.4):
    """GRPO with a wide clip."""
    return method("grpo", clip_high=high)

def registered(high: float = 0.4):
    return method("grpo", clip_high=high)

entry("registered_by_a_test", registered, Card(title="t", summary="s", formula="f", defaults={"high": "a guess"}))

def wrong():
    return 3
'''


def test_own_methods_by_file_and_module(tmp_path, monkeypatch):
    (tmp_path / "own_method_module.py").write_text(OWN)
    path = f"{tmp_path}/own_method_module.py"
    try:
        plain = compose({"base": f"{path}:plain", "high": 0.5, "aggregate": "token_mean"})
        assert plain.method.objective.clip_high == 0.5
        assert plain.method.aggregate.name == "token_mean"
        registered = compose(f"{path}:registered")
        assert registered.base == "registered_by_a_test"
        assert registered.provenance["high"] == "default of registered_by_a_test: a guess"
        with pytest.raises(InputError, match=r"must return a grouprl\.Method"):
            compose(f"{path}:wrong")
        with pytest.raises(InputError, match="Did you mean 'plain'"):
            compose(f"{path}:plian")
        del CATALOGUE["registered_by_a_test"]
        monkeypatch.syspath_prepend(str(tmp_path))
        assert compose("own_method_module:plain").method.objective.clip_high == 0.4
    finally:
        CATALOGUE.pop("registered_by_a_test", None)


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_as_data_and_back(name):
    method = grouprl.method(name)
    again = compose(as_data(method)).method
    changed = {f: getattr(again, f) for f in ("name", "settings")}
    assert method.with_parts(**changed) == again


def test_composed_methods_compute():
    batch = grouprl.Batch(
        mask_bt=torch.ones(2, 3, dtype=torch.bool),
        group_b=torch.zeros(2, dtype=torch.int64),
        reward_b=torch.tensor([1.0, 0.0], dtype=torch.float64),
        old_bt=torch.full((2, 3), -1.0, dtype=torch.float64),
    )
    method = compose({"base": "grpo", "advantage": {"scale": "none"}, "aggregate": "token_mean"}).method
    ready = method.prepare(batch)
    assert ready.advantage_bt[:, 0].tolist() == [0.5, -0.5]
    assert ready.weight_bt[0, 0].item() == pytest.approx(1 / 6)


def test_single_replayed_completions_need_the_advantage_they_had():
    with pytest.raises(InputError, match="without advantage_transform 'stored_advantage'"):
        compose({"base": "grpo", "buffer": "sample_buffer"})
    with pytest.raises(InputError, match="without advantage_transform 'stored_advantage'"):
        compose({"base": "skywork_r1v2", "advantage_transform": []})
    parts = {"filter": ["replay_apart"], "advantage_transform": ["stored_advantage"]}
    assert compose({"base": "grpo", "buffer": "sample_buffer", **parts}).warnings == ()


def test_work_that_nobody_uses_is_named():
    (said,) = compose({"base": "grpo", "augment": ["continuations"]}).warnings
    assert said.startswith("augment: continuations samples completions for nothing")
    shaped = {"base": "grpo", "augment": ["continuations"], "reward_transform": ["continuation_reward"]}
    assert compose(shaped).warnings == ()
    shown = {"base": "grpo", "buffer": "demonstrations", "curriculum": "thompson_sampling", "augment": ["plan_tree"]}
    assert [said.split(" has")[0] for said in compose(shown).warnings] == [
        "curriculum: thompson_sampling",
        "augment: plan_tree",
    ]
