"""No entry of the catalogue is refused on the configuration in which its kill was recorded."""

from __future__ import annotations

import pytest

from grouprl.config.run import parse_config
from grouprl.plan.plan import plan
from kills_catalogue import names, settings


@pytest.mark.parametrize("name", names())
def test_an_entry_is_not_refused_where_it_has_run(name: str) -> None:
    found = plan(parse_config(settings(name)))
    assert [str(each) for each in found.refusals] == []
