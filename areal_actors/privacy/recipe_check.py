"""Validates `[log.redaction]`, `[log.retention]` and `log.encrypt`: rules that exist, and runs that they can reach."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol, cast

from areal_actors.core.bus_settings import BusSettings
from areal_actors.core.layers import Key
from areal_actors.core.named_code import named_code_problems
from areal_actors.core.problems import Problems, nearest, toml_value
from areal_actors.core.run_facts import RunFacts
from areal_actors.privacy.known_kinds import KNOWN_KINDS
from areal_actors.privacy.settings import RedactionSettings, RetentionSettings
from areal_bus.errors import ServerUnavailable
from areal_bus.store_key import read_key

REDACTION, RETENTION = ("log", "redaction"), ("log", "retention")
EXAMPLE = "privacy.py:find_names"


class LogTables(Protocol):
    """Tables of `[log]` that are checked here."""

    @property
    def encrypt(self) -> bool:
        """Returns True if the log is encrypted."""
        ...

    @property
    def redaction(self) -> RedactionSettings:
        """Rules of texts that are never written."""
        ...

    @property
    def retention(self) -> RetentionSettings:
        """Limits of age and size."""
        ...


def find_problems(
    log: object, policies: object, bus: BusSettings, facts: RunFacts, *, record_actor_io: bool
) -> Problems:
    """Yields every problem that keeps rules from being applied, or a log from being kept within its limits."""
    tables = cast("LogTables", log)
    redaction, retention = tables.redaction, tables.retention
    if tables.encrypt:
        yield from _without_key(bus)
    if redaction.is_on():
        yield from _wrong_rules(redaction)
        yield from _unreachable(facts, has_policies=bool(policies), is_taped=record_actor_io)
    if retention.is_on() and not facts.is_serving:
        fault = "found limits, but only the log of `areal-actors serve` has them"
        yield RETENTION, f"{fault}; leave the table out, and use log.keep and log.max_mb for a run that trains"
    elif retention.is_on() and bus.url:
        yield RETENTION, "found limits, but the log is on the server of bus.url; set max_age and max_bytes there"


def _wrong_rules(redaction: RedactionSettings) -> Problems:
    for rule in redaction.rules:
        if rule in KNOWN_KINDS:
            continue
        if ".py:" in rule:
            yield from named_code_problems((*REDACTION, "rules"), rule, "function", EXAMPLE)
        else:
            fault = f"found {toml_value(rule)}, which is no rule and no `path.py:function`"
            yield (*REDACTION, "rules"), f"{fault}; {nearest(rule, KNOWN_KINDS)}"
    for name, pattern in redaction.patterns.items():
        key, fault = (*REDACTION, "patterns", name), f"found {toml_value(pattern)}"
        try:
            matches_nothing = bool(re.compile(pattern).fullmatch(""))
        except re.error as error:
            yield key, f"{fault}, which is no expression: {error}; fix it"
            continue
        if matches_nothing:
            yield key, f"{fault}, which matches an empty text; write one that needs a character"


def _without_key(bus: BusSettings) -> Problems:
    if bus.url:
        yield ("log", "encrypt"), "found true, but the log is on the server of bus.url; set `jetstream.key` there"
        return
    try:
        read_key()
    except ServerUnavailable as error:
        yield ("log", "encrypt"), f"found true: {error}"


def _unreachable(facts: RunFacts, *, has_policies: bool, is_taped: bool) -> Problems:
    """Yields settings with which texts would be written that no rule has seen."""
    if not (facts.is_serving or facts.is_online):
        fault = "found rules, but they are for sessions of external agents, which this run does not have"
        yield REDACTION, f"{fault}; leave the table out, or clean the dataset"
    elif has_policies:
        yield (
            REDACTION,
            "found rules, but sessions of several policies do not have them; leave the table or policies out",
        )
    if is_taped:
        yield ("record_actor_io",), "found true, but tapes have the texts of all calls as they came; leave it out"


def unused_settings(facts: RunFacts) -> Iterator[Key]:
    """Yields the limits of a log that is not served, and rules for sessions that a run does not have."""
    if not facts.is_serving:
        yield RETENTION
    if not (facts.is_serving or facts.is_online):
        yield REDACTION
