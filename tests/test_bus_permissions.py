"""Every user of a run's bus may do what its actors declare and nothing else: tried on a real server."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import psutil
import pytest
from support import permission_matrix as matrix

from areal_actors.core.module_command import module_command
from areal_actors.core.values import SamplingParams
from areal_actors.folder.run_folder import BusAddresses, RunFolder, ServerAddress
from areal_actors.messages import (
    KINDS,
    Generate,
    Generated,
    Heartbeat,
    RunStopping,
)
from areal_actors.recipe.recipe import redact_recipe
from areal_actors.runtime.actor import Actor
from areal_actors.supervision.nats_server import ACTORS, users_of
from areal_bus.base import Stamp
from areal_bus.errors import NoResponder, PermissionDenied, ServerUnavailable
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer
from areal_bus.users import ACCOUNT, MONITOR, BusUsers, Permissions, user_of, without_credentials

RUN = "gsm8k-grpo"
AT_ONCE = 120.0
"""Seconds; a wait that is not ended takes 300."""


def stamp() -> Stamp:
    """A fresh one."""
    return Stamp(id=os.urandom(8).hex(), sender="test", time=time.time())


@asynccontextmanager
async def run_server(folder: Path) -> AsyncIterator[tuple[EmbeddedServer, BusUsers, NatsBus]]:
    """The server of a run, its users, and the bus of its owner."""
    users = users_of(matrix.recipe())
    server = await EmbeddedServer.start(folder, users=users)
    bus = await NatsBus.connect(server.url, RUN, name="owner", kinds=KINDS)
    try:
        yield server, users, bus
    finally:
        await bus.close()
        await server.stop()


# ---------------------------------------------------------------- the matrix


@pytest.fixture(scope="module")
def denied(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """By user, what a real server refuses."""
    return asyncio.run(matrix.tried_on_a_server(tmp_path_factory.mktemp("matrix")))


def test_the_documentation_shows_what_a_real_server_allows(denied: dict[str, set[str]]) -> None:
    assert matrix.documented() == matrix.table(denied), (
        "PYTHONPATH=.:tests python tests/support/permission_matrix.py writes the table anew"
    )


def test_a_process_may_publish_what_its_actors_declare_and_nothing_else(denied: dict[str, set[str]]) -> None:
    of_kind = {attempt.subject: attempt.name for attempt in matrix.attempts(RUN) if attempt.verb == "publish"}
    declared = {
        "rollout_worker": {
            "ScoreEpisode",
            "EpisodeScored",
            "EpisodeAbandoned",
            "OpenSession",
            "DescribeSession",
            "AgentReturned",
            "EventLoopBlocked",
        },
        "reward_worker": {"EpisodeScored", "EpisodeAbandoned", "DescribeSession"},
        "inference_worker": {
            "EngineInexact",
            "EngineLoad",
            "EngineLost",
            "EngineStarting",
            "Throughput",
            "WeightTransferRefused",
            "WeightsLoaded",
        },
    }
    always = {"ActorStarted", "ActorStopped", "Heartbeat", "SnapshotRefused", "SnapshotStored"}
    for user, kinds in declared.items():
        for kind in KINDS:
            if name := of_kind.get(f"areal.{RUN}.{kind.subject}"):
                may = kind.__name__ in kinds | always
                assert (name not in denied[user]) == may, f"{user}: {name}"


def test_only_the_owner_touches_streams_and_no_client_reads_anothers_inbox(denied: dict[str, set[str]]) -> None:
    everybody = set(denied) - {"supervisor"}
    for name in (
        "purge the log",
        "delete the log",
        "delete an event",
        "create a stream",
        "change the log's settings",
        "list streams",
    ):
        assert {user for user in denied if name not in denied[user]} == {"supervisor"}, name
    assert all("read every inbox" in denied[user] for user in everybody)
    assert all(f"read the inbox of `{matrix.STRANGER}`" in denied[user] for user in everybody - {matrix.STRANGER})
    assert all("another run's subjects" in denied[user] for user in denied)


def test_a_monitor_publishes_nothing_but_the_question_for_events(denied: dict[str, set[str]]) -> None:
    published = {attempt.name for attempt in matrix.attempts(RUN) if attempt.verb == "publish"}
    assert published - denied[MONITOR] == {"read the log by place"}


def test_every_actor_there_is_can_be_given_permissions() -> None:
    def below(kind: type[Actor]) -> Iterator[type[Actor]]:
        for one in kind.__subclasses__():
            yield one
            yield from below(one)

    ours = {
        kind for kind in below(Actor) if kind.__module__.startswith("areal_actors.")
    }  # without those of other tests
    there = {kind.kind() for kind in ours if not ours.intersection(kind.__subclasses__())}
    assert there == set(ACTORS)


# ---------------------------------------------------------------- what a denial looks like


async def test_a_denied_event_is_an_error_at_once_that_names_user_and_subject(tmp_path: Path) -> None:
    async with run_server(tmp_path) as (server, users, _):
        bus = await NatsBus.connect(
            users.url("reward_worker", server.address), RUN, name="reward_worker", retry_for_seconds=30
        )
        began = time.monotonic()
        with pytest.raises(
            PermissionDenied, match=r"does not let user 'reward_worker' publish to areal.gsm8k-grpo.run.stopping"
        ):
            await bus.publish(RunStopping(reason="because"), stamp())
        with pytest.raises(PermissionDenied, match=r"tokens\.generate"):
            await bus.request(Generate(prompt_ids=b"", sampling=SamplingParams()), stamp(), timeout=300)
        assert time.monotonic() - began < AT_ONCE
        await bus.close()


async def test_denied_telemetry_is_an_error_from_the_second_on(tmp_path: Path) -> None:
    async with run_server(tmp_path) as (server, users, _):
        bus = await NatsBus.connect(users.url(MONITOR, server.address), RUN, name="monitor")
        beat = Heartbeat(
            actor="x", process="x", pid=1, handling={}, waits=(), status={}, cpu_seconds=0.0, peak_memory_bytes=0
        )
        await bus.publish(beat, stamp())
        await bus.barrier()
        with pytest.raises(PermissionDenied, match="user 'monitor'"):
            await bus.publish(beat, stamp())
        await bus.close()


async def test_a_denied_subscription_is_an_error_at_once(tmp_path: Path) -> None:
    async with run_server(tmp_path) as (server, users, _):
        bus = await NatsBus.connect(users.url("reward_worker", server.address), RUN, name="reward_worker")
        with pytest.raises(PermissionDenied, match="subscribe to areal"):
            async with bus.telemetry(Heartbeat):
                pass
        await bus.close()


async def test_a_wrong_password_and_no_password_are_refused_and_not_shown(tmp_path: Path) -> None:
    async with run_server(tmp_path) as (server, users, _):
        wrong = users.url("trainer", server.address).replace(users.passwords["trainer"], users.passwords["gateway"])
        for url in (wrong, server.address):
            with pytest.raises(ServerUnavailable, match="refused the credentials of 'intruder'") as raised:
                await NatsBus.connect(url, RUN, name="intruder")
            assert users.passwords["gateway"] not in str(raised.value)


def test_a_user_without_permissions_may_do_nothing() -> None:
    assert Permissions(publish=(), subscribe=()).config() == {"publish": {"deny": [">"]}, "subscribe": {"deny": [">"]}}


# ---------------------------------------------------------------- questions and answers


async def test_an_answer_reaches_only_its_asker(tmp_path: Path) -> None:
    async with run_server(tmp_path) as (server, users, owner):
        engine = await NatsBus.connect(users.url("inference_worker", server.address), RUN, name="inference_worker")
        gateway = await NatsBus.connect(users.url("gateway", server.address), RUN, name="gateway")

        async def serve() -> None:
            async with engine.requests(Generate, group="inference_worker", address="inference_worker-0") as inbox:
                async for delivery in inbox:
                    await engine.reply(delivery.reply_to, Generated(finish_reason="stop"), stamp())

        serving = asyncio.create_task(serve())
        try:
            async with asyncio.timeout(300):
                for asker in (gateway, owner):
                    question = Generate(prompt_ids=b"", sampling=SamplingParams())
                    while True:
                        with suppress(NoResponder):
                            await asker.request(question, stamp(), timeout=300)
                            break
                        await asyncio.sleep(0.05)
                    assert (
                        await asker.request(question, stamp(), timeout=300, to="inference_worker-0")
                    ).finish_reason == "stop"
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        await engine.close()
        await gateway.close()


# ---------------------------------------------------------------- what a monitor can do all the same


# ---------------------------------------------------------------- where the passwords are


async def test_a_process_of_the_run_has_its_password_from_its_standard_input_only(tmp_path: Path) -> None:
    plan = msgspec.structs.replace(matrix.recipe(), folder=str(tmp_path))
    folder = RunFolder(tmp_path / RUN)
    folder.create(plan)
    async with run_server(folder.nats) as (server, users, owner):
        monitor = ServerAddress(url=users.url(MONITOR, server.address), run=RUN, pid=os.getpid())
        folder.announce(monitor)
        addresses = BusAddresses(
            owner=ServerAddress(url=server.url, run=RUN, pid=os.getpid()),
            monitor=monitor,
            processes={name: users.url(name, server.address) for name in users.members()},
        )
        child = await asyncio.create_subprocess_exec(
            *module_command("areal_actors.processes.process", str(folder.path), "reward_worker"),
            stdin=asyncio.subprocess.PIPE,
        )
        try:
            assert child.stdin is not None
            child.stdin.write(msgspec.json.encode(addresses.of("reward_worker")) + b"\n")
            async with owner.telemetry(Heartbeat) as inbox:
                async with asyncio.timeout(300):
                    beat = (await anext(inbox)).message
            assert isinstance(beat, Heartbeat)
            assert beat.process == "reward_worker"
            process = psutil.Process(child.pid)
            shown_to_others = " ".join([*process.cmdline(), *process.environ().values()])
            files = b"".join(path.read_bytes() for path in folder.path.rglob("*") if path.is_file())
            secrets = {name: password for name, password in users.passwords.items() if name != MONITOR}
            assert [
                name for name, password in secrets.items() if password in shown_to_others or password.encode() in files
            ] == []
            for name in ("monitor.json", "bus.json", "recipe.json", "secret", "admin_key"):
                assert (folder.path / name).stat().st_mode & 0o077 == 0, name
        finally:
            child.kill()
            await child.wait()


def test_the_log_holds_no_key_and_no_password_of_the_recipe() -> None:
    plan = matrix.recipe()
    plan = msgspec.structs.replace(
        plan,
        bus=msgspec.structs.replace(plan.bus, url="nats://me:hidden@there:4222,nats://tokenhidden@here:4222"),
        gateway=msgspec.structs.replace(plan.gateway, admin_key="hidden"),
    )
    assert "hidden" not in json.dumps(redact_recipe(plan))
    assert redact_recipe(plan)["bus"]["url"] == "nats://there:4222,nats://here:4222"


def test_a_url_with_a_token_names_no_user() -> None:
    assert [user_of(url) for url in ("nats://h:1", "nats://token@h:1", "nats://me:p%40@h:1")] == ["", "", "me"]
    assert without_credentials("nats://me:p%40@h:1") == "nats://h:1"


# ---------------------------------------------------------------- stores


async def test_a_store_is_opened_by_its_owner_alone_when_the_run_is_over(tmp_path: Path) -> None:
    async with run_server(tmp_path) as (_, _, owner):
        await owner.publish(RunStopping(reason="once"), stamp())
    server = await EmbeddedServer.start(tmp_path)
    bus = await NatsBus.connect(server.url, RUN, name="reader", token=server.token)
    assert len([envelope async for envelope in bus.log()]) == 1
    await bus.close()
    await server.stop()
    assert not (tmp_path / "nats-server.conf").exists(), "it held a password"


async def test_a_store_of_a_server_without_users_becomes_the_runs(tmp_path: Path) -> None:
    server = await EmbeddedServer.start(tmp_path)
    bus = await NatsBus.connect(server.url, RUN, name="owner", token=server.token, kinds=KINDS)
    await bus.publish(RunStopping(reason="once"), stamp())
    await bus.close()
    await server.stop()
    async with run_server(tmp_path) as (_, _, owner):
        assert len([envelope async for envelope in owner.log()]) == 1
    assert (tmp_path / "store" / "jetstream" / ACCOUNT).is_dir()
