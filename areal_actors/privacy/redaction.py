"""Rules of `[log.redaction]` over texts: where they match, and the texts without what matched.

A rule that raises an error counts as a match of the whole text: what cannot be searched is not written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import structlog

from areal_actors.core.errors import SetupError
from areal_actors.core.loading import load_named
from areal_actors.core.problems import nearest
from areal_actors.privacy.known_kinds import KNOWN_KINDS, Find, Span
from areal_actors.privacy.settings import RedactionSettings

PSEUDONYM = re.compile(r"redacted-[a-p]{20}")
LETTERS = str.maketrans("0123456789abcdef", "abcdefghijklmnop")
"""Pseudonyms have no digits, which a rule may match."""
FAILED = "{} (failed)"
"""Name of a rule that raised an error."""
logger = structlog.get_logger(__name__)


class Match(NamedTuple):
    """A part of a text that a rule matches."""

    start: int
    end: int
    """Exclusive."""
    rule: str


class Redaction:
    """The rules of a recipe."""

    def __init__(self, rules: dict[str, Find], key: bytes = b"") -> None:
        """`key` makes pseudonyms, which cannot be computed from a name without it."""
        self.rules = rules
        self.key = key

    def find(self, text: str) -> list[Match]:
        """Returns the matches of all rules, by their first characters."""
        return sorted(match for name, find in self.rules.items() for match in _matches(name, find, text))

    def count(self, text: str, after: int = 0) -> Counter[str]:
        """Returns the number of matches of each rule that end after this character."""
        return Counter(match.rule for match in self.find(text) if match.end > after)

    def redact(self, text: str) -> str:
        """Returns a text with the name of the rule in place of each match; unchanged without any."""
        matches = self.find(text) if text else []
        if not matches:
            return text
        parts, end = list[str](), 0
        for match in matches:
            if match.start >= end:
                parts += [text[end : match.start], f"[{match.rule}]"]
            end = max(end, match.end)
        return "".join([*parts, text[end:]])

    def rename(self, name: str) -> str:
        """Returns a name, of a user or a judgement, as it is written: one that a rule matches has a pseudonym.

        The same name always has the same, so that the sessions of a user belong together and can be erased.
        """
        if not name or PSEUDONYM.fullmatch(name) or not self.find(name):
            return name
        digest = blake2b(name.encode(errors="surrogatepass"), digest_size=10, key=self.key[:64])
        return f"redacted-{digest.hexdigest().translate(LETTERS)}"

    def names_in(self, text: str) -> tuple[str, ...]:
        """Returns the names of the rules that match a text."""
        return tuple(self.count(text)) if text else ()


def describe_matches(matches: dict[str, int]) -> str:
    """Returns rules with their numbers of matches, as text: `email (2), phone (1)`."""
    return ", ".join(f"{rule} ({count})" for rule, count in matches.items())


def load_redaction(settings: RedactionSettings, folder: Path, key: bytes = b"") -> Redaction | None:
    """Returns the rules of a recipe; None if it has none.

    Args:
        settings: of the recipe.
        folder: beside which files are looked for.
        key: of pseudonyms, the secret of the run.

    Raises:
        SetupError: a file or function does not exist, or an expression is not valid.
    """
    rules: dict[str, Find] = {}
    for name in settings.rules:
        if name not in KNOWN_KINDS and ":" not in name:
            raise SetupError(f"`{name}` is no redaction rule and no path.py:function; {nearest(name, KNOWN_KINDS)}")
        rules[name] = KNOWN_KINDS[name] if name in KNOWN_KINDS else load_named(name, folder)
        if not callable(rules[name]):
            raise SetupError(f"log.redaction.rules: `{name}` is no function; write path.py:function")
    for name, pattern in settings.patterns.items():
        try:
            rules[name] = partial(_find_pattern, re.compile(pattern))
        except re.error as error:
            raise SetupError(f"log.redaction.patterns.{name}: {error}; write an expression of Python's `re`") from error
    return Redaction(rules, key) if rules else None


def _find_pattern(pattern: re.Pattern[str], text: str) -> Iterable[Span]:
    return (match.span() for match in pattern.finditer(text) if match[0])


def _matches(name: str, find: Find, text: str) -> Iterator[Match]:
    try:
        for start, end in find(text):
            if not 0 <= start <= end <= len(text):
                raise ValueError("a range is outside of the text")
            yield Match(start, end, name)
    except Exception as error:  # noqa: BLE001 - a rule of the user's own may raise anything
        logger.warning("a redaction rule has failed, and counts as a match", rule=name, error=type(error).__name__)
        yield Match(0, len(text), FAILED.format(name))
