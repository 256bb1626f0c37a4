"""Subjects of messages, and patterns of them."""

from __future__ import annotations

import re

from areal_bus.product import current_product

_RUN = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
_WILDCARDS = ("*", ">")


def matches(pattern: str, subject: str) -> bool:
    """Returns True if a subject matches a pattern: `*` stands for one token, a trailing `>` for one or more."""
    if pattern in (">", subject):
        return True
    wanted, got = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(got) <= len(wanted):
            return False
        got = got[: len(wanted)]
    return len(wanted) == len(got) and all(want in ("*", have) for want, have in zip(wanted, got, strict=True))


def check_run(run: str) -> str:
    """Returns a run's name if it is valid in subjects, stream names and folder names.

    Raises:
        ValueError: it is not valid.
    """
    if not _RUN.fullmatch(run):
        raise ValueError(f"run name {run!r}: use 1 to 63 of a-z, 0-9, '-' and '_', beginning with a letter or a digit")
    return run


def check_token(what: str, name: str) -> str:
    """Returns the name of a consumer, group or instance if it is valid as a subject token.

    Raises:
        ValueError: it is not valid; the message begins with `what`.
    """
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"{what} {name!r}: use letters, digits, '-' and '_' only")
    return name


def check_key(key: str) -> str:
    """Returns a bucket key if it is valid: tokens joined by dots, without a leading underscore, which is reserved.

    Raises:
        ValueError: it is not valid.
    """
    if key.startswith("_"):
        raise ValueError(f"bucket key {key!r}: keys that begin with '_' are reserved for the bus")
    for token in key.split("."):
        check_token("bucket key", token)
    return key


def check_pattern(pattern: str) -> str:
    """Returns a subject pattern if it is valid.

    Raises:
        ValueError: a token is neither a name nor a wildcard, or `>` is not the last token.
    """
    tokens = pattern.split(".")
    if ">" in tokens[:-1]:
        raise ValueError(f"pattern {pattern!r}: '>' can only be the last token")
    for token in tokens:
        if token not in _WILDCARDS:
            check_token("subject token", token)
    return pattern


def subject_of(run: str, subject: str) -> str:
    """Returns the subject of a run's messages on the server, which other runs and products share."""
    return f"{current_product().prefix}.{run}.{subject}"


def log_stream(run: str) -> str:
    """Returns the name of the stream with a run's events."""
    return f"{current_product().prefix.upper()}_{run}_LOG"


def work_stream(run: str) -> str:
    """Returns the name of the stream with a run's unfinished work."""
    return f"{current_product().prefix.upper()}_{run}_WORK"


def values_bucket(run: str) -> str:
    """Returns the name of a run's key-value bucket."""
    return f"{current_product().prefix}_{run}"


def work_consumer(subject: str) -> str:
    """Returns the name of the durable consumer that all workers of this subject share."""
    return subject.replace(".", "-")


def position_key(consumer: str) -> str:
    """Returns the bucket key for the position of a durable consumer."""
    return f"_position.{consumer}"


def inbox_of(user: str) -> str:
    """Returns the inbox prefix of a user.

    Replies of other processes arrive below `answers`, those of the server below `server`.
    """
    return f"_INBOX.{user}"
