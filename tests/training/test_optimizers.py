"""The optimiser by name: any of torch's, with today's AdamW unless another is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import yaml
from torch import nn

from grouprl.config.run import parse_config
from grouprl.config.sections import Optim
from grouprl.core.errors import InputError
from grouprl.policy.optimizers import build_optimizer, check_optimizer, optimizer_names


def stepped(optimizer: torch.optim.Optimizer, weight: nn.Parameter) -> torch.Tensor:
    for slope in (1.0, -0.5, 2.0):
        weight.grad = torch.full_like(weight, slope)
        optimizer.step()
    return weight.detach().clone()


def test_the_default_is_fused_adamw_with_the_betas_of_the_run() -> None:
    mine, plain = nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(3, 2))
    built = build_optimizer(Optim(weight_decay=0.1), [mine], lr=0.01, weight_decay=0.1)
    known = torch.optim.AdamW([plain], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    assert torch.equal(stepped(built, mine), stepped(known, plain))


def test_another_one_is_torchs_own_with_its_settings() -> None:
    mine, plain = nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(3, 2))
    settings = Optim(name="sgd", settings={"momentum": 0.9, "nesterov": True})
    built = build_optimizer(settings, [mine], lr=0.1, weight_decay=0.0)
    known = torch.optim.SGD([plain], lr=0.1, momentum=0.9, nesterov=True)
    assert torch.equal(stepped(built, mine), stepped(known, plain))


@pytest.mark.parametrize("name", optimizer_names())
def test_every_name_that_is_offered_can_be_built_and_steps(name: str) -> None:
    check_optimizer(Optim(name=name))
    weight = nn.Parameter(torch.ones(3, 2))
    built = build_optimizer(Optim(name=name), [weight], lr=0.1, weight_decay=0.0)
    assert not torch.equal(stepped(built, weight), torch.ones(3, 2))


@pytest.mark.parametrize(("written", "meant"), [("1e-5", 1e-5), ("1E-5", 1e-5), ("1.5e-5", 1.5e-5), ("2e0", 2.0)])
def test_powers_of_ten_that_yaml_reads_as_texts_are_numbers(written: str, meant: float) -> None:
    config = parse_config(yaml.safe_load(f"{{task: addition, optim: {{settings: {{eps: {written}}}}}}}"))
    assert config.optim.settings == {"eps": meant}
    check_optimizer(config.optim)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "adamv"}, "Did you mean 'adam"),
        ({"name": "Optimizer"}, "no such optimiser"),
        ({"name": "lbfgs"}, "evaluates the loss several times"),
        ({"name": "sparseadam"}, "sparse gradients"),
        ({"name": "sgd", "settings": {"momentun": 0.9}}, "momentum"),
        ({"name": "sgd", "settings": {"momentum": -1.0}}, "Invalid momentum"),
        ({"name": "sgd", "settings": {"momentum": "much"}}, "optim.name = sgd"),
        ({"name": "rprop", "weight_decay": 0.1}, "has no weight_decay"),
        ({"settings": {"betas": [0.5, 0.5]}}, "optim.betas"),
        ({"settings": {"lr": 0.9}}, "optim.lr"),
    ],
)
def test_what_cannot_be_built_is_refused_in_words(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_optimizer(Optim(**settings))
