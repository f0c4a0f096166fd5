"""Group-relative reinforcement learning for language models: every method verified, every choice visible."""

from grouprl.batch import Batch
from grouprl.errors import GrouprlError, InputError, MissingExtra, RunError
from grouprl.method import Loss, Method
from grouprl.methods import entry, method, methods

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "GrouprlError",
    "InputError",
    "Loss",
    "Method",
    "MissingExtra",
    "RunError",
    "__version__",
    "entry",
    "method",
    "methods",
]
