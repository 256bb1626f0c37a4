"""Permissions on the bus of a run: really tried, by every user of a real server, for every kind of message and API
call.

`PYTHONPATH=.:tests python tests/support/permission_matrix.py` writes the table, and that of files (`object_matrix.py`),
into docs/security.md; `test_bus_permissions.py` compares them.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import nats
from support import object_matrix

from areal_actors.core.devices import detect_cuda
from areal_actors.messages import KINDS
from areal_actors.recipe.load import load
from areal_actors.recipe.recipe import Recipe
from areal_actors.supervision.nats_server import users_of
from areal_bus.message import Event, Message, Request, Telemetry, Work
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer
from areal_bus.subjects import log_stream, values_bucket, work_stream
from areal_bus.users import MONITOR, OWNER, BusUsers

ROOT = Path(__file__).parents[2]
TABLE_IN = ROOT / "docs" / "security.md"
BEGIN, END = "<!-- permission matrix: begin -->\n", "<!-- permission matrix: end -->"
STRANGER = "reward_worker"
"""User whose inbox the others try to read and to write to."""
ALLOWED, DENIED = "✓", "·"


class Attempt(NamedTuple):
    """Something that a user may try."""

    name: str
    verb: str
    """`publish` or `subscribe`."""
    subject: str


def recipe() -> Recipe:
    """One with every process."""
    return load([ROOT / "recipes" / "gsm8k_grpo.toml"], ["profile=embedded"], detect_cuda()).recipe


def attempts(run: str) -> list[Attempt]:
    """Every kind of message, what the server keeps, and others' inboxes. What destroys comes last."""
    log, work, values = log_stream(run), work_stream(run), f"KV_{values_bucket(run)}"
    kinds: list[tuple[str, type[Message]]] = [
        ("publish", Event),
        ("queue", Work),
        ("ask", Request),
        ("send", Telemetry),
    ]
    publications = [
        Attempt(f"{verb} `{kind.__name__}`", "publish", f"areal.{run}.{kind.subject}")
        for verb, base in kinds
        for kind in sorted((kind for kind in KINDS if issubclass(kind, base)), key=lambda kind: kind.__name__)
    ]
    subscriptions = [
        Attempt(f"receive {what} live", "subscribe", f"areal.{run}.{kind.subject}")
        for what, kind in (
            ("`Generate` requests", _kind("Generate")),
            ("`ModelRequest` requests", _kind("ModelRequest")),
            ("`Heartbeat`", _kind("Heartbeat")),
        )
    ]
    api = "$JS.API"
    return [
        *publications,
        *subscriptions,
        Attempt("receive everything live", "subscribe", f"areal.{run}.>"),
        Attempt("read the log by place", "publish", f"{api}.DIRECT.GET.{log}"),
        Attempt("read the log by an ephemeral consumer", "publish", f"{api}.CONSUMER.CREATE.{log}"),
        Attempt("draw from a consumer of the log", "publish", f"{api}.CONSUMER.MSG.NEXT.{log}.somebody"),
        Attempt("delete a consumer of the log", "publish", f"{api}.CONSUMER.DELETE.{log}.somebody"),
        Attempt("make a durable consumer of the log", "publish", f"{api}.CONSUMER.DURABLE.CREATE.{log}.mine"),
        Attempt("take `RunEpisode` work", "publish", f"{api}.CONSUMER.MSG.NEXT.{work}.episode-run"),
        Attempt("take `ScoreEpisode` work", "publish", f"{api}.CONSUMER.MSG.NEXT.{work}.episode-score"),
        Attempt("delete the consumer of work", "publish", f"{api}.CONSUMER.DELETE.{work}.episode-run"),
        Attempt("move another actor's position", "publish", f"$KV.{values_bucket(run)}._position.nobody-0"),
        Attempt("read positions", "publish", f"{api}.DIRECT.GET.{values}"),
        Attempt(f"read the inbox of `{STRANGER}`", "subscribe", f"_INBOX.{STRANGER}.>"),
        Attempt("read every inbox", "subscribe", "_INBOX.>"),
        Attempt(f"forge the server's answer to `{STRANGER}`", "publish", f"_INBOX.{STRANGER}.server.x.1"),
        Attempt("list streams", "publish", f"{api}.STREAM.LIST"),
        Attempt("create a stream", "publish", f"{api}.STREAM.CREATE.MINE"),
        Attempt("change the log's settings", "publish", f"{api}.STREAM.UPDATE.{log}"),
        Attempt("delete an event", "publish", f"{api}.STREAM.MSG.DELETE.{log}"),
        Attempt("purge the log", "publish", f"{api}.STREAM.PURGE.{log}"),
        Attempt("delete the log", "publish", f"{api}.STREAM.DELETE.{log}"),
        Attempt("another run's subjects", "publish", "areal.another.run.stopping"),
    ]


def _kind(name: str) -> type[Message]:
    return next(kind for kind in KINDS if kind.__name__ == name)


async def denied_to(user: str, users: BusUsers, address: str, tried: list[Attempt]) -> set[str]:
    """The names of those attempts that the server refuses this user."""
    refused: list[str] = []

    async def note(error: Exception) -> None:
        refused.append(str(error))

    client = await nats.connect(users.url(user, address), error_cb=note, max_reconnect_attempts=0)
    try:
        for attempt in tried:
            if attempt.verb == "publish":
                await client.publish(attempt.subject, b"", reply=f"_INBOX.{user}.server.try.1")
            else:
                await client.subscribe(attempt.subject)
        for _ in range(2):  # the client's first PING overtakes what it has still to write
            await client.flush()
    finally:
        await client.close()
    reported = {
        tuple(match) for error in refused for match in re.findall(r'for (publish|subscription) to "([^"]*)"', error)
    }
    verbs = {"publish": "publish", "subscribe": "subscription"}
    return {attempt.name for attempt in tried if (verbs[attempt.verb], attempt.subject.lower()) in reported}


async def tried_on_a_server(folder: Path) -> dict[str, set[str]]:
    """By user, the names of attempts that a real server refuses; the owner, who may destroy the log, tries last."""
    plan = recipe()
    users = users_of(plan)
    server = await EmbeddedServer.start(folder, users=users)
    try:
        bus = await NatsBus.connect(server.url, plan.run, name="owner", kinds=KINDS)
        await bus.close()
        tried = attempts(plan.run)
        return {
            user: await denied_to(user, users, server.address, tried) for user in [*users.members(), MONITOR, OWNER]
        }
    finally:
        await server.stop()


def table(denied: dict[str, set[str]]) -> str:
    """As Markdown."""
    names = list(denied)
    rows = [
        "| | " + " | ".join(f"`{name}`" for name in names) + " |",
        "|---|" + ":-:|" * len(names),
        *(
            f"| {attempt.name} | "
            + " | ".join(DENIED if attempt.name in denied[name] else ALLOWED for name in names)
            + " |"
            for attempt in attempts(recipe().run)
        ),
    ]
    return "\n".join(rows) + "\n"


def documented() -> str:
    """The table in the documentation."""
    return TABLE_IN.read_text().partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    """Write the table into the documentation."""
    with tempfile.TemporaryDirectory() as folder:
        new = table(asyncio.run(tried_on_a_server(Path(folder))))
    with tempfile.TemporaryDirectory() as folder:
        files = object_matrix.table(object_matrix.RunFiles(Path(folder)))
    text = TABLE_IN.read_text()
    for begin, end, found in ((BEGIN, END, new), (object_matrix.BEGIN, object_matrix.END, files)):
        before, _, rest = text.partition(begin)
        text = before + begin + found + end + rest.partition(end)[2]
        sys.stdout.write(found)
    TABLE_IN.write_text(text)


if __name__ == "__main__":
    main()
