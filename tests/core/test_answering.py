"""Wrappers that answer through `__getattr__` are what they wrap, on every Python."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import pytest

from grouprl.core.answering import Answering
from grouprl.envs import Environment


@runtime_checkable
class Walks(Protocol, metaclass=Answering):
    speed: int

    def walk(self) -> int: ...


class Dog:
    speed = 3

    def walk(self) -> int:
        return 1


class Wrapper:
    def __init__(self, inner: object) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


@pytest.mark.parametrize("make", [Dog, lambda: Wrapper(Dog()), lambda: Wrapper(Wrapper(Dog()))])
def test_what_answers_is_recognised(make) -> None:
    assert isinstance(make(), Walks)


@pytest.mark.parametrize("value", [object(), Wrapper(object()), 3, None])
def test_what_does_not_is_not(value: object) -> None:
    assert not isinstance(value, Walks)


def test_classes_that_implement_a_protocol_are_checked_by_their_class() -> None:
    class Cat(Walks):
        speed = 1

        def walk(self) -> int:
            return 2

    assert isinstance(Cat(), Cat)
    assert not isinstance(Wrapper(Dog()), Cat)


def test_an_environment_may_be_wrapped() -> None:
    class World:
        def reset(self, example: object, seed: int) -> str:
            return ""

        def step(self, action: object) -> None: ...

        def score(self) -> float:
            return 0.0

        def close(self) -> None: ...

    assert isinstance(Wrapper(World()), Environment)


def test_one_that_answers_for_itself_says_nothing_of_its_class() -> None:
    class Cat:
        def walk(self) -> int:
            return 2

    fast, still = Cat(), Cat()
    fast.speed = 1  # type: ignore[attr-defined]
    assert isinstance(fast, Walks)
    assert not isinstance(still, Walks)
