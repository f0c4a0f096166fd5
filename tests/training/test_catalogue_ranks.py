"""Entries of the catalogue on two and three ranks: every metric is that of one process, and so are the weights."""

from __future__ import annotations

from pathlib import Path

import pytest

import rank_catalogue

CASES = {"llds": 2, "kl_cov": 2, "nft": 2, "online_dpo": 2, "kto": 3, "simpo": 3}
CASES |= {"xpo": 2, "nash_md": 3, "vapo": 2, "harpg": 3}
CASES |= {"ippo": 3, "gmah": 2, "weighted_bc": 3, "tb": 2, "mra": 2}
"""Slopes and counts that the last bit decides at the old policy or at the reference; losses of pairs and of labels;
samples of the reference or a mixture with it, a value head fitted to hidden states, whole gradients added up. Then
policies over arrays: agents, a value learner, stored trajectories, balances of a flow, a network that the policy trains
against."""


@pytest.mark.parametrize("name", CASES)
def test_no_metric_depends_on_the_number_of_ranks(name: str, tmp_path: Path) -> None:
    found = rank_catalogue.apart(name, tmp_path, CASES[name])
    assert found["metrics"] == {}
    assert found["weights"] < 1e-11


def test_metrics_that_differ_are_told() -> None:
    assert rank_catalogue.alike(0.5, 0.5 + 1e-12)
    assert not rank_catalogue.alike(0.5, 0.51)
    assert not rank_catalogue.alike(0.5, None)
    assert rank_catalogue.alike(float("nan"), float("nan"))
    assert rank_catalogue.alike("train", "train")
