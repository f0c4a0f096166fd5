"""Protocols that recognise a wrapper by what it answers."""

from __future__ import annotations

from typing import _ProtocolMeta
from weakref import WeakKeyDictionary, WeakSet

from typing_extensions import get_protocol_members, is_protocol


class Answering(_ProtocolMeta):
    """The class of protocols whose members may be answered by `__getattr__`, as wrappers of environments do.

    `isinstance` of a runtime protocol asks the instance itself up to Python 3.11; from 3.12 on it looks up names
    without `__getattr__`, and so does not recognise a wrapper as what it wraps.

    Looking up the members of a protocol takes longer than a small step, so classes that have them all are remembered.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        """Return whether an instance has every member of the protocol."""
        own = type(instance)
        if own in _SEEN.setdefault(cls, WeakSet()):
            return True
        if super().__instancecheck__(instance):
            if is_protocol(cls) and all(getattr(own, name, None) is not None for name in get_protocol_members(cls)):
                _SEEN[cls].add(own)
            return True
        if not is_protocol(cls) or not hasattr(type(instance), "__getattr__"):
            return False
        return all(hasattr(instance, name) for name in get_protocol_members(cls))


_SEEN: WeakKeyDictionary[type, WeakSet[type]] = WeakKeyDictionary()
"""By protocol, the classes that themselves have all its members, so that every instance has them."""
