"""Which questions are asked, how often, with what help, and which rows are used again."""

from grouprl.data import replay

__all__ = ["replay"]
