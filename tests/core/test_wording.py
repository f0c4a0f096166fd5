"""Errors as plain sentences."""

import pytest

from grouprl.core.errors import InputError


@pytest.mark.parametrize(
    ("remedy", "shown"),
    [
        ("set it to 2", "Set it to 2."),
        ("batch.group_size: 2", "batch.group_size: 2."),
        ("grouprl launch -n 2 train run.yaml", "grouprl launch -n 2 train run.yaml."),
        ("it is to be 2", "it is to be 2."),
        ("t stands for time", "T stands for time."),
        ("even is what is even", "Even is what is even."),
        ("", ""),
        ("-a\n+b\n", "-a\n+b\n"),
    ],
)
def test_sentences_begin_with_a_capital_unless_with_a_name(remedy: str, shown: str) -> None:
    assert str(
        InputError("it = 3, x.even = 1", "that must be even.", remedy)
    ) == f"it = 3, x.even = 1. That must be even. {shown}".rstrip(" ")
