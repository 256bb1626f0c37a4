"""Gateways that a run leaves to other hosts: recipe, admission, permissions, files and ends; test_joined_gateway.py has
real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from support.authority import Authority
from support.clock import jumping_time
from support.manager_harness import Manager
from support.samples import work
from support.tiny_vision import picture

from areal_actors.cli import main
from areal_actors.core.devices import detect_cuda
from areal_actors.core.errors import ImageLost, RecipeError
from areal_actors.core.objects import MODEL, RemoteObjects
from areal_actors.core.watchdog_settings import WatchdogSettings
from areal_actors.folder.run_folder import RunFolder
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.gateway.worker_pool import WorkerPool
from areal_actors.hosts.client_recipe import recipe_here
from areal_actors.hosts.gateway_shares import GatewayShares
from areal_actors.hosts.object_access import access_of
from areal_actors.hosts.object_server import ObjectServer
from areal_actors.hosts.portable_recipe import PortableRecipe
from areal_actors.messages import (
    EpisodeAbandoned,
    GatewayKeys,
    Generate,
    Heartbeat,
    OpenSession,
    SessionOpened,
)
from areal_actors.processes.process import actors_of
from areal_actors.processes.remote_environment import JoinedWorker
from areal_actors.processes.remote_gateway import ChatModelPuller, encrypts_here, gateway_recipe
from areal_actors.recipe.load import load
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.supervision import gateways_of_others, joined_kind
from areal_actors.supervision.nats_server import JOINED, joined_permissions, users_of
from areal_actors.supervision.watchdog import Watchdog
from areal_actors.vision.files import ImageFolder
from areal_actors.vision.pulled import SentImages

RUN = "gsm8k-grpo"
MAIN = Path(__file__).parent.parent / "recipes" / "gsm8k_grpo.toml"
WORKER = "session_manager-10000"
BUS = "nats://areal-join:pw@127.0.0.1:4000"


def recipe(*settings: str) -> Recipe:
    given = ["profile=embedded", "bus.host=10.0.0.1", "gateway.joined=1", "actors.session_manager.count=2", *settings]
    return load([MAIN], given, detect_cuda()).recipe


# ---------------------------------------------------------------- recipes


def test_the_last_gateways_are_left_to_other_hosts() -> None:
    assert gateways_of_others(recipe()) == {1: "gateway-1"}
    assert gateways_of_others(recipe("actors.session_manager.count=1")) == {0: "gateway"}
    assert gateways_of_others(recipe("gateway.joined=0")) == {}


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (("gateway.joined=3",), "found 3, but actors.session_manager.count is 2; write at most that, or raise it"),
        (
            ("bus.host=",),
            "found 1, but no other host can join this run; set bus.host to an address that they reach, or remove it",
        ),
        (
            ("actors.session_manager.count=1", "actors.session_manager.process=control"),
            'which cannot be on another host; write `process = "gateway"`',
        ),
    ],
)
def test_gateways_that_no_other_host_can_serve_are_refused(settings: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe(*settings)
    assert complaint in str(caught.value)


def test_a_gateway_listens_at_the_address_of_its_host_with_the_keys_of_the_run() -> None:
    made = recipe(
        "gateway.host=10.0.0.1",
        "gateway.port=21000",
        "gateway.advertise=agents.example",
        "gateway.admin_key=a-long-admin-key-of-it",
    )
    keys = GatewayKeys(actor="session_manager-1", secret=b"secret", admin_key=made.gateway.admin_key)

    def here(*settings: str) -> Recipe:
        return gateway_recipe(
            recipe_here(PortableRecipe(made, MAIN.parent.parent).recipe, settings), keys, settings, BUS
        )

    assert here().gateway.with_number(1).url(here().gateway.with_number(1).port) == "http://127.0.0.1:21001"
    assert here().gateway.admin_key == "a-long-admin-key-of-it"
    named = here("gateway.host=0.0.0.0", "gateway.port=8080", "gateway.advertise=two.example").gateway
    assert named.with_number(1).url(8081) == "http://two.example:8081"
    assert here("gateway.host=0.0.0.0").gateway.url(21001) == "http://127.0.0.1:21001"
    with pytest.raises(RecipeError, match="this setting is that of the run"):
        here("gateway.tool_format=hermes")


def test_a_gateway_of_another_host_has_a_certificate_of_that_host_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Authority().issue(tmp_path, "two.example")
    run = recipe("gateway.host=10.0.0.1", "gateway.certificate=/run/a.pem", "gateway.certificate_key=/run/a.key")
    keys = GatewayKeys(actor="session_manager-1", secret=b"secret", admin_key="a-long-admin-key-of-it")

    def here(*settings: str) -> GatewaySettings:
        return gateway_recipe(
            recipe_here(PortableRecipe(run, MAIN.parent.parent).recipe, settings), keys, settings, BUS
        ).gateway

    assert (here().certificate, here().certificate_key) == ("", "")
    files = ("gateway.certificate=host.pem", "gateway.certificate_key=host.key", "gateway.advertise=two.example")
    assert encrypts_here(files)
    found = here(*files)  # its process works in another folder
    assert (found.certificate, found.certificate_key) == (str(tmp_path / "host.pem"), str(tmp_path / "host.key"))
    assert found.url(8080) == "https://two.example:8080"
    assert encrypts_here(["gateway.advertise=https://proxy:443"])
    assert not encrypts_here(["gateway.port=8080"])


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            ("gateway.certificate=host.pem",),
            "gateway.certificate: certificate and certificate_key belong together; name both files",
        ),
        (("gateway.certificate=host.pem", "gateway.certificate_key=host.key"), "add --set gateway.advertise=NAME"),
        (
            ("gateway.certificate=host.pem", "gateway.certificate_key=none.key", "gateway.advertise=a"),
            "gateway.certificate_key: {here}/none.key cannot be read (No such file or directory)",
        ),
    ],
)
def test_a_certificate_of_another_host_that_cannot_be_used_is_refused_before_it_joins(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    settings: tuple[str, ...],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Authority().issue(tmp_path, "two.example")
    words = [word for setting in settings for word in ("--set", setting)]
    assert (
        main(["join", "nats://127.0.0.1:9/gsm8k-grpo", "--token", "t", "--role", "gateway", "--wait", "600", *words])
        == 1
    )
    assert complaint.format(here=tmp_path) in capsys.readouterr().err


def test_a_chat_template_goes_with_the_recipe_and_a_certificate_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("template.jinja", "cert.pem", "key.pem"):
        Path(name).write_text("{{ messages }}")
    gateway = msgspec.structs.replace(
        recipe().gateway, chat_template="template.jinja", certificate="cert.pem", certificate_key="key.pem"
    )
    portable = PortableRecipe(msgspec.structs.replace(recipe(), gateway=gateway), tmp_path)
    assert portable.recipe["gateway"]["chat_template"] == "template.jinja"
    assert portable.files["template.jinja"] == tmp_path / "template.jinja"
    assert not [name for name in portable.files if name.endswith(".pem")]


# ---------------------------------------------------------------- admission and permissions


def test_one_process_serves_a_gateway_at_a_time() -> None:
    shares = GatewayShares({1: "gateway-1", 2: "gateway-2"})
    assert [shares.assign(worker) for worker in ("a", "b", "c")] == ["session_manager-1", "session_manager-2", ""]
    assert (shares.actor_of("b"), shares.actor_of("c"), shares.release("c")) == ("session_manager-2", "", None)
    assert shares.release("b") == 2
    assert shares.assign("d") == "session_manager-2"
    assert shares.take_over(2) == "", "another host serves it again"
    assert shares.release("a") == 1
    assert (shares.take_over(1), shares.take_over(1)) == ("gateway-1", "")
    assert shares.assign("e") == "", "the run's own host serves it"


def test_a_joined_gateway_may_do_what_its_actor_declares_under_the_name_of_the_gateway() -> None:
    made = recipe()
    rights = joined_permissions(made, WORKER, "session_manager-1")
    assert joined_kind(WORKER) == "session_manager"
    assert f"areal.{RUN}._.session_manager-1.{OpenSession.subject}" in rights.subscribe
    assert not [subject for subject in rights.subscribe if "_.session_manager-0" in subject or f"_.{WORKER}" in subject]
    assert f"_INBOX.{JOINED}{WORKER}.>" in rights.subscribe
    assert [subject for subject in rights.publish if subject.startswith("$KV") and "session_manager" in subject] == [
        f"$KV.areal_{RUN}._position.session_manager-1"
    ]
    assert f"areal.{RUN}._.*.{Generate.subject}" in rights.publish
    assert f"areal.{RUN}.{EpisodeAbandoned.subject}" in rights.publish
    assert "_INBOX.joined.*.answers.>" in users_of(made).permissions["inference_worker"].publish
    assert (
        "_INBOX.joined.*.answers.>" not in users_of(recipe("gateway.joined=0")).permissions["inference_worker"].publish
    )


def test_the_process_of_a_joined_gateway_serves_the_actor_of_its_share(tmp_path: Path) -> None:
    worker = JoinedWorker(objects="http://127.0.0.1:1", token="t", share="", weights="", drain_seconds=1.0)
    folder = RunFolder(tmp_path)
    msgspec.structs.replace(worker, actor="session_manager-1").keep(folder, WORKER)
    worker.keep(folder, "rollout_worker-10001")
    assert actors_of(recipe(), folder, WORKER) == {"session_manager-1": "session_manager"}
    assert actors_of(recipe(), folder, "rollout_worker-10001") == {"rollout_worker-10001": "rollout_worker"}
    assert actors_of(recipe(), folder, "gateway-1") == {"session_manager-1": "session_manager"}


def test_a_gateway_that_no_host_serves_is_named_as_the_cause() -> None:
    dog = Watchdog(WatchdogSettings(stall_seconds=30.0), 0.0, gateways=["session_manager-1"])
    sentence, _ = dog.find_stall(40.0) or ("", 0)
    assert (
        "no gateway has joined: start one with `areal-actors join --role gateway`, with this start's join.json"
        in sentence
    )
    beat = Heartbeat(
        actor="session_manager-1",
        process=WORKER,
        pid=1,
        handling={},
        waits=(),
        status={},
        cpu_seconds=0.0,
        peak_memory_bytes=0,
    )
    dog.receive(beat, 41.0)
    assert "gateway" not in (dog.find_stall(80.0) or ("", 0))[0]
    two = Watchdog(WatchdogSettings(stall_seconds=30.0), 0.0, gateways=["session_manager-1", "session_manager-2"])
    assert (
        "no gateway has joined, which serves session_manager-1, session_manager-2: start"
        in (two.find_stall(40.0) or ("", 0))[0]
    )


# ---------------------------------------------------------------- files


@pytest.fixture
def objects(tmp_path: Path) -> RemoteObjects:
    (tmp_path / "run" / "model").mkdir(parents=True)
    for name in ("tokenizer.json", "config.json", "model.safetensors"):
        (tmp_path / "run" / "model" / name).write_text("{}")
    server = ObjectServer("run", tmp_path / "run", {})
    server.start("127.0.0.1", 0)
    server.access["token"] = access_of("session_manager")
    server.model = tmp_path / "run" / "model"
    return RemoteObjects(f"http://127.0.0.1:{server.port}", "token", retry_for_seconds=0)


def test_a_gateway_pulls_its_tokenizer_without_the_weights(objects: RemoteObjects, tmp_path: Path) -> None:
    puller = ChatModelPuller(objects, tmp_path / "here")
    (tmp_path / "here").mkdir()
    assert {file.name for file in puller(MODEL).iterdir()} == {"tokenizer.json", "config.json"}
    assert puller(MODEL) == puller("another name")


def test_images_that_a_gateway_stores_are_in_the_run_s_folder_too(objects: RemoteObjects, tmp_path: Path) -> None:
    digest = SentImages(tmp_path / "here", objects).store(picture(1))
    assert (
        ImageFolder.of_run(tmp_path / "run").load(digest) == picture(1) == ImageFolder(tmp_path / "here").load(digest)
    )
    with pytest.raises(OSError, match="status 400"):
        objects.write_image("0" * 32, picture(2))
    with pytest.raises(ImageLost):
        ImageFolder.of_run(tmp_path / "run").load("0" * 32)


# ---------------------------------------------------------------- orderly ends and outages


async def test_a_gateway_that_leaves_opens_no_more_sessions_and_waits_for_the_others(send) -> None:
    with jumping_time():
        manager = await Manager(send).ready()
        await manager.open(work("0.0"))
        leaving = asyncio.create_task(manager.actor.finish())
        await asyncio.sleep(60.0)
        assert not leaving.done()
        assert await manager(OpenSession(work=work("1.0"), lease_seconds=10.0)) == [SessionOpened(leaving=True)]
        await manager(EpisodeAbandoned(work=work("0.0"), reason="agent", detail="it raised"))
        await leaving


def test_after_an_outage_calls_in_flight_continue_on_any_worker() -> None:
    pool = WorkerPool()
    pool.record_load("a", 3)
    with pool.count_call("a") as gone:
        pool.interrupt_all()
        assert gone.over
    assert (pool.versions, pool.in_flight) == ({"a": 3}, {"a": 0})


# ---------------------------------------------------------------- losses
