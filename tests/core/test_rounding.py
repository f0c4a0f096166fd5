"""A difference that rounding explains is a tie: it counts half, whichever way its last bits point."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from grouprl import method
from grouprl.core.rounding import share_right, without_rounding
from grouprl.records.tokens import Tokens
from grouprl.rollout.ranked_rows import gaps_of
from small import f64, near, small


def test_a_gap_counts_by_its_sign_and_half_where_it_is_as_small_as_rounding() -> None:
    gap = f64([1e-9, -1e-9, 2e-14, -2e-14, 0.0])
    assert share_right(gap, f64([10.0] * 5)).tolist() == [1.0, 0.0, 0.5, 0.5, 0.5]
    assert share_right(gap, f64([0.0] * 5)).tolist() == [1.0, 0.0, 1.0, 0.0, 0.5], "of numbers near 0 it is large"
    assert without_rounding(gap, f64([10.0] * 5)).tolist() == [1e-9, -1e-9, 0.0, 0.0, 0.0]
    assert share_right(torch.tensor([1e-4]), torch.tensor([100.0])).tolist() == [0.5], "float32 is rounded sooner"


@pytest.mark.parametrize("name", ["dpo", "online_dpo", "simpo", "orpo"])
@pytest.mark.parametrize("noise", [2e-15, -2e-15])
def test_pairs_at_the_reference_count_half_for_any_last_bits(name: str, noise: float) -> None:
    chosen = method(name)
    logp_bt = f64([[-3.0, -2.0], [-3.0, -2.0]])
    batch = small([1, 0], [2, 2], old_bt=None, ref_bt=logp_bt.clone())
    noisy_bt = logp_bt + f64([[noise, 0.0], [0.0, 0.0]])
    found = chosen.loss(noisy_bt, chosen.compute_loss_weights(chosen.prepare(batch))).metrics
    for metric in ("pair_accuracy", "rewards/accuracies"):
        near(found[metric], 0.5)


@pytest.mark.parametrize("noise", [2e-15, -2e-15])
def test_labels_at_the_reference_count_half(noise: float) -> None:
    chosen = method("bco")
    logp_bt = f64([[-3.0], [-2.0]])
    batch = small(
        [1, 0], groups=[0, 1], mask_bt=torch.ones(2, 1, dtype=torch.bool), old_bt=None, ref_bt=logp_bt.clone()
    )
    near(
        chosen.loss(logp_bt + noise, chosen.compute_loss_weights(chosen.prepare(batch))).metrics["label_accuracy"], 0.5
    )


class Scored:
    """A reward model with these scores."""

    def __init__(self, scores: list[float]) -> None:
        self.scores = f64(scores)

    def evaluate(self, tokens: Tokens, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        return dict.fromkeys(names, self.scores)


def test_scores_that_differ_by_rounding_are_tied_in_evaluations() -> None:
    tokens = Tokens(((3,), (3,), (3,)), ((4,), (5,), (6,)))
    (gap_nn,) = gaps_of(Scored([0.3, 0.3 + 1e-16, 0.4]), tokens, [np.arange(3)])  # type: ignore[arg-type]
    assert gap_nn[0, 1] == gap_nn[1, 0] == 0
    assert gap_nn[2, 0] == pytest.approx(0.1)
