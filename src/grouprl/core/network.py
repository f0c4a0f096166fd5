"""The network interface of this machine that leads to another machine."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from contextlib import suppress

ADDRESS_OF_INTERFACE = 0x8915
"""The request SIOCGIFADDR of Linux."""
GLOO = "GLOO_SOCKET_IFNAME"
"""Environment variable that names gloo's network interface; the default is that of the machine's own name."""


def choose_interface() -> None:
    """Let gloo use the interface that leads to `MASTER_ADDR`, unless that is this machine or an interface is set.

    A machine's own name often resolves to an address that other machines cannot reach.
    """
    own = own_address_towards(os.environ.get("MASTER_ADDR", ""))
    if own and not ipaddress.ip_address(own).is_loopback and (found := interface_of(own)):
        os.environ.setdefault(GLOO, found)


def is_own(address: str) -> bool:
    """Return whether an IPv4 or IPv6 address belongs to this machine, so that a socket can be bound to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.bind((address, 0))
    except OSError:
        return False
    return True


def own_address_towards(host: str) -> str:
    """Return this machine's IPv4 address on its route to a host; empty if there is no route."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect((host, 9))  # connecting a datagram socket sends nothing
        return str(asked.getsockname()[0])
    return ""


def interface_of(address: str) -> str:
    """Return the network interface that has this IPv4 address; empty if none has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                found = fcntl.ioctl(asked.fileno(), ADDRESS_OF_INTERFACE, request)[20:24]
                if socket.inet_ntoa(found) == address:
                    return name
    return ""
