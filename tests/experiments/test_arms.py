"""What a comparison is told on the command line, and what it refuses."""

from __future__ import annotations

import pytest

from grouprl.core.errors import InputError
from grouprl.experiments.arms import arms_of, methods_of, sweeps_of
from grouprl.experiments.budget import Budget, budget_of, nominal, spent
from grouprl.experiments.compare import source_of
from grouprl.experiments.design import Comparison


def labels(methods: str, *over: str) -> list[str]:
    return [arm.label for arm in arms_of(methods_of(methods) if methods else [], sweeps_of("--over", over))]


def test_methods_are_names_or_mappings() -> None:
    assert labels("grpo,dr_grpo,{base: dapo, clip_high: 0.3},grpo@trl") == [
        "grpo",
        "dr_grpo",
        "dapo with clip_high 0.3",
        "grpo@trl",
    ]


def test_a_sweep_makes_an_arm_of_each_combination() -> None:
    found = labels("grpo,gspo", "batch.group_size=4,8", "optim.lr=1e-4")
    assert found[0] == "grpo · batch.group_size 4 · optim.lr 1e-4"
    assert len(found) == 4
    assert labels("", "batch.group_size=4,8") == ["batch.group_size 4", "batch.group_size 8"]


def test_a_swept_setting_reaches_the_configuration() -> None:
    arm = arms_of(methods_of("dapo"), sweeps_of("--over", ["method.clip_high=0.3,0.4"]))[1]
    config = source_of("addition").config(arm.changes)
    assert config.method == {"name": "dapo", "clip_high": 0.4}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: methods_of(""), "names no method"),
        (lambda: methods_of("grpo,3"), "a name or a mapping"),
        (lambda: labels("grpo,grpo"), "compared with itself"),
        (lambda: sweeps_of("--over", ["optim.lr"]), "must name a setting and its values"),
        (lambda: sweeps_of("--over", ["optim.lr=1,1"]), "Each value may be given only once"),
        (lambda: sweeps_of("--tune", ["optim.lr=1", "optim.lr=2"]), "twice"),
        (lambda: budget_of("joules=3"), "tokens, trained, steps, seconds"),
        (lambda: budget_of("seconds"), "amount has to be given"),
        (lambda: Budget("seconds"), "amount has to be given"),
        (lambda: budget_of("tokens=-3"), "positive"),
        (lambda: budget_of("steps=2.5"), "whole"),
    ],
)
def test_what_is_refused(call, said: str) -> None:
    with pytest.raises(InputError, match=said):
        call()


def test_a_comparison_needs_two_arms_two_seeds_and_something_to_train_on() -> None:
    source, arms = source_of("addition"), tuple(arms_of(methods_of("grpo,gspo"), {}))
    for given, said in (
        ({"arms": arms[:1]}, "at least two"),
        ({"seeds": 1}, "spread"),
        ({"sources": ()}, "nothing is said to train on"),
        ({"against": "ppo"}, "one of the arms: grpo, gspo"),
    ):
        with pytest.raises(InputError, match=said):
            Comparison(**{"sources": (source,), "arms": arms, "seeds": 3, **given})


def test_budgets() -> None:
    assert budget_of("tokens=400_000") == Budget("tokens", 400000.0)
    assert budget_of("steps") == Budget("steps")
    assert Budget("steps").settings(20) == ("steps=20",)
    assert Budget("tokens", 9.0).settings(20) == ("steps=80", "optim.schedule=constant")
    assert nominal(10, 512, 7.345) == 38000


def test_what_has_been_spent_is_that_of_training_steps() -> None:
    records = [
        {"phase": "train", "tokens_sampled": 10.0, "tokens": 4.0, "seconds_rollout": 1.0, "seconds_update": 0.5},
        {"phase": "eval", "tokens_sampled": 99.0},
        {"phase": "train", "tokens_sampled": 5.0},
    ]
    assert [spent(unit, records) for unit in ("tokens", "trained", "steps", "seconds")] == [15.0, 4.0, 2.0, 1.5]


def test_the_rate_is_swept_around_that_of_each_source() -> None:
    sources = source_of("addition"), source_of({"task": "addition", "optim": {"lr": 3e-3}})
    arms = tuple(arms_of(methods_of("grpo,gspo"), {}))
    what = Comparison(sources, arms, tune=None)
    assert [what.grid(source, arms[1]) for source in sources] == [
        [("optim.lr=0.00017",), ("optim.lr=0.0005",), ("optim.lr=0.0015",)],
        [("optim.lr=0.001",), ("optim.lr=0.003",), ("optim.lr=0.009",)],
    ]
    assert what.tunes


def test_own_functions_of_one_name_keep_their_paths() -> None:
    assert labels("a/own.py:f,grpo") == ["own.py:f", "grpo"]
    assert labels("a/own.py:f,b/own.py:f,grpo") == ["a/own.py:f", "b/own.py:f", "grpo"]


def test_a_task_without_a_recipe_is_a_source() -> None:
    source = source_of("reverse", ["steps=3"])
    assert (source.name, source.settings["task"], source.settings["steps"]) == ("reverse", "reverse", 3)


@pytest.mark.parametrize("amount", ["inf", "nan", "-inf"])
def test_a_number_of_steps_that_is_none_is_refused_in_words(amount: str) -> None:
    with pytest.raises(InputError, match="The amount must be a positive number, and whole for steps"):
        budget_of(f"steps={amount}")
