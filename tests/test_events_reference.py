"""docs/events.md and docs/asyncapi.json: current, complete, and consistent with the handlers of the actors."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from areal_actors.messages import KINDS, BatchFormed, Generated, RunStarted, WeightsPublished
from areal_bus.message import Reply

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "scripts/events_reference.py"))


def test_the_page_and_the_document_are_current(script):
    again = "run `python scripts/events_reference.py`"
    assert script["PAGE"].read_text() == script["page"](), again
    assert script["ASYNCAPI"].read_text() == script["asyncapi"](), again


def test_every_field_has_a_meaning(script):
    assert [line for line in script["page"]().splitlines() if line.startswith("| `") and line.endswith("|  |")] == []


def test_senders_and_receivers_are_those_of_the_handlers(script):
    senders, receivers = script["senders"], script["receivers"]
    assert (senders(BatchFormed), senders(RunStarted), senders(Generated)) == (
        ["batcher"],
        ["supervisor"],
        ["inference_worker"],
    )
    assert {"staleness_gate", "inference_worker", "batcher"} <= set(receivers(WeightsPublished))
    assert receivers(Generated) == ["reward_worker", "session_manager"]  # judges may be the run's own engines


def references(value):
    if isinstance(value, dict):
        for name, part in value.items():
            if name == "$ref":
                yield part
            else:
                yield from references(part)
    elif isinstance(value, list):
        for part in value:
            yield from references(part)


def test_the_document_has_every_message_and_every_reference_resolves(script):
    document = json.loads(script["asyncapi"]())
    assert set(document["components"]["messages"]) == {kind.__name__ for kind in KINDS}
    addresses = {channel["address"] for channel in document["channels"].values()}
    assert addresses == {f"areal.{{run}}.{kind.subject}" for kind in KINDS if not issubclass(kind, Reply)}
    found = set(references(document))
    assert len(found) > 100
    for reference in found:
        place = document
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
