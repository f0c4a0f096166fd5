"""Trainable models: they compute outputs of rows by name and take the cotangents of these outputs.

The names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grouprl.core.late_import import lazy_names

if TYPE_CHECKING:
    from grouprl.policy.kinds import Build, register_policy
    from grouprl.policy.language.causal_lm import CausalPolicy
    from grouprl.policy.language.load import load_policy
    from grouprl.policy.language.reference import FrozenPolicy
    from grouprl.policy.language.text import Message
    from grouprl.policy.language.tiny import build_tiny, char_tokenizer
    from grouprl.policy.threads import choose_threads, set_threads
    from grouprl.policy.vectors.achievements import Achievements
    from grouprl.policy.vectors.array_distributions import MultiCategorical
    from grouprl.policy.vectors.array_inputs import ArrayInputs, Seen, noise
    from grouprl.policy.vectors.array_policy import ArrayPolicy
    from grouprl.policy.vectors.bounded_policies import NormalMixture, Squashed
    from grouprl.policy.vectors.choice_values import ChoiceValues
    from grouprl.policy.vectors.decision_transformer import DecisionTransformer
    from grouprl.policy.vectors.hindsight import Hindsight
    from grouprl.policy.vectors.latent_team import LatentTeam
    from grouprl.policy.vectors.mlp import Mlp
    from grouprl.policy.vectors.module_policy import ModulePolicy, TrainableModule
    from grouprl.policy.vectors.pointer import Pointer
    from grouprl.policy.vectors.pointers import Pointers
    from grouprl.policy.vectors.preselect import Preselect
    from grouprl.policy.vectors.quotient import Quotient
    from grouprl.policy.vectors.recurrent import Recurrent
    from grouprl.policy.vectors.saboteur import Saboteur
    from grouprl.policy.vectors.team_values import TeamValues
    from grouprl.records.characters import PRINTABLE
    from grouprl.records.tokens import Tokens

__all__ = [
    "PRINTABLE",
    "Achievements",
    "ArrayInputs",
    "ArrayPolicy",
    "Build",
    "CausalPolicy",
    "ChoiceValues",
    "DecisionTransformer",
    "FrozenPolicy",
    "Hindsight",
    "LatentTeam",
    "Message",
    "Mlp",
    "ModulePolicy",
    "MultiCategorical",
    "NormalMixture",
    "Pointer",
    "Pointers",
    "Preselect",
    "Quotient",
    "Recurrent",
    "Saboteur",
    "Seen",
    "Squashed",
    "TeamValues",
    "Tokens",
    "TrainableModule",
    "build_tiny",
    "char_tokenizer",
    "choose_threads",
    "load_policy",
    "noise",
    "register_policy",
    "set_threads",
]
_HOMES = {
    "records.characters": ("PRINTABLE",),
    "policy.kinds": (
        "Build",
        "register_policy",
    ),
    "policy.language.causal_lm": ("CausalPolicy",),
    "policy.language.load": ("load_policy",),
    "policy.language.reference": ("FrozenPolicy",),
    "policy.language.text": ("Message",),
    "policy.language.tiny": (
        "build_tiny",
        "char_tokenizer",
    ),
    "policy.threads": (
        "choose_threads",
        "set_threads",
    ),
    "policy.vectors.achievements": ("Achievements",),
    "policy.vectors.array_distributions": ("MultiCategorical",),
    "policy.vectors.array_inputs": (
        "ArrayInputs",
        "Seen",
        "noise",
    ),
    "policy.vectors.array_policy": ("ArrayPolicy",),
    "policy.vectors.bounded_policies": (
        "NormalMixture",
        "Squashed",
    ),
    "policy.vectors.choice_values": ("ChoiceValues",),
    "policy.vectors.decision_transformer": ("DecisionTransformer",),
    "policy.vectors.hindsight": ("Hindsight",),
    "policy.vectors.latent_team": ("LatentTeam",),
    "policy.vectors.mlp": ("Mlp",),
    "policy.vectors.module_policy": (
        "ModulePolicy",
        "TrainableModule",
    ),
    "policy.vectors.pointer": ("Pointer",),
    "policy.vectors.pointers": ("Pointers",),
    "policy.vectors.preselect": ("Preselect",),
    "policy.vectors.quotient": ("Quotient",),
    "policy.vectors.recurrent": ("Recurrent",),
    "policy.vectors.saboteur": ("Saboteur",),
    "policy.vectors.team_values": ("TeamValues",),
    "records.tokens": ("Tokens",),
}
__getattr__ = lazy_names(__name__, {name: f"grouprl.{home}" for home, names in _HOMES.items() for name in names})
