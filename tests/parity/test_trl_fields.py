"""Every field of TRL's configurations is answered, and the dialects' settings have TRL's names and defaults."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import pytest

pytest.importorskip("trl")
from trl import ModelConfig, ScriptArguments

import grouprl
from grouprl.config.run import Config
from grouprl.core.foreign.trl import TRL

CONFIGS = {
    "dpo@trl": ("trl", "DPOConfig"),
    "kto@trl": ("trl", "KTOConfig"),
    "bradley_terry": ("trl", "RewardConfig"),
    "cpo@trl": ("trl.experimental.cpo", "CPOConfig"),
    "orpo@trl": ("trl.experimental.orpo", "ORPOConfig"),
    "tpo@trl": ("trl.experimental.tpo", "TPOConfig"),
    "online_dpo@trl": ("trl.experimental.online_dpo", "OnlineDPOConfig"),
    "nash_md@trl": ("trl.experimental.nash_md", "NashMDConfig"),
    "xpo@trl": ("trl.experimental.xpo", "XPOConfig"),
    "bco@trl": ("trl.experimental.bco", "BCOConfig"),
    "process_reward": ("trl.experimental.prm", "PRMConfig"),
    "minillm": ("trl.experimental.minillm", "MiniLLMConfig"),
    "grpo@trl": ("trl", "GRPOConfig"),
    "rloo@trl": ("trl", "RLOOConfig"),
}
"""Configurations of TRL, by the method that takes the trainer's place."""
OTHERWISE = {
    "loss_type": "the method's name says it",
    "vllm_importance_sampling_correction": "old log-probs are the trainer's own",
}
"""Settings of GRPO's dialects with another default here, and why."""
OURS = {"bco@trl": {"encoder"}}
"""Settings that are an argument of TRL's trainer, not of its configuration."""


def config_of(method: str) -> type:
    """Return TRL's configuration, where this release has it."""
    module, name = CONFIGS[method]
    found = pytest.importorskip(module, reason=f"this release of TRL has no {name}")
    return getattr(found, name)  # type: ignore[no-any-return]


def defaults(config: type) -> dict[str, Any]:
    """Return the default of every field; a list of one is that one, as TRL has it of losses and of betas."""
    made = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(config)
    }
    return {name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in made.items()}


@pytest.mark.parametrize("config", [ModelConfig, ScriptArguments], ids=lambda config: config.__name__)
def test_every_argument_of_trls_command_line_is_answered(config: type) -> None:
    assert {each.name for each in fields(config)} - TRL.keys() - Config.model_fields.keys() == set()


@pytest.mark.parametrize("method", CONFIGS)
def test_every_field_of_a_configuration_is_answered(method: str) -> None:
    names = {each.name for each in fields(config_of(method))}
    assert len(names) > 100
    assert names - TRL.keys() - Config.model_fields.keys() == set()


@pytest.mark.parametrize("method", [name for name in CONFIGS if name.endswith("@trl")])
def test_settings_of_a_dialect_are_trls_with_its_defaults(method: str) -> None:
    theirs, ours = defaults(config_of(method)), grouprl.methods()[method].settings
    assert set(ours) - OURS.get(method, set()) <= set(theirs)
    of_grpo = OTHERWISE if method in ("grpo@trl", "rloo@trl") else {}
    differ = {name for name, given in ours.items() if name in theirs and given != theirs[name]}
    assert differ <= set(of_grpo)
