"""Writes docs/events.md and docs/asyncapi.json from the message types and the actors' handlers.

`python scripts/events_reference.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from areal_actors import __version__
from areal_actors.messages import KINDS, Heartbeat, WatchProbe
from areal_actors.recipe.reference import meanings, structs_of
from areal_actors.supervision.nats_server import ACTORS, LIFECYCLE
from areal_bus.base import Envelope
from areal_bus.message import Event, Message, Reply, Request, Telemetry, Work

DOCS = Path(__file__).parent.parent / "docs"
PAGE, ASYNCAPI = DOCS / "events.md", DOCS / "asyncapi.json"
SECTIONS: dict[type[Message], str] = {
    Event: "Facts, in the run's durable log (JetStream) and delivered to every subscriber.",
    Work: "Tasks, leased by one worker at a time (JetStream work queue) and redelivered if it dies.",
    Request: "Questions with a deadline (core NATS).",
    Reply: "Replies, sent to the caller only; several per request if they are streamed.",
    Telemetry: "State and progress, which may be lost (core NATS).",
}
DECLARED = [(name, kind) for name, actor in ACTORS.items() for kind in (actor, *actor.__subclasses__())]
"""Classes of actors by name, those that only some runs have included."""
OTHERS: dict[type[Message], str] = {Heartbeat: "supervisor, monitors", WatchProbe: "supervisor"}
"""Receivers that are not actors."""
COMMON_FIELDS = {
    "session": "Id of the session.",
    "episode": "Episode, `GROUP.MEMBER`.",
    "group": "Number of the group.",
    "attempt": "Attempt at the episode, from 1.",
    "work": "The episode, with its task.",
    "task": "The task.",
    "output": "Text that the agent returned.",
    "reward": "The reward.",
    "worker": "Name of the inference worker.",
    "actor": "Name of the actor.",
    "process": "Name of the process.",
    "pid": "Process id.",
    "reason": "The cause, as a sentence.",
    "detail": "The cause, as a sentence.",
    "weight_version": "Version of the weights: number of steps that made them.",
    "purpose": "`train`, or `evaluate` for a held-out task.",
    "sampling": "Sampling parameters.",
    "prompt_tokens": "Number of tokens of the prompt.",
    "completion_tokens": "Number of sampled tokens.",
    "finish_reason": "`stop`, `length` or `tool_calls`; empty while there is none.",
    "interaction": "Id of the interaction, one choice of a model call.",
    "interactions": "The model calls of the session.",
    "error": "The error; empty without one.",
    "error_status": "HTTP status of the error.",
    "error_field": "Invalid field of the request, if any.",
    "refused": "Refusal of the request, if it was refused.",
    "api_key": "API key of the session.",
    "base_url": "Base URL for the agent's client.",
    "stream": "True to send parts as they are sampled.",
    "logprobs": "True to send log-probabilities.",
    "lease_seconds": "Duration of the lease in seconds.",
    "state": "State of the session.",
    "seconds": "Duration in seconds.",
    "folder": "Path relative to the run's folder.",
    "step": "Step, counted from 1.",
    "cursor": "Sequence of the last event trained on.",
    "metrics": "Metrics by name.",
    "checksum": "Checksum of the weights.",
    "columns": "Token ids, log-probabilities and weight versions.",
    "trajectory": "The trajectory.",
    "id": "The id.",
    "logprob": "Log-probability, in nats.",
    "steps": "Number of steps completed.",
    "tokens": "Number of tokens.",
}
"""Meaning of fields by name, where the field has no docstring of its own."""
HEAD = """# Messages

After this page you can subscribe to any message of a run, and read each of its fields.

All messages on the bus, with sender, receivers and fields. A monitor receives all but replies, which go to the caller
only; it subscribes to `areal.<run>.<subject>`, for example `areal.gsm8k-grpo.trajectory.>`; address, user and password
are in the `monitor.json` of the run's folder ([security.md](security.md)). `areal-actors view RUN 'trajectory.>'`
prints messages.

Each message is an envelope in msgpack, compressed if it begins with the byte `C1`
([monitoring.md](monitoring.md#a-monitor-with-nats-py)); its `body` is the message in msgpack, or in the file that
`claim` names. Fields are by name, unknown ones are ignored. [asyncapi.json](asyncapi.json) has the same as an AsyncAPI
3.0 document, for code generators and viewers.

`python scripts/events_reference.py` writes this page and the document from the code.
"""


def senders(kind: type[Message]) -> list[str]:
    """Returns the actors whose handlers declare this message."""
    if kind in LIFECYCLE:
        return ["every actor"]
    declared = [
        name
        for name, actor in DECLARED
        if kind in actor.asks or any(kind in one.emits for one in actor.handlers.values())
    ]
    return list(dict.fromkeys(declared)) or (["supervisor"] if issubclass(kind, Event | Telemetry) else ["gateway"])


def receivers(kind: type[Message]) -> list[str]:
    """Returns the actors that have a handler of this message, or the callers of a reply."""
    if issubclass(kind, Reply):
        requests = [one for one in KINDS if issubclass(one, Request) and one.reply is kind]
        return sorted({name for request in requests for name in senders(request)})
    return list(dict.fromkeys(name for name, actor in DECLARED if kind in actor.handlers))


def page() -> str:
    """Returns the text of the page."""
    return "\n".join([HEAD, *_envelope(), *_index(), *_details()]).rstrip() + "\n"


def _envelope() -> Iterator[str]:
    yield "## Envelope\n"
    yield from _fields(Envelope)


def _index() -> Iterator[str]:
    yield "## Senders and receivers\n"
    for base, meaning in SECTIONS.items():
        yield f"### {base.__name__}\n\n{meaning}\n\n| message | subject | from | to |\n|---|---|---|---|"
        for kind in _kinds(base):
            subject = f"`{kind.subject}`" if not issubclass(kind, Reply) else ""
            to = ", ".join(receivers(kind)) or OTHERS.get(kind, "monitors")
            yield f"| [`{kind.__name__}`](#{kind.__name__.lower()}) | {subject} | {', '.join(senders(kind))} | {to} |"
        yield ""


def _details() -> Iterator[str]:
    yield "## Fields\n"
    for base in SECTIONS:
        for kind in _kinds(base):
            yield f"### {kind.__name__}\n\n{' '.join((kind.__doc__ or '').split())}\n"
            yield from _fields(kind)
    yield "## Values\n\nStructures in fields of messages.\n"
    for name, kind in sorted(_values().items()):
        yield f"### {name}\n\n{' '.join((kind.__doc__ or '').split())}\n"
        yield from _fields(kind)


def _values() -> dict[str, type[msgspec.Struct]]:
    """Returns the structs that messages contain, by name."""
    found = {part.__name__: part for kind in KINDS for part in structs_of(kind)}
    return {name: kind for name, kind in found.items() if not issubclass(kind, Message)}


def _fields(kind: type[msgspec.Struct]) -> Iterator[str]:
    documented, properties = _meanings(kind), _schemas([kind])[kind.__name__].get("properties", {})
    if not properties:
        return
    yield "| field | type | meaning |\n|---|---|---|"
    for name, schema in properties.items():
        yield f"| `{name}` | {_type(schema)} | {documented.get(name, '').replace('|', chr(92) + '|')} |"
    yield ""


def _meanings(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Returns the meaning of each field: its docstring, or that of fields with its name."""
    return {**{name: COMMON_FIELDS[name] for name in kind.__struct_fields__ if name in COMMON_FIELDS}, **meanings(kind)}


def _type(schema: dict[str, Any]) -> str:
    """Returns a JSON schema in words."""
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}" if isinstance(schema.get("items"), dict) else "list"
    if schema.get("contentEncoding") == "base64":
        return "bytes"
    return str(schema.get("type", "any"))


def _kinds(base: type[Message]) -> list[type[Message]]:
    return [kind for kind in KINDS if issubclass(kind, base)]


def _schemas(kinds: list[Any]) -> dict[str, Any]:
    _, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    return dict(components)


def asyncapi() -> str:
    """Returns the AsyncAPI document."""
    schemas = _schemas([*KINDS, Envelope])
    for kind in KINDS:
        for name, meaning in _meanings(kind).items():
            if name in schemas[kind.__name__].get("properties", {}):
                schemas[kind.__name__]["properties"][name]["description"] = meaning
    addressed = [kind for kind in KINDS if not issubclass(kind, Reply)]
    document = {
        "asyncapi": "3.0.0",
        "info": {
            "title": "areal-actors",
            "version": __version__,
            "description": "Messages of a run; generated from the message types.",
        },
        "defaultContentType": "application/msgpack",
        "servers": {"run": _server()},
        "channels": {kind.__name__: _channel(kind) for kind in addressed},
        "operations": {f"receive{kind.__name__}": _operation(kind) for kind in addressed},
        "components": {"schemas": schemas, "messages": {kind.__name__: _message(kind) for kind in KINDS}},
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _server() -> dict[str, Any]:
    return {
        "host": "127.0.0.1:{port}",
        "protocol": "nats",
        "description": (
            "The run's own nats-server, or that of `bus.url`. `monitor.json` in the run's folder has URL, user and"
            " password."
        ),
        "variables": {"port": {"description": "In `monitor.json`."}},
        "security": [
            {"type": "userPassword", "description": "A read-only user: `user` and `password` of `monitor.json`."}
        ],
    }


def _channel(kind: type[Message]) -> dict[str, Any]:
    return {
        "address": f"areal.{{run}}.{kind.subject}",
        "description": " ".join((kind.__doc__ or "").split()),
        "parameters": {"run": {"description": "Name of the run."}},
        "messages": {kind.__name__: {"$ref": f"#/components/messages/{kind.__name__}"}},
    }


def _operation(kind: type[Message]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "action": "receive",
        "channel": {"$ref": f"#/channels/{kind.__name__}"},
        "summary": f"{'/'.join(senders(kind))} → {', '.join(receivers(kind)) or OTHERS.get(kind, 'monitors')}",
    }
    if issubclass(kind, Request):
        operation["x-reply"] = {"$ref": f"#/components/messages/{kind.reply.__name__}"}
    return operation


def _message(kind: type[Message]) -> dict[str, Any]:
    base = next(base for base in SECTIONS if issubclass(kind, base))
    return {
        "name": kind.__name__,
        "summary": " ".join((kind.__doc__ or "").split()),
        "tags": [{"name": base.__name__}],
        "payload": {"$ref": f"#/components/schemas/{kind.__name__}"},
        "x-envelope": {"$ref": "#/components/schemas/Envelope"},
    }


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    ASYNCAPI.write_text(asyncapi(), encoding="utf-8")
