"""Steps of losses of pairs on a tiny model: the gradient is the same where a pair is whole and where it is cut."""

from __future__ import annotations

import pytest
import torch

from grouprl import method
from updates import accumulate, gradient, make_batch, make_policy


@pytest.mark.parametrize("name", ["dpo", "cpo", "ld_dpo", "aot", "mpo"])
def test_pairs_that_are_cut_have_the_gradient_of_whole_ones(name: str) -> None:
    chosen, found = method(name), []
    for budget in (4096, 40, 8):
        policy = make_policy(budget)
        batch = make_batch(policy)
        batch = batch.replace(ref_bt=batch.need("old_bt", "the test") + 0.3 * torch.sin(7 * batch.old_bt))
        pairs = batch.replace(group_b=torch.arange(16) // 2, reward_b=torch.arange(16).double() % 2)
        metrics = accumulate(policy, chosen, chosen.prepare(pairs))
        found.append((gradient(policy), metrics))
    assert found[0][0].any()
    for other, metrics in found[1:]:
        torch.testing.assert_close(other, found[0][0], rtol=1e-9, atol=1e-12)
        assert metrics == pytest.approx(found[0][1], rel=1e-9, abs=1e-12)
