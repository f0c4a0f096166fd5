"""Settings that TRL's trainers accept and do not read: a plan names them, and no others.

What TRL reads was seen by running its losses with and without each setting (`tests/parity` runs the same losses).
"""

from __future__ import annotations

from typing import Any

import pytest

from grouprl.config.run import parse_config
from grouprl.methods import find
from grouprl.plan.plan import plan

CHANGED: dict[str, Any] = {
    "beta": 0.3,
    "label_smoothing": 0.2,
    "f_alpha_divergence_coef": 0.8,
    "f_divergence_type": "forward_kl",
    "ld_alpha": 0.4,
    "discopop_tau": 0.3,
}
SMOOTHED = ("aot", "aot_unpaired", "robust")
PLAIN = ("sigmoid", "hinge", "ipo", "sppo_hard", "nca_pair", "bco_pair", "apo_zero", "apo_down", "sigmoid_norm")


def ignored(name: str, base: dict[str, Any], changed: dict[str, Any]) -> set[str]:
    """Those of the changed settings that have no effect beside those of `base`."""
    return {key for key, value in changed.items() if key in find(name).inert({**base, key: value})}


@pytest.mark.parametrize("loss", [*PLAIN, *SMOOTHED, "discopop", "sft"])
def test_dpo_ignores_what_trl_ignores(loss: str) -> None:
    raw = ("nca_pair", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down")
    tried = {key: value for key, value in CHANGED.items() if key != "f_divergence_type" or loss not in raw}
    read = {"beta", "ld_alpha", "f_divergence_type"} & set(tried) if loss != "sft" else set()
    read |= {"label_smoothing"} if loss in SMOOTHED else set()
    read |= {"discopop_tau"} if loss == "discopop" else set()
    assert ignored("dpo@trl", {"loss_type": loss}, tried) == set(tried) - read


@pytest.mark.parametrize(
    ("name", "base", "changed", "found"),
    [
        ("dpo@trl", {"f_divergence_type": "forward_kl"}, {"f_alpha_divergence_coef": 0.8}, True),
        ("dpo@trl", {"f_divergence_type": "js_divergence"}, {"f_alpha_divergence_coef": 0.8}, True),
        ("dpo@trl", {"f_divergence_type": "alpha_divergence"}, {"f_alpha_divergence_coef": 0.8}, False),
        ("dpo@trl", {"loss_type": ["sft", "hinge"], "loss_weights": [1.0, 0.0]}, {"beta": 0.3}, True),
        ("dpo@trl", {"loss_type": ["sft", "hinge"], "loss_weights": [1.0, 0.5]}, {"beta": 0.3}, False),
        ("dpo@trl", {"loss_type": ["ipo", "discopop"]}, {"discopop_tau": 0.3}, False),
        ("dpo@trl", {"loss_type": ["sigmoid", "aot"]}, {"label_smoothing": 0.2}, False),
        ("cpo@trl", {}, {"simpo_gamma": 1.0}, True),
        ("cpo@trl", {"loss_type": "simpo"}, {"simpo_gamma": 1.0}, False),
        ("cpo@trl", {"loss_type": "alphapo"}, {"cpo_alpha": 0.5}, True),
        ("cpo@trl", {"loss_type": "hinge"}, {"label_smoothing": 0.1}, True),
        ("cpo@trl", {"loss_type": "ipo"}, {"label_smoothing": 0.1}, True),
        ("cpo@trl", {"loss_type": "ipo"}, {"alpha": 0.1}, False),
        ("tpo@trl", {}, {"tpo_l_gamma": 1.0}, True),
        ("tpo@trl", {"loss_type": "tpo-l"}, {"tpo_l_gamma": 1.0}, False),
        ("tpo@trl", {"loss_type": "hinge"}, {"label_smoothing": 0.1}, True),
        ("kto@trl", {"loss_type": "apo_zero_unpaired"}, {"undesirable_weight": 0.5}, False),
        ("bco@trl", {}, {"prompt_sample_size": 8}, True),
        ("bco@trl", {}, {"min_density_ratio": 0.1}, True),
        ("bco@trl", {"encoder": "policy"}, {"prompt_sample_size": 8}, False),
        ("nash_md@trl", {}, {"loss_type": "ipo"}, True),
        ("xpo@trl", {}, {"loss_type": "ipo"}, False),
        ("online_dpo@trl", {}, {"loss_type": "ipo"}, False),
    ],
)
def test_other_settings_that_trl_ignores(name: str, base: Any, changed: Any, found: bool) -> None:
    assert ignored(name, base, changed) == (set(changed) if found else set())


def test_a_plan_names_them() -> None:
    method = {"name": "dpo@trl", "loss_type": "sigmoid", "label_smoothing": 0.2, "f_alpha_divergence_coef": 0.8}
    made = plan(parse_config({"task": "preferences", "method": method, "batch": {"group_size": 2}}))
    for name in ("label_smoothing", "f_alpha_divergence_coef"):
        assert any(f"method.{name} has no effect" in words for words in made.idle)
