"""Spans: told in the order of their nesting, to the thread that listens, and to nobody else."""

from __future__ import annotations

import threading

import pytest

from grouprl.core.spans import hearing, listening, note, span, spanned


class Heard:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def enter(self, name: str) -> None:
        self.lines.append(f"+{name}")

    def leave(self, name: str) -> None:
        self.lines.append(f"-{name}")

    def note(self, what: str, facts: tuple[object, ...]) -> None:
        self.lines.append(f"{what}{facts}")


@spanned("inner")
def double(x: int) -> int:
    """Return twice x."""
    note("doubled", x)
    return 2 * x


def test_spans_are_told_as_they_nest() -> None:
    heard = Heard()
    with listening(heard), span("outer"):
        assert double(3) == 6
    assert heard.lines == ["+outer", "+inner", "doubled(3,)", "-inner", "-outer"]
    assert double(3) == 6  # nobody listens any more
    assert len(heard.lines) == 5
    assert double.__name__ == "double"


def test_an_exception_ends_the_span() -> None:
    heard = Heard()
    with listening(heard), pytest.raises(ValueError), span("outer"):
        raise ValueError
    assert heard.lines == ["+outer", "-outer"]
    assert hearing() is None


def test_a_listener_within_takes_over_and_gives_back() -> None:
    first, second = Heard(), Heard()
    with listening(first):
        with listening(second):
            double(1)
        double(1)
    assert len(first.lines) == len(second.lines) == 3


def test_spans_of_other_threads_are_their_own() -> None:
    heard = Heard()
    with listening(heard):
        other = threading.Thread(target=double, args=(1,))
        other.start()
        other.join()
    assert heard.lines == []


def test_who_begins_to_listen_inside_a_span_is_not_told_of_its_end() -> None:
    heard = Heard()
    with span("outer"):
        before = listening(heard)
        before.__enter__()
    before.__exit__(None, None, None)
    assert heard.lines == []
