"""Requests of genuine clients, recorded as a gateway received them, to be sent again without the clients."""

from __future__ import annotations

import gzip
import json
import re
from contextlib import contextmanager
from pathlib import Path

from areal_actors.gateway import server

RECORDINGS = Path(__file__).parents[1] / "recordings"
RECORD = "AREAL_RECORD_AGENTS"
"""Environment variable: with it the clients' requests are recorded."""
FOLDER = "/task"
"""Folder of the task in recorded requests."""
KEPT_HEADERS = ("anthropic-beta", "x-client-request-id")


@contextmanager
def noting(requests):
    """Add what a gateway of this process receives to a list."""
    read = server.body_of

    async def noted(request):
        body = await read(request)
        path = "/v1/" + request.path_qs.partition("/v1/")[2]
        headers = {name: request.headers[name] for name in KEPT_HEADERS if name in request.headers}
        requests.append({"path": path, "headers": headers, "body": json.loads(body)})
        return body

    server.body_of = noted
    try:
        yield requests
    finally:
        server.body_of = read


def impersonal(requests, folder, home):
    """Recorded requests without ids and folders of the machine that recorded them."""
    text = json.dumps(requests)
    dashed = re.sub(r"[^A-Za-z0-9]", "-", str(folder))
    for found, replaced in ((str(folder), FOLDER), (str(home), "/home"), (dashed, "-task")):
        text = text.replace(found, replaced)
    text = re.sub(
        r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "0" * 8 + "-0000-0000-0000-" + "0" * 12, text
    )
    text = re.sub(r"OS Version: [^\\\"]*", "OS Version: Linux", text)
    return json.loads(re.sub(r"\b[0-9a-f]{32,}\b", "0" * 32, text))


def packed(requests):
    """Requests whose values, and the elements of whose lists, are places in one list of different values: most come
    again."""
    places = {}

    def place(value):
        return places.setdefault(json.dumps(value, sort_keys=True), len(places)) if value is not None else None

    def fields(body):
        return {
            name: [place(one) for one in value] if isinstance(value, list) else place(value)
            for name, value in body.items()
        }

    shapes = [one | {"body": fields(one["body"])} for one in requests]
    values = [json.loads(text) for text in places]
    return {"values": values, "requests": shapes}


def unpacked(recorded):
    """The requests that were packed."""

    def value(place):
        return (
            [value(one) for one in place]
            if isinstance(place, list)
            else None
            if place is None
            else recorded["values"][place]
        )

    return [one | {"body": {name: value(place) for name, place in one["body"].items()}} for one in recorded["requests"]]


def read_recorded(corpus):
    """The clients of a corpus by name, each with its version and its requests."""
    path = RECORDINGS / f"{corpus}.json.gz"
    return json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {}


def recorded_requests(corpus, client):
    """The recorded requests of a client, an object with a name and a version."""
    return unpacked(read_recorded(corpus)[client.name])


def write_recorded(corpus, client, requests):
    """Write the requests of one client beside those of the others."""
    every = read_recorded(corpus) | {client.name: {"version": client.version, **packed(requests)}}
    (RECORDINGS / f"{corpus}.json.gz").write_bytes(gzip.compress(json.dumps(every, sort_keys=True).encode(), mtime=0))
