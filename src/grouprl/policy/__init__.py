"""What is trained: policies that give log-probs and take their cotangents."""

from ..protocols import PolicyOutput
from .array_policy import ArrayPolicy
from .arrays import ArrayInputs
from .causal_lm import CausalPolicy
from .frozen import FrozenPolicy
from .kinds import Build, register_policy
from .load import load_policy
from .mlp import Mlp
from .module import ModulePolicy
from .text import Message
from .threads import choose_threads, set_threads
from .tiny import PRINTABLE, build_tiny, char_tokenizer
from .tokens import Tokens

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
    "PolicyOutput",
    "Tokens",
    "build_tiny",
    "char_tokenizer",
    "choose_threads",
    "load_policy",
    "register_policy",
    "set_threads",
]
