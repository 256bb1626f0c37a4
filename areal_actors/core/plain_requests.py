"""HTTP requests in their plain form, read in one step: a POST whose head and body arrive together.

The form is that of nearly all calls of clients: one of each header, ASCII, a content length, no encoding, no upgrade,
no expectation. Everything else, also what is only unusual, is read by aiohttp, which has rules for all of it: a request
that is read here is one that no other reader would understand differently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple

import msgspec

MOST_BYTES: Final = 256 << 10
"""Size of the largest plain request: a larger one comes in many parts."""
LONGEST_HEAD: Final = 8190
"""Bytes of a head, of which others are read by aiohttp, with its limits."""
_HEAD: Final = re.compile(r"POST (/[\w.~/:-]+) HTTP/1\.1\r\n(?:[A-Za-z][A-Za-z0-9-]*:[\t\x20-\x7e]*\r\n)+", re.ASCII)
_OF_OTHERS: Final = frozenset(
    {"transfer-encoding", "content-encoding", "expect", "upgrade", "trailer", "proxy-connection", "http2-settings"}
)
"""Headers of requests that are not plain."""
_LENGTH: Final = re.compile(r"\d{1,9}", re.ASCII)


class PlainRequest(msgspec.Struct, frozen=True):
    """A request that has arrived whole."""

    path: str
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: bytes
    size: int
    """Bytes of head and body."""


class Incomplete(NamedTuple):
    """A plain request of which a part of the body has not arrived."""

    path: str
    headers: Mapping[str, str]


def read_plain(data: bytes) -> PlainRequest | Incomplete | None:
    """Returns the plain request with which these bytes begin; None if they begin with anything else."""
    end = data.find(b"\r\n\r\n", 0, LONGEST_HEAD)
    if end < 0 or not data.startswith(b"POST /") or (head := _read_head(data[: end + 2])) is None:
        return None
    path, headers = head
    first = end + 4
    size = first + int(headers["content-length"])
    if size > MOST_BYTES:
        return None
    return PlainRequest(path, headers, data[first:size], size) if size <= len(data) else Incomplete(path, headers)


def _read_head(head: bytes) -> tuple[str, dict[str, str]] | None:
    """Returns path and headers of a plain request, with a length; None if it is none."""
    text = head.decode("ascii", errors="replace")
    if (match := _HEAD.fullmatch(text)) is None or "/." in match[1] or "//" in match[1]:
        return None
    lines = text.split("\r\n")[1:-1]
    headers = {name.lower(): value.strip() for name, _, value in [line.partition(":") for line in lines]}
    is_plain = (
        len(headers) == len(lines)
        and _OF_OTHERS.isdisjoint(headers)
        and "host" in headers
        and _LENGTH.fullmatch(headers.get("content-length", "")) is not None
        and headers.get("connection", "keep-alive").lower() == "keep-alive"
    )
    return (match[1], headers) if is_plain else None


@lru_cache(maxsize=16)
def _start_of(status: int, second: int) -> str:
    """The first two lines of an answer."""
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nDate: {formatdate(second, usegmt=True)}\r\n"


def head_of_answer(status: int, headers: Mapping[str, str], now: float) -> bytes:
    """Returns the head of an answer.

    Raises:
        ValueError: a header has a line break.
    """
    head = _start_of(status, int(now)) + "".join([f"{name}: {value}\r\n" for name, value in headers.items()]) + "\r\n"
    if head.count("\n") != len(headers) + 3 or head.count("\r") != len(headers) + 3:
        raise ValueError("a header of an answer has a line break")
    return head.encode()
