"""A run as traces: from an agent's request to the step that used it, and OpenTelemetry's own protocol at a
collector."""

from __future__ import annotations

import asyncio
import http.server
import os
import signal
import sys
import threading
from contextlib import contextmanager
from itertools import count

import msgspec
import pytest
from support import story
from support.audit_logs import given_up, loaded, published, sound_log
from support.clock import until
from support.live_run import ROOT
from test_reader import exported_log

from areal_actors.cli import main
from areal_actors.core.values import Interaction, SamplingParams, Task, TokenColumns, Trajectory, pack_ids
from areal_actors.messages import (
    BatchFormed,
    CapacityGranted,
    EpisodeScored,
    Generate,
    InteractionRecorded,
    InteractionsRecorded,
    ModelRequest,
    RunEpisode,
    ScoreEpisode,
    StepCompleted,
    TrajectoryDropped,
    TrajectoryExported,
    TrajectoryRef,
)
from areal_actors.track.traces import INFERRED, REQUESTS, Traces
from areal_bus.base import Envelope, Stamp
from areal_bus.recorded import read_log

WORK = RunEpisode(episode="0.1", group="0", attempt=2, task=Task(id="t", data={}), sampling=SamplingParams())
COLUMNS = TokenColumns.of([5, 6, 7, 8], [-0.1] * 4, [0, 0, 0, 1])
CALL = Interaction(
    id="i1", prompt_suffix=pack_ids([1]), completion=COLUMNS, finish_reason="stop", worker="inference_worker-0"
)
MADE = Trajectory(episode="0.1", group="0", attempt=2, task="t", reward=1.0, interactions=(CALL,))
RECORDED = InteractionRecorded(
    session="s",
    episode="0.1",
    interaction="i1",
    prompt_tokens=1,
    completion_tokens=4,
    finish_reason="stop",
    weight_version=1,
)
"""As logs of earlier releases have it."""
CALLED = msgspec.structs.replace(RECORDED, time=story.START + 8, request="ask", attempt=2)
REF = TrajectoryRef(episode="0.1", sequence=4)
FORMED = BatchFormed(
    step=0,
    groups=((REF,),),
    oldest_version=0,
    trained_trajectories=1,
    trained_tokens=4,
    dropped_trajectories=0,
    dropped_tokens=0,
)


def one_episode():
    """Envelopes with times in seconds after the start; requests among the events."""
    asked = ModelRequest(session="s")
    yield 0, "start", "", story.STARTED
    yield 1, "grant", "", CapacityGranted(first_group=0, groups=1, weight_version=0)
    yield 2, "run", "grant", WORK
    yield 3, "ask", "", asked
    yield 4, "generate", "ask", Generate(prompt_ids=b"", sampling=SamplingParams())
    yield 9, "score", "", ScoreEpisode(work=WORK, session="s", output="1")
    yield 10, "scored", "score", EpisodeScored(work=WORK, session="s", reward=1.0)
    yield 11, "exported", "scored", TrajectoryExported(trajectory=MADE, recorded=(CALLED,))
    yield 13, "batch", "exported", FORMED
    yield 17, "stepped", "batch", StepCompleted(step=1, metrics={"reward_mean": 1.0}, sequences_checksum="")
    yield 18, "weights", "batch", published(1)
    yield 20, "loaded", "weights", loaded(1)


def spans_of(story_, *, live):
    """Spans by name, of a live run or of its log; times are seconds after the start."""
    traces, found, sequences = Traces(), [], count(1)
    for after, id_, cause, message in story_:
        envelope = Envelope.seal(message, Stamp(id=id_, sender="a", time=story.START + after, cause=cause), "r")
        if envelope.subject in REQUESTS:
            if live:
                traces.begin(envelope)
        else:
            found += traces.receive(msgspec.structs.replace(envelope, sequence=next(sequences)))
    return {span.name: span._replace(begin=span.begin - story.START, end=span.end - story.START) for span in found}


def test_a_request_is_followed_to_the_step_that_used_it():
    spans = spans_of(one_episode(), live=True)
    assert {name: (span.begin, span.end) for name, span in spans.items()} == {
        "episode": (2, 11),
        "call": (3, 8),
        "generate": (7, 8),
        "score": (9, 10),
        "export": (10, 11),
        "batch": (11, 13),
        "step": (13, 17),
        "train": (11, 17),
        "publish weights": (17, 18),
        "load weights, inference_worker-0": (18, 20),
    }
    episode, step = spans["episode"], spans["step"]
    for name in ("call", "score", "export", "train"):
        assert spans[name].place.trace == episode.place.trace
        assert spans[name].parent == episode.place.span
    assert spans["generate"].parent == spans["call"].place.span
    assert spans["train"].links == (step.place,)
    assert spans["batch"].links == (spans["export"].place,)
    assert step.parent == spans["batch"].place.span
    assert spans["publish weights"].parent == step.place.span
    assert (episode.attributes["areal.attempt"], episode.attributes["areal.reward"]) == (2, 1.0)
    assert spans["call"].attributes["gen_ai.usage.output_tokens"] == 4
    assert spans["generate"].attributes == {
        "areal.weight_version": 1,
        "gen_ai.usage.output_tokens": 1,
        "areal.worker": "inference_worker-0",
    }
    assert step.attributes["areal.reward_mean"] == 1.0
    assert not any(INFERRED.items() <= span.attributes.items() for span in spans.values())


def test_a_log_alone_gives_the_same_spans_and_marks_beginnings_that_it_does_not_have():
    live, logged = spans_of(one_episode(), live=True), spans_of(one_episode(), live=False)
    assert {name: span.place for name, span in live.items()} == {name: span.place for name, span in logged.items()}
    assert {name: span.end for name, span in live.items()} == {name: span.end for name, span in logged.items()}
    assert logged["episode"].begin == logged["call"].begin == 1, "the grant of its group"
    assert logged["score"].begin == 8
    assert {name for name, span in logged.items() if INFERRED.items() <= span.attributes.items()} == {
        "episode",
        "call",
        "score",
    }


def test_a_call_that_was_an_event_of_its_own_is_followed_as_well():
    story_ = [*one_episode()]
    story_[5:5] = [(8, "recorded", "ask", RECORDED)]
    story_[8:10] = [
        (11, "exported", "scored", TrajectoryExported(trajectory=MADE)),
        (
            13,
            "batch",
            "exported",
            msgspec.structs.replace(FORMED, groups=((msgspec.structs.replace(REF, sequence=5),),)),
        ),
    ]
    before, now = spans_of(story_, live=True), spans_of(one_episode(), live=True)
    assert {name: (span.begin, span.end) for name, span in before.items()} == {
        name: (span.begin, span.end) for name, span in now.items()
    }


def test_an_attempt_that_failed_is_an_error_and_one_that_was_dropped_has_its_reason():
    earlier = (8, "tick", "", InteractionsRecorded(recorded=(msgspec.structs.replace(CALLED, attempt=1), CALLED)))
    failed = spans_of([*[*one_episode()][:5], earlier, (9, "gone", "", given_up("0.1", attempt=2))], live=False)
    assert failed["episode"].error == "agent: ValueError"
    assert set(failed) == {"episode", "call"}
    assert failed["call"].end == 8
    spans = spans_of(
        [*[*one_episode()][:8], (12, "drop", "", TrajectoryDropped(episode="0.1", group="0", reason="stale"))],
        live=False,
    )
    assert (spans["drop"].begin, spans["drop"].end, spans["drop"].attributes) == (11, 12, {"areal.reason": "stale"})


def test_requests_whose_end_never_comes_are_forgotten(monkeypatch):
    monkeypatch.setattr("areal_actors.track.traces.BEGINNINGS_KEPT", 3)
    traces = Traces()
    for number in range(10):
        traces.begin(Envelope.seal(ModelRequest(session="s"), Stamp(id=f"m{number}", sender="a", time=1.0), "r"))
    assert list(traces._began) == ["m7", "m8", "m9"]


# ---------------------------------------------------------------- a collector


@contextmanager
def collector(status=200):
    """An HTTP server that decodes OTLP requests; yields its URL and the requests."""
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    received = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, service.ExportTraceServiceRequest.FromString(_plain(body, self.headers))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _plain(body, headers):
    assert headers.get("Content-Encoding", "identity") == "identity"
    return body


def test_a_collector_gets_every_span_of_an_exported_log(tmp_path, capsys):
    file = exported_log(tmp_path / "a.log", sound_log())
    traces = Traces()
    expected = [span for envelope in read_log(file) for span in traces.receive(envelope)]
    with collector() as (url, received):
        assert main(["export", str(file), "--otlp", url]) == 0
    assert f"{len(expected)} spans sent to {url}/v1/traces" in capsys.readouterr().out
    assert {path for path, _ in received} == {"/v1/traces"}
    (resources,) = received[0][1].resource_spans
    assert {entry.key: entry.value.string_value for entry in resources.resource.attributes}[
        "service.name"
    ] == "areal-actors"
    (scope,) = resources.scope_spans
    found = {(span.trace_id.hex(), span.span_id.hex()): span for span in scope.spans}
    last = {span.place: span for span in expected}
    assert set(found) == set(last)
    for span in last.values():
        sent = found[span.place]
        assert (sent.name, sent.parent_span_id.hex()) == (span.name, span.parent)
        assert sent.start_time_unix_nano == int(span.begin * 1e9)
        assert sent.end_time_unix_nano == int(span.end * 1e9)
        assert [(link.trace_id.hex(), link.span_id.hex()) for link in sent.links] == list(span.links)
        assert sent.status.message == span.error
    assert {span.name for span in expected} >= {
        "episode",
        "export",
        "batch",
        "step",
        "train",
        "drop",
        "publish weights",
    }


@pytest.mark.parametrize("url", ["localhost:4318", "grpc://localhost:4317", "/v1"])
def test_an_address_that_is_none_is_refused(url, tmp_path, capsys):
    file = exported_log(tmp_path / "a.log", sound_log())
    assert main(["export", str(file), "--otlp", url]) == 1
    assert "as in http://localhost:4318" in capsys.readouterr().err


def test_a_collector_that_refuses_ends_the_command_with_its_address(tmp_path, capsys):
    file = exported_log(tmp_path / "a.log", sound_log())
    with collector(status=400) as (url, _):
        assert main(["export", str(file), "--otlp", url]) == 1
    assert f"the collector at {url}/v1/traces did not take" in capsys.readouterr().err


@pytest.mark.long
async def test_a_live_run_is_sent_with_the_beginnings_of_its_calls(live, tmp_path):
    pytest.importorskip("opentelemetry.sdk")
    run = live(
        "steps=6", "staleness_gate.max_staleness=0", "watchdog.stall_seconds=600", "watchdog.heartbeat_seconds=600"
    )
    with collector() as (url, received):
        async with run.listening():
            await run.until(StepCompleted, 1, 600)
            os.kill(paused := run.pid_of("trainer"), signal.SIGSTOP)  # the run cannot end before it is followed
            words = ("export", run.folder.name, "--otlp", url, "--folder", str(run.folder.parent))
            sending = await asyncio.create_subprocess_exec(sys.executable, "-m", "areal_actors", *words, cwd=ROOT)
            await until(lambda: received or sending.returncode is not None, seconds=600)
            os.kill(paused, signal.SIGCONT)
            assert await run.ended() == 0, run.output()
            assert await asyncio.wait_for(sending.wait(), 600) == 0
    spans = [
        span
        for _, request in received
        for one in request.resource_spans
        for scope in one.scope_spans
        for span in scope.spans
    ]
    names = {span.name for span in spans}
    assert names >= {"episode", "call", "generate", "score", "export", "batch", "step", "train", "publish weights"}
    calls = [span for span in spans if span.name == "call"]
    begun = [span for span in calls if "areal.begin" not in {entry.key for entry in span.attributes}]
    assert 0 < len(begun) < len(calls), "those from before it was joined have none"
    assert all(span.start_time_unix_nano < span.end_time_unix_nano for span in begun)
