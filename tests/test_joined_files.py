"""Workers of another host get code, model, weights and large bodies over HTTP, a recipe, a user of the bus, and a
lease."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from areal_actors.cli.commands.join import ROLES
from areal_actors.core.devices import detect_cuda
from areal_actors.core.errors import EngineError, SetupError, WeightsSuperseded
from areal_actors.core.objects import CODE, MODEL, WEIGHTS, FileAccess, RemoteObjects
from areal_actors.core.snapshots import Restored, Snapshot, SnapshotStore, restore
from areal_actors.core.values import WeightsLocation
from areal_actors.core.watchdog_settings import WatchdogSettings
from areal_actors.folder.run_folder import RunFolder, ServerAddress
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.hosts.join_address import join_address
from areal_actors.hosts.object_access import access_of
from areal_actors.hosts.object_server import ObjectServer
from areal_actors.messages import KINDS, ActorFailed, Generate, JoinRun, WeightsPublished
from areal_actors.processes.remote_environment import JoinedWorker
from areal_actors.processes.remote_gateway import GatewaySnapshots
from areal_actors.recipe.load import load
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.run_actors import COUNTED, SEVERAL
from areal_actors.recipe.supervision import joined_kind
from areal_actors.supervision.liveness import Leases
from areal_actors.supervision.nats_server import JOINED, JOINER, joined_permissions, users_of
from areal_actors.weights.folders import named_path, prune, version_folder
from areal_actors.weights.pulled import WeightsPuller
from areal_actors.weights.transfer import write_weights
from areal_bus.base import Stamp
from areal_bus.errors import ClaimLost
from areal_bus.memory import MemoryBus
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer
from areal_bus.subjects import inbox_of

RUN = "gsm8k-grpo"
RECIPES = Path(__file__).parent.parent / "recipes"
TOKEN = "token"


def recipe(*settings: str, file: Path = RECIPES / "gsm8k_grpo.toml") -> Recipe:
    return load([file], ["profile=embedded", "bus.host=127.0.0.1", *settings], detect_cuda()).recipe


class Served:
    """Files of a run in a folder, over HTTP."""

    def __init__(self, folder: Path, weights_folder: str = "") -> None:
        self.code = folder / "agent.py"
        self.code.write_text("print('agent')\n")
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text("{}")
        self.weights = named_path(weights_folder, RUN, folder) if weights_folder else folder / "weights"
        self.server = ObjectServer(RUN, folder, {"agents/agent.py": self.code}, weights_folder)
        self.server.start("127.0.0.1", 0)
        subjects = frozenset({ActorFailed.subject})
        self.server.access[TOKEN] = FileAccess(
            reads=subjects, writes=subjects, folders=frozenset({CODE, MODEL, WEIGHTS})
        )
        self.objects = RemoteObjects(f"http://127.0.0.1:{self.server.port}", TOKEN, retry_for_seconds=0)

    def publish(self, version: int) -> WeightsLocation:
        """Write a version, as the trainer does, and keep the newest two."""
        prune(self.weights, 1)
        location = write_weights(
            {"a": torch.full((300, 40), float(version))}, version_folder(self.weights, version), self.model
        )
        self.server.weights_published(self.model)
        return location

    def puller(self, root: Path, share: str = "") -> WeightsPuller:
        """One of another host, which keeps its versions in `root`."""
        return WeightsPuller(self.objects, root / "weights", root / "model", share)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    (tmp_path / "run").mkdir()
    return Served(tmp_path / "run")


def test_a_folder_arrives_whole_and_only_with_the_token(served: Served, tmp_path: Path) -> None:
    served.objects.pull(CODE, tmp_path / "code")
    assert (tmp_path / "code" / "agents" / "agent.py").read_text() == served.code.read_text()
    stranger = RemoteObjects(served.objects.url, "another", retry_for_seconds=0)
    for attempt in (
        lambda: stranger.pull(CODE, tmp_path / "stolen"),
        lambda: stranger.read("x"),
        lambda: stranger.write("x", b""),
    ):
        with pytest.raises(PermissionError):
            attempt()
    for folder in ("secrets", "../run"):
        with pytest.raises(PermissionError):
            served.objects.pull(folder, tmp_path / "nothing")
    for folder in ("weights-7", "weights-x", f"weights-{'9' * 5000}"):
        with pytest.raises(FileNotFoundError):
            served.objects.pull(folder, tmp_path / "nothing")


async def test_each_version_is_pulled_once_for_all_workers_of_a_host(served: Served, tmp_path: Path) -> None:
    first = served.publish(1)
    pullers = [served.puller(tmp_path / "host") for _ in range(3)]
    found = await asyncio.gather(*(puller(first, 1) for puller in pullers))
    assert {one.folder for one in found} == {str(tmp_path / "host" / "weights" / "v1")}
    assert {one.model for one in found} == {str(tmp_path / "host" / "model")}
    assert (tmp_path / "host" / "model" / "config.json").read_text() == "{}"
    inode = Path(found[0].folder).stat().st_ino
    second = served.publish(2)
    assert (await pullers[0](first, 1)).folder == found[0].folder
    assert Path(found[0].folder).stat().st_ino == inode
    await pullers[0](second, 2)
    await pullers[1](served.publish(3), 3)
    assert sorted(path.name for path in (tmp_path / "host" / "weights").glob("v*")) == ["v2", "v3"]


async def test_a_version_that_was_removed_meanwhile_is_superseded_and_a_damaged_one_an_error(
    served: Served, tmp_path: Path
) -> None:
    old = served.publish(1)
    for version in (2, 3):
        newest = served.publish(version)
    with pytest.raises(WeightsSuperseded, match="version 1 was replaced"):
        await served.puller(tmp_path / "host")(old, 1)
    wrong = msgspec.structs.replace(newest, checksum="0" * 32)
    with pytest.raises(EngineError, match=f"arrived with checksum {newest.checksum}, expected 0000"):
        await served.puller(tmp_path / "host")(wrong, 3)
    assert (await served.puller(tmp_path / "host")(newest, 3)).checksum == newest.checksum


async def test_versions_in_the_folder_that_the_recipe_names_are_pulled_too(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    served = Served(tmp_path / "run", str(tmp_path / "named"))
    found = await served.puller(tmp_path / "host")(served.publish(1), 1)
    assert found.folder == str(tmp_path / "host" / "weights" / "v1")


def test_the_roles_that_may_join_are_those_of_which_a_run_may_have_several() -> None:
    assert set(ROLES) == SEVERAL == COUNTED - {"session_manager"}


async def test_a_host_that_has_the_trainers_folder_itself_pulls_no_weights(served: Served, tmp_path: Path) -> None:
    location = served.publish(1)
    found = await served.puller(tmp_path / "host", share=served.server.share)(location, 1)
    assert found == msgspec.structs.replace(location, model=str(tmp_path / "host" / "model"))
    another = await served.puller(tmp_path / "host", share="another run's")(location, 1)
    assert another.folder == str(tmp_path / "host" / "weights" / "v1")


def test_a_model_that_is_still_being_made_is_waited_for(served: Served, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        pulling = threads.submit(served.objects.pull, MODEL, tmp_path / "model")
        time.sleep(0.1)
        assert not pulling.done()
        served.server.weights_published(served.model)
        pulling.result(timeout=60)
    assert (tmp_path / "model" / "config.json").exists()


async def test_large_bodies_reach_a_worker_of_another_host_and_come_from_it(served: Served, tmp_path: Path) -> None:
    server = await EmbeddedServer.start(tmp_path / "nats")
    blobs = served.server.run_folder / "blobs"
    here = await NatsBus.connect(server.url, "test", name="here", token=server.token, kinds=KINDS, blobs=blobs)
    there = await NatsBus.connect(server.url, "test", name="there", token=server.token, blobs=served.objects)
    try:
        for number, (sender, reader) in enumerate([(here, there), (there, here)], start=1):
            failed = ActorFailed(actor="a", process="a", reason=str(number) * 400_000)
            sequence = await sender.publish(failed, Stamp(id=str(number), sender="a", time=0.0))
            assert (await reader.read([sequence]))[0].open(ActorFailed) == failed
        assert len(list(blobs.iterdir())) == 2
        for file in blobs.iterdir():
            file.unlink()
        with pytest.raises(ClaimLost, match="http://127"):
            await there.read([1])
    finally:
        for bus in (here, there):
            await bus.close()
        await server.stop()


class Engine:
    """An engine that only notes what it loads."""

    abilities: frozenset[str] = frozenset()
    weight_version = 0

    def __init__(self) -> None:
        self.loaded: list[WeightsLocation] = []

    async def load_weights(self, location: WeightsLocation, weight_version: int) -> None:
        self.loaded.append(location)
        self.weight_version = weight_version


async def test_an_inference_worker_of_another_host_loads_what_its_host_has_and_skips_what_is_gone(
    send: Any, tmp_path: Path
) -> None:
    here = WeightsLocation(folder=str(tmp_path / "v2"), checksum="c", model=str(tmp_path / "model"))
    engine = Engine()

    async def locate(location: WeightsLocation, weight_version: int) -> WeightsLocation:
        assert location.folder == "/of/the/trainer"
        if weight_version == 1:
            raise WeightsSuperseded("weight version 1 was replaced")
        return here

    worker = InferenceWorker(lambda folder: engine, name="inference_worker-10000", concurrency=1, locate=locate)  # type: ignore[arg-type, return-value]
    published = WeightsPublished(
        weight_version=1, location=WeightsLocation(folder="/of/the/trainer", checksum="c", model="/of/the/model")
    )
    assert await send(worker, published) == []
    assert worker.loaded_weights() == []
    (loaded,) = await send(worker, msgspec.structs.replace(published, weight_version=2))
    assert (loaded.worker, loaded.weight_version, engine.loaded) == ("inference_worker-10000", 2, [here])
    assert worker.loaded_weights() == [loaded]


# ---------------------------------------------------------------- the recipe


# ---------------------------------------------------------------- who may do what


async def test_a_joined_worker_may_do_what_its_actor_declares(tmp_path: Path) -> None:
    made = recipe()
    users = users_of(made)
    assert JOINER in users.members()
    assert not [name for name in users.members() if name.startswith(JOINED)]
    worker = "inference_worker-10000"
    assert joined_kind(worker) == "inference_worker"
    assert joined_kind("inference_worker-9") == joined_kind("trainer-10000") == ""
    rights = joined_permissions(made, worker)
    assert f"areal.{RUN}._.{worker}.{Generate.subject}" in rights.subscribe
    assert not [subject for subject in rights.subscribe if "_.inference_worker-0" in subject or "_.*" in subject]
    assert not [subject for subject in rights.publish if "steps.completed" in subject or "episode.run" in subject]
    gateway = users.permissions[made.actors.session_manager.process]
    assert "_INBOX.joined.*.answers.>" in gateway.publish
    assert set(users_of(recipe("bus.host=")).members()) == set(users.members()) - {JOINER}


def test_the_address_of_a_run_and_its_credential(tmp_path: Path) -> None:
    file = tmp_path / "join.json"
    file.write_bytes(msgspec.json.encode(ServerAddress(url="nats://areal-join:pw@10.0.0.1:4000", run=RUN, pid=3)))
    assert join_address("", credential=file) == ServerAddress(url="nats://areal-join:pw@10.0.0.1:4000", run=RUN, pid=0)
    assert join_address("nats://host:9/other", credential=file).url == "nats://areal-join:pw@host:9"
    assert join_address("nats://host:9/other", token="t").url == "nats://areal-join:t@host:9"
    assert join_address("nats://me:own@host:9/other", token="t").url == "nats://me:own@host:9"
    for url, credential in (("nats://host:9", None), ("host:9/run", None), ("", None), ("", tmp_path / "none.json")):
        with pytest.raises(SetupError):
            join_address(url, credential=credential)


# ---------------------------------------------------------------- leases


def test_a_lease_lasts_while_its_host_renews_it_and_from_the_first_heartbeat_on_while_its_actor_beats() -> None:
    leases = Leases(WatchdogSettings(heartbeat_seconds=10.0, start_seconds=5.0))
    leases.admit("starts", 0.0)
    leases.admit("serves", 0.0)
    leases.beat("serves", 5.0)
    for now in (8.0, 16.0):
        leases.renew("starts", now)
        leases.renew("serves", now)
    assert leases.overdue(15.0) == []
    assert leases.overdue(16.0) == [("serves", "no heartbeat for 11 s (watchdog.heartbeat_seconds = 10)")]
    leases.excuse(16.0)
    assert leases.overdue(20.0) == []
    leases.held.pop("serves")
    leases.beat("serves", 20.0)
    leases.renew("stranger", 20.0)
    assert set(leases.held) == {"starts"}
    for now in range(20, 60, 5):
        leases.renew("starts", float(now))
    assert leases.overdue(56.0) == [("starts", "starts did not start within 50 s")]


class Kept:
    """A fold with a number."""

    state_type = int
    state_version = 1

    def __init__(self, state: int = 0) -> None:
        self.state = state

    def snapshot(self) -> int:
        return self.state

    def restore(self, state: int) -> None:
        self.state = state


async def test_the_snapshots_of_a_gateway_are_kept_in_the_folder_of_the_run_for_its_successor_only(
    served: Served,
) -> None:
    bus = MemoryBus(RUN)
    lost = WeightsPublished(weight_version=0, location=served.publish(0))
    place = await bus.publish(lost, Stamp(id="first", sender="test", time=0.0))
    store = GatewaySnapshots(served.objects)
    taken = Snapshot.of("session_manager-1", Kept(7), place, "first")
    for attempt in (lambda: store.write(taken), lambda: store.sequences("session_manager-1")):
        with pytest.raises(OSError, match="does not serve session_manager-1"):
            attempt()
    served.server.access[TOKEN] = access_of("session_manager", "session_manager-1")
    store.write(taken)
    of_the_run = SnapshotStore(served.server.run_folder / "snapshots")
    assert of_the_run.sequences("session_manager-1") == store.sequences("session_manager-1") == [place]
    for successor in (store, of_the_run):
        fold = Kept()
        assert await restore(bus, successor, "session_manager-1", fold) == Restored(after=place)
        assert fold.state == 7
    with pytest.raises(OSError, match="this is a snapshot of batcher-0"):
        served.objects.write_snapshot(
            "session_manager-1", msgspec.msgpack.encode(Snapshot.of("batcher-0", Kept(), place, "first"))
        )
    with pytest.raises(OSError, match="this is no snapshot"):
        served.objects.write_snapshot("session_manager-1", b"nonsense")
    of_the_run.path("session_manager-1", place).write_bytes(b"damaged")
    refused = await restore(bus, store, "session_manager-1", Kept())
    assert (refused.after, "cannot be read" in refused.refused[0]) == (0, True)


def test_the_credential_of_other_hosts_and_the_secret_that_a_gateway_gets_are_readable_by_their_user_only(
    tmp_path: Path,
) -> None:
    previous = os.umask(0)
    try:
        folder = RunFolder(tmp_path)
        invitation = folder.invite(ServerAddress(url="nats://areal-join:password@10.0.0.1:4222", run=RUN, pid=0))
        folder.keep_secret(b"secret")
        JoinedWorker(objects="http://10.0.0.1:1", token=TOKEN, share="", weights="", drain_seconds=1).keep(
            folder, "session_manager-10000"
        )
    finally:
        os.umask(previous)
    for file in (invitation, tmp_path / "secret", tmp_path / "session_manager-10000.joined.json"):
        assert file.stat().st_mode & 0o777 == 0o600, file


def test_only_a_gateway_is_given_the_secret_of_the_run_and_no_worker_reads_the_answer_to_another() -> None:
    shared = recipe("gateway.joined=1")
    for role in ("rollout_worker", "inference_worker", "reward_worker", "session_manager"):
        worker = f"{role}-10000"
        permissions = joined_permissions(shared, worker, "session_manager-0" if role == "session_manager" else "")
        subjects = permissions.subscribe
        assert [
            subject for subject in subjects if subject.startswith(inbox_of(JOINER)) or subject in (">", "_INBOX.>")
        ] == []
        assert f"areal.{RUN}.{JoinRun.subject}" not in permissions.publish
