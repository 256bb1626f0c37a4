"""Servers for this machine only.

Checks their addresses, the names under which a browser may use them, and numbers in addresses of requests.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

NUMBER: Final = re.compile(r"[0-9]{1,18}")
"""A number that fits into 64 bits."""


def is_loopback(host: str) -> bool:
    """Returns True if only processes of this machine reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(host: str) -> str:
    """Return the name in a `Host` header, without port and brackets."""
    name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
    return name.strip("[]")


def foreign_name(host: str) -> str:
    """Returns the name in a `Host` header if it is none of this machine; empty if it is.

    A page of another host may have its own name resolved to this machine: the browser then sends that name.
    """
    return "" if is_loopback(name := host_name(host)) else name or "(none)"


def parse_number(text: str, name: str) -> int:
    """Returns the number of a parameter.

    Raises:
        ValueError: it is not a whole number of at most 18 digits; the message names the parameter.
    """
    if not NUMBER.fullmatch(text):
        raise ValueError(
            f"{name}: found {text[:40]!r}{'…' if len(text) > 40 else ''}; write a whole number of at most 18 digits"
        )
    return int(text)
