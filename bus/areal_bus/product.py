"""The product whose messages a bus carries, which it declares once, before it opens a bus.

The bus itself knows none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Product(NamedTuple):
    """The difference between products on one server."""

    prefix: str = "bus"
    """Lowercase letters and digits with which every subject begins, and the names of streams, buckets, certificates and
    variables."""
    dictionaries: Mapping[int, Path] = {}
    """Files with the bytes that messages often contain, by number from 1 (`payload.py`). Logs need them for ever: none
    may change, another gets the next number. Number 1 is one for raw deflate, which is only read."""

    @property
    def server_variable(self) -> str:
        """Environment variable that names the binary of the server."""
        return f"{self.prefix.upper()}_NATS_SERVER"


class _Declared:
    product = Product()


def declare_product(product: Product) -> None:
    """Declare the product of this process, before a message is sent or read."""
    _Declared.product = product


def current_product() -> Product:
    """Returns the product of this process; without a declaration one that has no dictionary."""
    return _Declared.product
