"""The escape matrix: every way out succeeds without a sandbox, and fails at every level that says so."""

import contextlib

import pytest

from grouprl.core.errors import InputError
from grouprl.sandbox import LEVELS, Limits, Sandbox
from grouprl.sandbox.attack_targets import attempt, self_check
from grouprl.sandbox.escapes import ESCAPES


@pytest.fixture(scope="module", params=["namespaces", "landlock"])
def sandbox(request):
    try:
        box = Sandbox(level=request.param)
    except InputError as error:
        pytest.skip(str(error))
    with box:
        yield box


def by_name(escape):
    return escape.name


@pytest.mark.parametrize("escape", ESCAPES, ids=by_name)
def test_without_a_sandbox_it_succeeds(escape):
    escaped, outcome = attempt(escape, None)
    assert escaped, outcome


@pytest.mark.parametrize("escape", ESCAPES, ids=by_name)
def test_in_the_sandbox_it_fails(escape, sandbox):
    if not sandbox.level.reaches(escape.needs):
        pytest.skip(f"{sandbox.level.name} does not say that it contains this")
    escaped, outcome = attempt(escape, sandbox)
    assert not escaped, outcome
    assert outcome.why != "refused"
    assert sandbox.run("print(1 + 1)", limits=Limits(seconds=60)).stdout == "2\n"


def test_each_level_contains_more_than_the_one_below():
    contained = [sum(LEVELS.index(e.needs) >= LEVELS.index(level) for e in ESCAPES) for level in LEVELS]
    assert contained == sorted(contained, reverse=True)
    assert len(set(contained)) == 3


def test_without_walls_the_self_check_finds_the_way_out(monkeypatch):
    some = [e for e in ESCAPES if e.name in ("foreign file", "udp", "its own environment")]
    monkeypatch.setattr("grouprl.sandbox.attack_targets.ESCAPES", some)
    with contextlib.closing(Sandbox(level="rlimits")) as box:
        found = {escape.name: (must, contained) for escape, must, contained in self_check(box)}
    assert found == {"foreign file": (False, False), "udp": (False, False), "its own environment": (True, True)}
