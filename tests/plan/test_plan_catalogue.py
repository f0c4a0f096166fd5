"""No entry of the catalogue is refused on the configuration in which its kill was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from grouprl.config.run import parse_config
from grouprl.plan.plan import plan
from kills_catalogue import names, with_teacher


@pytest.mark.parametrize("name", names())
def test_an_entry_is_not_refused_where_it_has_run(name: str, tmp_path: Path) -> None:
    found = plan(parse_config(with_teacher(name, tmp_path)))
    assert [str(each) for each in found.refusals] == []
