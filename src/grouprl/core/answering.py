"""Protocols that recognise a wrapper by what it answers."""

from __future__ import annotations

from typing import _ProtocolMeta

from typing_extensions import get_protocol_members, is_protocol


class Answering(_ProtocolMeta):
    """The class of protocols whose members may be answered by `__getattr__`, as wrappers of environments do.

    `isinstance` of a runtime protocol asks the instance itself up to Python 3.11; from 3.12 on it looks up names
    without `__getattr__`, and takes a wrapper for something else than what it wraps.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        """Return whether an instance has every member of the protocol."""
        if super().__instancecheck__(instance):
            return True
        if not is_protocol(cls) or not hasattr(type(instance), "__getattr__"):
            return False
        return all(hasattr(instance, name) for name in get_protocol_members(cls))
