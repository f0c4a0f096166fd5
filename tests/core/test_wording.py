"""Errors as one line of plain sentences."""

import pytest

from grouprl.core.errors import InputError
from grouprl.core.wording import in_one_line


@pytest.mark.parametrize(
    ("remedy", "shown"),
    [
        ("set it to 2", "Set it to 2."),
        ("batch.group_size: 2", "batch.group_size: 2."),
        ("grouprl launch -n 2 train run.yaml", "grouprl launch -n 2 train run.yaml."),
    ],
)
def test_sentences_begin_with_a_capital_unless_with_a_name(remedy: str, shown: str) -> None:
    assert in_one_line(InputError("it is 3", "it must be even.", remedy)) == f"it is 3. It must be even. {shown}"
