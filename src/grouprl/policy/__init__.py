"""Trainable models: they compute outputs of rows by name and take the cotangents of these outputs."""

from grouprl.policy.kinds import Build, register_policy
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.load import load_policy
from grouprl.policy.language.reference import FrozenPolicy
from grouprl.policy.language.text import Message
from grouprl.policy.language.tiny import PRINTABLE, build_tiny, char_tokenizer
from grouprl.policy.threads import choose_threads, set_threads
from grouprl.policy.vectors.array_distributions import MultiCategorical
from grouprl.policy.vectors.array_inputs import ArrayInputs, Seen, noise
from grouprl.policy.vectors.array_policy import ArrayPolicy
from grouprl.policy.vectors.bounded_policies import NormalMixture, Squashed
from grouprl.policy.vectors.mlp import Mlp
from grouprl.policy.vectors.module_policy import ModulePolicy, TrainableModule
from grouprl.policy.vectors.pointer import Pointer
from grouprl.policy.vectors.pointers import Pointers
from grouprl.policy.vectors.quotient import Quotient
from grouprl.policy.vectors.recurrent import Recurrent
from grouprl.policy.vectors.saboteur import Saboteur
from grouprl.records.tokens import Tokens

__all__ = [
    "PRINTABLE",
    "ArrayInputs",
    "ArrayPolicy",
    "Build",
    "CausalPolicy",
    "FrozenPolicy",
    "Message",
    "Mlp",
    "ModulePolicy",
    "MultiCategorical",
    "NormalMixture",
    "Pointer",
    "Pointers",
    "Quotient",
    "Recurrent",
    "Saboteur",
    "Seen",
    "Squashed",
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
