"""What a process of a run may publish and hear, from what its listeners declare.

Nothing is listed by hand: what somebody hears, takes, serves, asks and says are message types, and the type says by which
subjects a message travels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bus.message import Event, FrozenMeta, Message, Reply, Request, Telemetry, Work
from bus.subjects import inbox_of, log_stream, position_key, values_bucket, work_consumer, work_stream
from bus.users import OWNER, Permissions


class Listener(msgspec.Struct, metaclass=FrozenMeta):
    """One actor of a process, as the bus sees it."""

    instance: str
    """Its own name, under which it can be asked and its position in the log is kept."""
    hears: tuple[type[Message], ...]
    """Events, work, questions and telemetry."""
    says: tuple[type[Message], ...]
    """Events, work, telemetry and replies."""
    asks: tuple[type[Message], ...] = ()


def permissions_of(run: str, processes: Mapping[str, Sequence[Listener]]) -> dict[str, Permissions]:
    """The permissions of each process's user: the union of what its listeners need, and no more."""
    askers = _askers(processes)
    return {name: _permissions(run, name, listeners, askers) for name, listeners in processes.items()}


def _askers(processes: Mapping[str, Sequence[Listener]]) -> dict[type[Message], list[str]]:
    """The processes that may ask each question; the owner of the run may ask all of them."""
    found: dict[type[Message], list[str]] = {}
    for name, listeners in processes.items():
        for question in {question for listener in listeners for question in listener.asks}:
            found.setdefault(question, []).append(name)
    return found


def _permissions(run: str, user: str, listeners: Sequence[Listener], askers: Mapping[type[Message], list[str]]) -> Permissions:
    publish = {f"$JS.API.DIRECT.GET.KV_{values_bucket(run)}"}
    subscribe = {f"{inbox_of(user)}.>"}
    for listener in listeners:
        publish |= _said(run, listener.says) | _asked(run, listener.asks) | _work(run, listener.hears)
        if any(issubclass(kind, Event) for kind in listener.hears):
            publish |= _log(run, listener.instance)
        subscribe |= _live(run, listener)
        questions = [kind for kind in listener.hears if issubclass(kind, Request)]
        publish |= {f"{inbox_of(asker)}.answers.>" for question in questions for asker in (OWNER, *askers.get(question, ()))}
    return Permissions(publish=tuple(sorted(publish)), subscribe=tuple(sorted(subscribe)))


def _said(run: str, says: Iterable[type[Message]]) -> set[str]:
    return {f"areal.{run}.{kind.subject}" for kind in says if not issubclass(kind, Reply)}


def _asked(run: str, asks: Iterable[type[Message]]) -> set[str]:
    return {subject for kind in asks for subject in (f"areal.{run}.{kind.subject}", f"areal.{run}._.*.{kind.subject}")}


def _work(run: str, hears: Iterable[type[Message]]) -> set[str]:
    """Taking work, and saying what became of it."""
    queue = work_stream(run)
    found: set[str] = set()
    for kind in hears:
        if issubclass(kind, Work):
            consumer = work_consumer(kind.subject)
            found |= {
                f"$JS.API.CONSUMER.CREATE.{queue}.{consumer}.areal.{run}.{kind.subject}",
                f"$JS.API.CONSUMER.MSG.NEXT.{queue}.{consumer}",
                f"$JS.ACK.{queue}.{consumer}.>",
            }
    return found


def _log(run: str, instance: str) -> set[str]:
    """Reading the log by consumers that the server forgets, and keeping the position in it."""
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
    telemetry = {f"areal.{run}.{kind.subject}" for kind in listener.hears if issubclass(kind, Telemetry)}
    questions = [kind for kind in listener.hears if issubclass(kind, Request)]
    anybody = {f"areal.{run}.{kind.subject}" for kind in questions}
    by_name = {f"areal.{run}._.{listener.instance}.{kind.subject}" for kind in questions}
    return telemetry | anybody | by_name
