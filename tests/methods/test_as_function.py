"""Methods as one plain function of tensors: what is shown computes the loss and the gradient of the method."""

from __future__ import annotations

import contextlib
import inspect
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import grouprl
from batches import Case, close, named_outputs, random_case
from grouprl.algorithms.advantage.advantage import RawReward
from grouprl.algorithms.method import Method
from grouprl.algorithms.reward_transform.papers.span_rewards import SpanRewards
from grouprl.cli.app import app
from grouprl.config.run import load_config, recipe_names
from grouprl.core.errors import InputError
from grouprl.methods.as_function import as_function, own_code
from grouprl.methods.compose import compose
from grouprl.methods.plain_names import read_first


def cases() -> list[Case]:
    """Two steps: rewards of any size with a group of one, and rewards of 0 and 1 with groups that are all equal."""
    return [random_case(7, (4, 3, 1, 5)), random_case(11, (3, 4, 2, 2), rewards="binary")]


def unset(name: str) -> bool:
    """Whether an entry has a setting without a default."""
    return inspect.Parameter.empty in grouprl.methods.CATALOGUE[name].settings.values()


COMPLETE = [name for name in grouprl.methods() if not unset(name)]
"""Entries without a setting that the user must give."""


@cache
def shown(name: str) -> str | None:
    """The source of an entry of the catalogue, if it can be shown so with its own settings."""
    with contextlib.suppress(InputError):
        return as_function(grouprl.method(name))
    return None


def called(source: str, case: Case, leaves: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Loss and advantages that the shown function computes from the fields of a batch."""
    found: dict[str, Any] = {}
    exec(source.replace("    return loss\n", "    return loss, adv_bt\n"), found)
    function = [value for value in found.values() if inspect.isfunction(value)][-1]
    given = {
        **leaves,
        "old_entropy_bt": case.batch.entropy_bt,
        "stats": {**case.batch.stats, **leaves},
        "row_outputs": leaves,
    }
    names = inspect.signature(function).parameters
    return function(**{name: given[name] if name in given else getattr(case.batch, name) for name in names})


def leaves_of(method: Method, case: Case) -> dict[str, Tensor]:
    """What the policy gives by name, with gradient."""
    given = {
        "logp_bt": case.logp_bt,
        "entropy_bt": case.entropy_bt,
        **named_outputs(method, case.cross_bt, case.logp_bt, case.batch),
    }
    return {name: value.clone().requires_grad_() for name, value in given.items()}


@pytest.mark.parametrize("name", COMPLETE)
@pytest.mark.parametrize("which", range(2))
@pytest.mark.filterwarnings("ignore:the method")
def test_what_is_shown_computes_the_advantages_the_loss_and_its_gradient(name: str, which: int) -> None:
    source = shown(name)
    if source is None:
        pytest.skip(f"a part of {name} has no lines of plain torch")
    check(grouprl.method(name), source, cases()[which])


SHORT = {"part": "length_allowance", "hard": 2, "easy": 2, "base": 0, "per_nat": 1, "short": 1, "fade": 3}
RECIPES = {
    name: compose(given).method
    for name in recipe_names()
    if isinstance(given := load_config(name, plugins=False).model_dump(mode="json")["method"], dict)
} | {"tight_budgets": compose({"base": "grpo", "reward_transform": [SHORT]}).method}
"""Methods that recipes compose, by the recipe: parts in them need not be in any entry."""


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.filterwarnings("ignore:the method")
def test_what_recipes_compose_is_computed_as_it_is_shown(name: str) -> None:
    try:
        source = as_function(RECIPES[name])
    except InputError as error:
        pytest.skip(str(error))
    for case in cases():
        check(RECIPES[name], source, case)


def check(method: Method, source: str, case: Case) -> None:
    """Compare the shown function with the method: advantages, loss, gradients."""
    prepared, own = method.prepare(case.batch), leaves_of(method, case)
    others = {key: value for key, value in own.items() if key not in ("logp_bt", "entropy_bt")}
    loss = method.loss(own["logp_bt"], prepared, own["entropy_bt"], outputs=others).value
    leaves = leaves_of(method, case)
    plain, adv_bt = called(source, case, leaves)
    close(adv_bt, prepared.advantage_bt, 1e-12, 1e-12, "advantages")
    close(plain.detach(), loss.detach(), 1e-12, 1e-12, "loss")
    for shown, expected in zip((plain, loss), (leaves, own), strict=True):
        if shown.requires_grad:
            shown.backward()
        assert expected
    for key in own:
        gradients = [torch.zeros_like(x[key]) if x[key].grad is None else x[key].grad for x in (leaves, own)]
        close(*gradients, 1e-11, 1e-12, f"gradient of {key}")


def test_it_reads_on_a_screen_or_two() -> None:
    sources = {name: source for name in COMPLETE if (source := shown(name))}
    own = {name: source[source.rindex("\ndef ") :].count("\n") for name, source in sources.items()}
    assert {name: lines for name, lines in own.items() if lines > 70} == {}
    assert {name for name, source in sources.items() if source.count("\n") > 150} == set()
    assert {name for name, source in sources.items() if "grouprl" in source} == set()


def test_the_command_prints_it() -> None:
    done = CliRunner().invoke(app, ["methods", "show", "grpo", "--code"])
    assert (done.exit_code, done.output.strip()) == (0, as_function(grouprl.method("grpo")).strip())


OWN = """
import grouprl
from grouprl.algorithms.advantage.advantage import RawReward


@grouprl.part("advantage")
class Unprinted(RawReward):
    def __call__(self, batch):
        return 2 * super().__call__(batch)


def mine():
    return grouprl.method("grpo").with_parts(advantage=Unprinted())
"""


class Unprinted(RawReward):
    """An advantage of the user's, without lines of plain torch."""


def test_nearly_every_entry_is_shown() -> None:
    not_shown = [name for name in COMPLETE if shown(name) is None]
    assert len(not_shown) <= 0.05 * len(COMPLETE), not_shown


def test_a_method_with_another_part_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN)
    done = CliRunner().invoke(app, ["methods", "show", "mine.py:mine", "--code"])
    with pytest.raises(
        InputError, match=r"grpo has the advantage part 'raw_reward', which has no lines of plain torch"
    ):
        as_function(grouprl.method("grpo").with_parts(advantage=Unprinted()))
    assert done.exit_code == 2


def test_what_derives_from_a_part_has_no_lines_but_its_own() -> None:
    class Twice(RawReward):
        def __call__(self, batch: grouprl.Batch) -> Tensor:
            return 2 * super().__call__(batch)

    assert own_code(RawReward()) == "adv_bt = reward_b[:, None] * mask_bt"
    assert own_code(Twice()) == ""


def test_rewards_of_tokens_count_in_the_reward_of_their_row() -> None:
    spans = grouprl.method("reinforce").with_parts(reward_transform=(SpanRewards(),))
    case = cases()[0]
    source = as_function(spans)
    assert source.index("reward_b = reward_b + token_reward_bt.sum(1)") < source.index("adv_bt = reward_b[:, None]")
    _, adv_bt = called(source, case, {"logp_bt": case.logp_bt})
    torch.testing.assert_close(adv_bt, spans.prepare(case.batch).advantage_bt)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("a = b + a", ["b", "a"]),
        ("a = 1\nb = a", []),
        ("x = [y * z for y in ys]", ["ys", "z"]),
        ("for t in range(n):\n    s = s + t", ["range", "n", "s"]),
        ("def f(a):\n    return a + c\nd = f(2)", ["c"]),
        ("a_bt[:, 0] = b", ["b", "a_bt"]),
    ],
)
def test_names_that_lines_read_before_they_assign_them(lines: str, expected: list[str]) -> None:
    assert read_first(lines) == expected
