"""Workers of another host join a live run and leave it, in order and otherwise: real processes, shared is only the
network."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.joined_runs import Start, invited, runs_beside
from support.live_run import PATIENT, ROOT, LiveRun
from support.other_host import ISOLATED, Joiner, OtherHost
from support.tiny_vision import CONTEXT, TOP_K, picture, write_vision_model

from areal_actors.messages import (
    ActorStarted,
    EpisodeAbandoned,
    EpisodeScored,
    StepCompleted,
    WeightsLoaded,
    WorkerJoined,
    WorkerLeft,
)
from areal_bus.server import EmbeddedServer

pytestmark = pytest.mark.long
NO_WORKERS = ("actors.rollout_worker.count=0", "actors.inference_worker.count=0", "actors.reward_worker.count=0")
"""All workers are of the other host."""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[OtherHost]:
    with OtherHost(tmp_path / "other", hidden=tmp_path / "runs") as host:
        yield host


@pytest.fixture
def live(tmp_path: Path, other: OtherHost) -> Iterator[Start]:
    with runs_beside(other, tmp_path / "runs") as start:
        yield start


def joined(run: LiveRun, role: str) -> list[str]:
    """Names of the workers of this role that have joined so far."""
    return [event.worker for event in run.received(WorkerJoined) if event.role == role]


async def until_started(run: LiveRun, worker: str) -> None:
    until = time.monotonic() + PATIENT
    while worker not in {event.actor for event in run.received(ActorStarted)}:
        assert time.monotonic() < until, f"{worker} has not started: {run.output()}"
        await asyncio.sleep(0.05)


async def until_left(run: LiveRun, worker: str) -> WorkerLeft:
    until = time.monotonic() + PATIENT
    while not (found := [event for event in run.received(WorkerLeft) if event.worker == worker]):
        assert time.monotonic() < until, f"{worker} has not left: {run.output()}"
        await asyncio.sleep(0.05)
    return found[0]


async def assert_exact(run: LiveRun, steps: int) -> None:
    """The run has done its steps, each once, and no episode was lost."""
    log = [event for _, event in await run.log()]
    assert [event.step for event in log if isinstance(event, StepCompleted)] == list(range(1, steps + 1))
    assert not [event for event in log if isinstance(event, EpisodeAbandoned) and not event.work.attempts_left]
    gone = {event.worker for event in log if isinstance(event, WorkerLeft)}
    assert gone == {event.worker for event in log if isinstance(event, WorkerJoined)}


async def test_all_workers_of_a_run_are_of_another_host(live, other):
    run = live("steps=6", *NO_WORKERS)
    credential = await invited(run, other)
    joiners = [
        other.join("--credential", str(credential), "--role", role, "--count", count)
        for role, count in (("inference_worker", "2"), ("rollout_worker", "2"), ("reward_worker", "1"))
    ]
    async with run.listening():
        assert await run.ended() == 0, run.output() + "".join(joiner.output() for joiner in joiners)
    assert [joiner.ended() for joiner in joiners] == [0, 0, 0]
    assert "run 'gsm8k-grpo' has ended" in joiners[0].output()
    await assert_exact(run, 6)
    log = [event for _, event in await run.log()]
    inference = {event.worker for event in log if isinstance(event, WorkerJoined) and event.role == "inference_worker"}
    assert {event.worker for event in log if isinstance(event, WeightsLoaded)} == inference
    assert len(inference) == 2
    assert [event for event in log if isinstance(event, EpisodeScored)]
    assert {event.reason for event in log if isinstance(event, WorkerLeft)} == {""}
    assert list((other.folder / "tmp").glob("areal-join-*")) == []


async def test_killed_workers_cost_no_episode_and_others_take_their_place(live, other):
    run = live("steps=100000", "watchdog.heartbeat_seconds=6")
    credential = str(await invited(run, other))

    def join(role: str) -> Joiner:
        return other.join("--credential", credential, "--role", role)

    async with run.listening():
        await run.until(StepCompleted, 1)
        first, second, engines = join("rollout_worker"), join("rollout_worker"), join("inference_worker")
        await run.until(WorkerJoined, 3)
        for worker in (*joined(run, "rollout_worker"), *joined(run, "inference_worker")):
            await until_started(run, worker)
        (engine,) = joined(run, "inference_worker")
        engines.worker().kill()
        assert (await until_left(run, engine)).reason == "killed by SIGKILL"
        assert len(await run.until(WorkerJoined, 4)) == 4
        await until_started(run, joined(run, "inference_worker")[1])

        left_before = {event.worker for event in run.received(WorkerLeft)}
        first.process.terminate()
        assert first.ended() == 0
        (orderly,) = {event.worker for event in await run.until(WorkerLeft, 2)} - left_before
        assert (await until_left(run, orderly)).reason == ""

        (other_one,) = set(joined(run, "rollout_worker")) - {orderly}
        for process in (second.process, second.worker()):
            process.kill()
        assert "no heartbeat for" in (await until_left(run, other_one)).reason
        await run.until(StepCompleted, len(run.received(StepCompleted)) + 3)
        run.process.terminate()
        assert await run.ended() == 130, run.output()
    assert engines.ended() == 1
    assert "interrupted" in engines.output()
    await assert_exact(run, len(run.received(StepCompleted)))


@pytest.mark.skipif(not ISOLATED, reason="needs network namespaces")
async def test_a_cable_pulled_for_longer_than_a_lease_costs_no_episode(live, other):
    run = live("steps=10", "watchdog.heartbeat_seconds=6", *NO_WORKERS)
    credential = str(await invited(run, other))
    joiners = [
        other.join("--credential", credential, "--role", role)
        for role in ("inference_worker", "rollout_worker", "reward_worker")
    ]
    async with run.listening():
        await run.until(StepCompleted, 3)
        other.pull_cable(out=True)
        for worker in [event.worker for event in run.received(WorkerJoined)]:
            assert "no heartbeat for" in (await until_left(run, worker)).reason
        other.pull_cable(out=False)
        await run.until(WorkerJoined, 6)
        assert await run.ended() == 0, run.output() + "".join(joiner.output() for joiner in joiners)
    assert [joiner.ended() for joiner in joiners] == [0, 0, 0]
    await assert_exact(run, 10)


@pytest.mark.skipif(not ISOLATED, reason="needs network namespaces")
async def test_calls_that_a_broken_cable_swallows_are_repeated_although_no_lease_ends(live, other):
    run = live("steps=12", "watchdog.heartbeat_seconds=300", "task.timeout_seconds=600", *NO_WORKERS)
    credential = str(await invited(run, other))
    for role in ("inference_worker", "rollout_worker", "reward_worker"):
        other.join("--credential", credential, "--role", role)
    async with run.listening():
        await run.until(StepCompleted, 3)
        other.pull_cable(out=True)
        for worker in [event.worker for event in run.received(WorkerJoined)]:
            await other.logged(worker, "disconnected from the NATS server")
        other.pull_cable(out=False)
        (engine,) = joined(run, "inference_worker")
        assert await run.ended() == 0, run.output()
    assert len([event for event in run.received(ActorStarted) if event.actor == engine]) == 2
    assert len(run.received(WorkerJoined)) == 3
    assert {event.reason for event in run.received(WorkerLeft)} == {""}
    await assert_exact(run, 12)


async def test_a_resumed_run_takes_workers_of_other_hosts_again(live, other):
    run = live("steps=100000", "watchdog.bus_seconds=5", "evaluation.tasks=0")
    joiner = other.join("--credential", str(await invited(run, other)))
    async with run.listening():
        await run.until(WorkerJoined, 1)
        await until_started(run, "rollout_worker-10000")
        await run.until(StepCompleted, 3)
        run.process.kill()
        assert joiner.ended() == 1
        assert "has not answered for" in joiner.output() or "is gone" in joiner.output()
    (run.folder / "join.json").unlink(missing_ok=True)
    run.resume()
    joiner = other.join("--credential", str(await invited(run, other)))
    async with run.listening():
        await until_started(run, "rollout_worker-10001")
        assert (await until_left(run, "rollout_worker-10000")).reason == "the run was stopped"
        joiner.process.terminate()
        assert joiner.ended() == 0
        assert (await until_left(run, "rollout_worker-10001")).reason == ""
        run.process.terminate()
        assert await run.ended() == 130, run.output()
    log = [event.step for _, event in await run.log() if isinstance(event, StepCompleted)]
    assert set(log) == set(range(1, max(log) + 1))


@pytest.mark.skipif(not ISOLATED, reason="needs an address of another interface")
async def test_a_rollout_worker_whose_agents_would_not_reach_the_gateway_is_refused(live, other):
    run = live("steps=100000", "evaluation.tasks=0", "gateway.host=127.0.0.1")
    joiner = other.join("--credential", str(await invited(run, other)), "--role", "rollout_worker")
    assert joiner.ended() == 1
    assert "agents on this host cannot reach the gateway at http://127.0.0.1" in joiner.output()
    assert f"gateway.host={other.run_address}" in joiner.output()
    run.process.terminate()
    assert await run.ended() != 0


async def test_workers_join_over_an_existing_server(live, other, tmp_path):
    server = await EmbeddedServer.start(tmp_path / "server", token="key", host=other.run_address)
    try:
        run = live("steps=3", f"bus.url=nats://key@{other.run_address}:{server.port}", *NO_WORKERS)
        credential = str(await invited(run, other))
        joiners = [
            other.join("--credential", credential, "--role", role)
            for role in ("inference_worker", "rollout_worker", "reward_worker")
        ]
        async with run.listening():
            assert await run.ended() == 0, run.output() + "".join(joiner.output() for joiner in joiners)
        assert [joiner.ended() for joiner in joiners] == [0, 0, 0]
        assert [event.step for event in run.received(StepCompleted)] == [1, 2, 3]
    finally:
        await server.stop()


async def test_workers_that_cannot_join_are_refused_with_the_cause(live, other, tmp_path):
    run = live("steps=100000", "evaluation.tasks=0")
    credential = await invited(run, other)
    address = f"nats://{other.run_address}:{credential.read_text().split('@')[1].split(':')[1].split(chr(34))[0]}"

    def refused(*words: str, root: Path | None = None) -> str:
        joiner = other.join(*words, root=root)
        assert joiner.ended() == 1, joiner.output()
        return joiner.output()

    assert "refuses this credential: take join.json of this run" in refused(f"{address}/gsm8k-grpo", "--token", "wrong")
    assert f"no bus answers at nats://{other.run_address}:9:" in refused(
        f"nats://{other.run_address}:9/gsm8k-grpo", "--token", "x"
    )
    assert "there is no run 'another'" in refused(f"{address}/another", "--credential", str(credential))
    changed = tmp_path / "changed"
    shutil.copytree(ROOT / "areal_actors", changed / "areal_actors", ignore=shutil.ignore_patterns("__pycache__"))
    with (changed / "areal_actors" / "rollout" / "stack.py").open("a") as file:
        file.write("\n")
    assert "another version of areal-actors" in refused("--credential", str(credential), root=changed)
    run.process.terminate()
    assert await run.ended() != 0
    assert "or run 'gsm8k-grpo' has ended" in refused("--credential", str(credential))


async def test_workers_join_an_encrypted_run_that_they_know_by_its_fingerprint(live, other):
    run = live("steps=3", "bus.tls=true", *NO_WORKERS)
    credential = await invited(run, other)
    given = json.loads(credential.read_text())["url"]
    (login, place), fingerprint = given.removeprefix("tls://").partition("#")[0].split("@"), given.partition("#")[2]
    token = login.partition(":")[2]
    for words, cause in (
        ((f"tls://{place}/gsm8k-grpo#{'0' * 64}", "--token", token), "its certificate has the fingerprint"),
        (
            (f"tls://{place}/gsm8k-grpo", "--token", token),
            "a token does not show whether its server is that of the run",
        ),
        (
            (f"nats://{place}/gsm8k-grpo", "--token", token),
            "encrypts (bus.tls): take its address, tls://, from join.json",
        ),
    ):
        refused = other.join(*words)
        assert refused.ended() == 1
        assert cause in refused.output()
    joiners = [
        other.join("--credential", str(credential), "--role", "inference_worker"),
        other.join(f"tls://{place}/gsm8k-grpo#{fingerprint}", "--token", token, "--role", "rollout_worker"),
        other.join("--credential", str(credential), "--role", "reward_worker"),
    ]
    async with run.listening():
        assert await run.ended() == 0, run.output() + "".join(joiner.output() for joiner in joiners)
    assert [joiner.ended() for joiner in joiners] == [0, 0, 0]
    await assert_exact(run, 3)
    assert f"/gsm8k-grpo#{fingerprint} --credential join.json" in run.output()
    assert not (run.folder / "tls" / "key.pem").exists()


LOOKING = """
import base64
from openai import AsyncOpenAI
PICTURES = {pictures!r}

async def look(task, *, base_url, api_key, http_client=None):
    client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
    url = "data:image/png;base64," + PICTURES[len(task["question"]) % 2]
    parts = [{{"type": "image_url", "image_url": {{"url": url}}}}, {{"type": "text", "text": "Which?"}}]
    answer = await client.chat.completions.create(model="m", messages=[{{"role": "user", "content": parts}}])
    return answer.choices[0].message.content or ""
"""


async def test_the_only_engine_of_a_model_with_vision_is_of_another_host(live, other, tmp_path):
    agent = tmp_path / "looking" / "agent.py"
    agent.parent.mkdir()
    agent.write_text(LOOKING.format(pictures=[base64.b64encode(picture(seed)).decode() for seed in (1, 2)]))
    model = write_vision_model(tmp_path / "model")
    settings = (
        f"model={model}",
        f"task.agent={agent}:look",
        "warm_start.steps=0",
        "evaluation.tasks=0",
        "sampling.max_tokens=8",
    )
    limits = (f"generation.max_model_len={CONTEXT}", f"sampling.top_k={TOP_K}", "trainer.batch_size=2", "steps=2")
    run = live(*settings, *limits, "actors.inference_worker.count=0")
    joiner = other.join("--credential", str(await invited(run, other)), "--role", "inference_worker")
    async with run.listening():
        assert await run.ended() == 0, run.output() + joiner.output()
    assert joiner.ended() == 0, joiner.output()
    await assert_exact(run, 2)
    assert list((run.folder / "images").iterdir())
