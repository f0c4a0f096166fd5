"""The address of a Ray cluster, checked before Ray itself is asked."""

from __future__ import annotations

import pytest

from grouprl import InputError
from grouprl.orchestrator.on_ray import cluster_info


@pytest.mark.parametrize("address", ["localhost:word", "localhost:", "localhost:99999", "localhost:-1", "[::1]:ray"])
def test_a_port_that_is_none_is_refused_in_words(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_info.util, "find_spec", lambda name: name)  # Ray need not be installed for it
    with pytest.raises(InputError, match=r"cluster\.ray = .* Nothing answers there") as refused:
        cluster_info.look(address)
    assert address in str(refused.value)
    assert "ray start --head" in str(refused.value)
