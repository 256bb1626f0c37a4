"""Permissions of each process of a run, derived from the messages that its actors declare.

No subject is listed by hand: actors declare the message types that they receive, request and send, and each type
determines its subjects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from areal_bus.message import Event, FrozenMeta, Message, Reply, Request, Telemetry, Work
from areal_bus.subjects import inbox_of, log_stream, position_key, subject_of, values_bucket, work_consumer, work_stream
from areal_bus.users import OWNER, Permissions


class Listener(msgspec.Struct, metaclass=FrozenMeta):
    """Messages of one actor of a process."""

    instance: str
    """Name of the actor, which is its address for requests and its consumer name."""
    receives: tuple[type[Message], ...]
    """Events, work, requests and telemetry."""
    sends: tuple[type[Message], ...]
    """Events, work, telemetry and replies."""
    asks: tuple[type[Message], ...] = ()


def permissions_of(run: str, processes: Mapping[str, Sequence[Listener]]) -> dict[str, Permissions]:
    """Returns the permissions of each process's user: the union of those that its actors need."""
    callers = _callers(processes)
    return {name: _permissions(run, name, listeners, callers) for name, listeners in processes.items()}


def _callers(processes: Mapping[str, Sequence[Listener]]) -> dict[type[Message], list[str]]:
    """Returns the processes that may send each request; the owner of the run may send all of them."""
    callers: dict[type[Message], list[str]] = {}
    for name, listeners in processes.items():
        for request in {request for listener in listeners for request in listener.asks}:
            callers.setdefault(request, []).append(name)
    return callers


def _permissions(
    run: str, user: str, listeners: Sequence[Listener], callers: Mapping[type[Message], list[str]]
) -> Permissions:
    publish = {f"$JS.API.DIRECT.GET.KV_{values_bucket(run)}"}
    subscribe = {f"{inbox_of(user)}.>"}
    for listener in listeners:
        publish |= (
            _sent_subjects(run, listener.sends)
            | _requested_subjects(run, listener.asks)
            | _work(run, listener.receives)
        )
        if any(issubclass(kind, Event) for kind in listener.receives):
            publish |= _log(run, listener.instance)
        subscribe |= _live(run, listener)
        requests = [kind for kind in listener.receives if issubclass(kind, Request)]
        publish |= {
            f"{inbox_of(caller)}.answers.>" for request in requests for caller in (OWNER, *callers.get(request, ()))
        }
    return Permissions(publish=tuple(sorted(publish)), subscribe=tuple(sorted(subscribe)))


def _sent_subjects(run: str, kinds: Iterable[type[Message]]) -> set[str]:
    return {subject_of(run, kind.subject) for kind in kinds if not issubclass(kind, Reply)}


def _requested_subjects(run: str, kinds: Iterable[type[Message]]) -> set[str]:
    return {
        subject for kind in kinds for subject in (subject_of(run, kind.subject), subject_of(run, f"_.*.{kind.subject}"))
    }


def _work(run: str, kinds: Iterable[type[Message]]) -> set[str]:
    """Returns subjects for taking and settling work."""
    queue = work_stream(run)
    subjects: set[str] = set()
    for kind in kinds:
        if issubclass(kind, Work):
            consumer = work_consumer(kind.subject)
            subjects |= {
                f"$JS.API.CONSUMER.CREATE.{queue}.{consumer}.{subject_of(run, kind.subject)}",
                f"$JS.API.CONSUMER.MSG.NEXT.{queue}.{consumer}",
                f"$JS.ACK.{queue}.{consumer}.>",
            }
    return subjects


def _log(run: str, instance: str) -> set[str]:
    """Returns subjects for reading the log by ephemeral consumers and for storing the position."""
    log = log_stream(run)
    return {
        f"$JS.API.STREAM.INFO.{log}",
        f"$JS.API.DIRECT.GET.{log}",
        f"$JS.API.CONSUMER.CREATE.{log}",
        f"$JS.API.CONSUMER.MSG.NEXT.{log}.*",
        f"$JS.API.CONSUMER.DELETE.{log}.*",
        f"$KV.{values_bucket(run)}.{position_key(instance)}",
    }


def _live(run: str, listener: Listener) -> set[str]:
    telemetry = {subject_of(run, kind.subject) for kind in listener.receives if issubclass(kind, Telemetry)}
    requests = [kind for kind in listener.receives if issubclass(kind, Request)]
    any_instance = {subject_of(run, kind.subject) for kind in requests}
    by_name = {subject_of(run, f"_.{listener.instance}.{kind.subject}") for kind in requests}
    return telemetry | any_instance | by_name
