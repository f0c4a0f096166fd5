"""What is trained: policies that give log-probs and take their cotangents."""

from ..protocols import PolicyOutput
from .causal_lm import CausalPolicy
from .frozen import FrozenPolicy
from .load import load_policy
from .text import Message
from .threads import choose_threads, set_threads
from .tiny import PRINTABLE, build_tiny, char_tokenizer
from .tokens import Tokens

__all__ = [
    "PRINTABLE",
    "CausalPolicy",
    "FrozenPolicy",
    "Message",
    "PolicyOutput",
    "Tokens",
    "build_tiny",
    "char_tokenizer",
    "choose_threads",
    "load_policy",
    "set_threads",
]
