"""Kinds of policies by name: those of this package, and your own classes and functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch

from grouprl.core.errors import InputError, suggest
from grouprl.protocols import ActionSpace, Policy, Space, Spaces

Maker = Callable[..., Policy]
"""A function of a `Build` and the settings `model.settings` that returns a policy."""
M = TypeVar("M", bound=Maker)
IN_FILES = {
    "mlp": "grouprl.policy.vectors.mlp:Mlp",
    "squashed": "grouprl.policy.vectors.bounded_policies:Squashed",
    "mixture": "grouprl.policy.vectors.bounded_policies:NormalMixture",
    "recurrent": "grouprl.policy.vectors.recurrent:Recurrent",
    "decision_transformer": "grouprl.policy.vectors.decision_transformer:DecisionTransformer",
    "hindsight": "grouprl.policy.vectors.hindsight:Hindsight",
    "pointer": "grouprl.policy.vectors.pointer:Pointer",
    "pointers": "grouprl.policy.vectors.pointers:Pointers",
    "quotient": "grouprl.policy.vectors.quotient:Quotient",
    "preselect": "grouprl.policy.vectors.preselect:Preselect",
    "saboteur": "grouprl.policy.vectors.saboteur:Saboteur",
    "latent_team": "grouprl.policy.vectors.latent_team:LatentTeam",
    "team_values": "grouprl.policy.vectors.team_values:TeamValues",
    "choice_values": "grouprl.policy.vectors.choice_values:ChoiceValues",
    "achievements": "grouprl.policy.vectors.achievements:Achievements",
}
"""Policies of this package, which are imported when a run names them."""
KINDS: dict[str, Maker] = {}
"""Registered policies."""


@dataclass(frozen=True)
class Build:
    """Arguments that a run passes to the maker of its policy."""

    spaces: Spaces | None = None
    """Observation and action spaces of the task's environments; None for text."""
    task: object = None
    seed: int = 0
    """Seed of the initial weights."""
    temperature: float = 1.0
    """Temperature of the distribution that actions are sampled from and scored under."""
    values: bool = False
    """Whether the method has a critic, so that the policy must return values."""
    device: str = "cpu"
    dtype: torch.dtype = field(default_factory=lambda: torch.float32)
    positions: int = 65536
    """Largest number of positions per pass (`batch.tokens_per_microbatch`)."""

    def need_spaces(
        self,
        name: str,
        *,
        observations: tuple[type[Space], ...] = (),
        actions: tuple[type[ActionSpace], ...] = (),
    ) -> Spaces:
        """Return the spaces for the policy `name`, which accepts these kinds of spaces; (): any kind.

        Raises:
            InputError: the task consists of text, or its spaces are of another kind.
        """
        if self.spaces is None:
            raise InputError(
                f"the policy {name} acts on arrays",
                "this task is made of text",
                "Take a language model (model: tiny), or a task such as control:CartPole-v1",
            )
        for what, space, kinds in (
            ("reads", self.spaces.observation, observations),
            ("acts with", self.spaces.action, actions),
        ):
            if kinds and not isinstance(space, kinds):
                named = " or ".join(kind.__name__ for kind in kinds)
                raise InputError(
                    f"the space {space}", f"the policy {name} {what} {named}", "Take model: mlp, or one of your own"
                )
        return self.spaces


def register_policy(name: str) -> Callable[[M], M]:
    """Make a policy's class or function loadable as `model: {name: …}` (a decorator).

    Raises:
        InputError: the name is taken, or is not a plain word.
    """
    if not name.isidentifier() or name == "tiny":
        raise InputError(
            f"the policy name '{name}' cannot be registered",
            "a name consists of letters, digits and '_', and must be new",
        )

    def register(maker: M) -> M:
        taken = policy_kind(name) if is_named(name) else None
        if taken is not None and getattr(taken, "__qualname__", "") != maker.__qualname__:
            raise InputError(f"the policy name '{name}' is taken by {getattr(taken, '__qualname__', taken)}")
        KINDS[name] = maker
        return maker

    return register


def is_named(name: str) -> bool:
    """Return whether a policy is registered by this name."""
    return name in KINDS or name in IN_FILES


def policy_kind(name: str) -> Maker | None:
    """Return the maker of the policy `name`: a registered one, or your own as pkg.module:Class or file.py:Class.

    Return None for a language model: 'tiny', a folder or a Hub id. Raises InputError if your own cannot be imported.
    """
    if name in KINDS:
        return KINDS[name]
    if name not in IN_FILES and (":" not in name or Path(name).exists()):
        return None
    from grouprl.core.importing import import_object

    found = import_object(IN_FILES.get(name, name), "policy")
    if not callable(found):
        raise InputError(f"'{name}' is not a policy", "a policy is named by a class or a function that returns one")
    return found


def make_policy(name: str, build: Build, settings: Mapping[str, object]) -> Policy:
    """Return the policy of kind `name`, its settings checked.

    Raises:
        InputError: unknown or missing settings (with the nearest known ones), a maker that refuses them, or a result
            that is not a `grouprl.protocols.Policy`.
    """
    maker = policy_kind(name)
    assert maker is not None, f"{name} is a language model"
    _check_settings(name, maker, settings)
    try:
        policy = maker(build, **settings)
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        said = ", ".join(f"{key}: {value}" for key, value in settings.items())
        raise InputError(f"the policy {name} cannot be made with {{{said}}}", str(error)) from error
    missing = [each for each in protocol_names() if not hasattr(policy, each)]
    if missing:
        raise InputError(
            f"what {name} returns has no {', '.join(missing)}",
            "a policy needs every attribute of grouprl.protocols.Policy",
            "Derive it from grouprl.policy.vectors.module_policy.ModulePolicy, which has most of them",
        )
    return policy


def protocol_names() -> list[str]:
    """Return the names of the attributes that a policy must have."""
    return sorted(name for name in dir(Policy) if not name.startswith("_"))


def _check_settings(name: str, maker: Maker, settings: Mapping[str, object]) -> None:
    parameters = list(inspect.signature(maker).parameters.values())[1:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for key in settings:
        if key not in known:
            there = suggest(key, known) if known else "It has no settings."
            raise InputError(f"unknown key 'model.settings.{key}' of the policy {name}", remedy=there)
    for p in parameters:
        if p.name in known and p.default is p.empty and p.name not in settings:
            raise InputError(f"the policy {name} needs the setting '{p.name}'", f"set model.settings.{p.name}")
