"""Policies that share an inference server: its address, its room for adapters, and what is refused by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from support.genuine_servers import DIALECTS
from support.samples import published
from support.tiny_engine import random_qwen, save
from test_inference_server import ASKED, WORKER, Serving
from test_policies import recipe_with
from test_server_adapters import random_adapter

from areal_actors.core.errors import EngineError, EngineUnavailable, RecipeError, SetupError
from areal_actors.core.values import WeightsLocation
from areal_actors.folder.run_folder import RunFolder
from areal_actors.generation import inference_worker
from areal_actors.generation.engine import AdapterRoom, EnginePlace, SharedServer
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.generation.servers.server_process import ServerClient
from areal_actors.generation.servers.shared_server import SharedServerClient, adapters_at, write_address
from areal_actors.generation.servers.weight_channels import WeightChannel
from areal_actors.generation.settings import GenerationSettings
from areal_actors.messages import EngineLost
from areal_actors.processes.engine_place import engine_place
from areal_actors.recipe.policies import policy_recipe
from areal_actors.runtime.actor import Tick

SHARED = ("generation.engine=sglang", "trainer.lora.rank=8", "policies.worker.engine=shared")


# ---------------------------------------------------------------- the address


@pytest.fixture
def model(tmp_path: Path) -> str:
    return save(random_qwen(0), tmp_path / "model")


def client_of(file: Path, model: str) -> SharedServerClient:
    return SharedServerClient("SGLang", file, model)


def test_a_policy_finds_the_address_that_the_owner_of_the_server_has_written(tmp_path: Path, model: str) -> None:
    file = tmp_path / "servers" / "inference_worker-0.json"
    client = client_of(file, model)
    with pytest.raises(EngineUnavailable, match="has not been started"):
        client.find_address()
    write_address(file, "http://127.0.0.1:1", model, os.getpid())
    client.find_address()
    assert client.url == "http://127.0.0.1:1"
    write_address(file, "http://127.0.0.1:2", model, os.getpid())
    client.find_address()
    assert client.url == "http://127.0.0.1:2"


def test_the_address_of_a_server_that_has_ended_is_not_used(tmp_path: Path, model: str) -> None:
    """Another program may have its port by then."""
    ending = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    write_address(tmp_path / "address.json", "http://127.0.0.1:1", model, ending.pid)
    client = client_of(tmp_path / "address.json", model)
    client.find_address()
    ending.communicate()
    with pytest.raises(EngineUnavailable, match="has ended, and has not been started again"):
        client.find_address()


def test_a_server_with_a_copy_of_the_model_is_taken_and_one_with_another_is_refused(tmp_path: Path, model: str) -> None:
    copy = str(shutil.copytree(model, tmp_path / "copy"))
    other = save(random_qwen(1), tmp_path / "other")
    write_address(tmp_path / "address.json", "http://127.0.0.1:1", model, os.getpid())
    client_of(tmp_path / "address.json", copy).find_address()
    with pytest.raises(SetupError, match=r"which differs from .*other: give the policy the model of the run, or write"):
        client_of(tmp_path / "address.json", other).find_address()


class Models(ServerClient):
    """Lists these adapters."""

    def __init__(self, *names: str, status: int = 200) -> None:
        super().__init__("SGLang", "http://127.0.0.1:9")
        self.answer = status, {"data": [{"id": name} for name in names]}

    async def get(self, path: str, seconds: float = 60.0) -> tuple[int, object]:
        assert path == "/v1/models"
        return self.answer


async def test_only_the_adapters_of_a_policy_are_its_own() -> None:
    server = Models("model", "v1.a.1", "policy-worker.v1.a.1", "policy-worker-2.v1.a.1", "policy-v1.v1.a.1")
    for policy, names in (("worker", ["policy-worker.v1.a.1"]), ("v1", ["policy-v1.v1.a.1"])):
        assert await adapters_at(server, SharedServer(Path(), AdapterRoom(), policy).prefix) == names
    with pytest.raises(EngineUnavailable, match="lists no adapters"):
        await adapters_at(Models(status=500), "policy-")


# ---------------------------------------------------------------- room, and weights


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sglang", ["--max-lora-rank", "16", "--max-loras-per-batch", "4", "--max-loaded-loras", "6"]),
        ("vllm", ["--max-lora-rank", "16", "--max-loras", "3", "--max-cpu-loras", "6"]),
    ],
)
def test_a_server_has_room_for_an_adapter_of_each_policy(name: str, words: list[str], tmp_path: Path) -> None:
    recipe = recipe_with(
        *SHARED,
        "policies.worker.settings.trainer.lora.rank=16",
        "policies.past.kind=past",
        "policies.past.engine=shared",
    )
    place = engine_place(recipe, RunFolder(tmp_path), WORKER)
    assert (place.adapter_rank, place.shared.room) == (8, AdapterRoom(16, (), 3))
    settings = GenerationSettings(engine=name, device="cpu")
    command = DIALECTS[name]().command("python", "/model", settings, place, 1)[0]
    stated = dict(pairwise(command))
    assert [word for flag in words[::2] for word in (flag, stated[flag])] == words


def test_the_worker_of_a_policy_looks_for_the_server_of_the_same_number_in_the_run_that_calls_it(
    tmp_path: Path,
) -> None:
    recipe = policy_recipe(recipe_with(*SHARED, "policies.worker.settings.trainer.lora.rank=4"), "worker")
    own = engine_place(recipe, RunFolder(tmp_path / "main" / "policies" / "main-worker"), "inference_worker-3")
    assert own.shared.address == tmp_path / "main" / "servers" / "inference_worker-3.json"
    assert own.is_guest
    assert own.adapter_rank == 4
    main = engine_place(recipe_with(*SHARED), RunFolder(tmp_path / "main"), "inference_worker-3")
    assert main.shared.address == own.shared.address
    assert not main.is_guest


def test_layers_that_adapters_of_a_server_change_are_those_of_all_policies(tmp_path: Path) -> None:
    named = (*SHARED, 'trainer.lora.targets=["q_proj"]')
    for change, targets in (('["v_proj"]', ("q_proj", "v_proj")), ("[]", ())):
        recipe = recipe_with(*named, f"policies.worker.settings.trainer.lora.targets={change}")
        assert engine_place(recipe, RunFolder(tmp_path), WORKER).shared.room.targets == targets


async def test_a_shared_server_keeps_its_model(tmp_path: Path, model: str) -> None:
    other = save(random_qwen(1), tmp_path / "other")
    place = EnginePlace(shared=SharedServer(tmp_path / "address.json", AdapterRoom(8, (), 2)), adapter_rank=8)
    channel = WeightChannel(DIALECTS["sglang"](), Models(), model, GenerationSettings(engine="sglang"), place)
    with pytest.raises(EngineError, match="are a whole model, but policies share the server"):
        await channel.prepare(WeightsLocation(folder=other, checksum="0", model=model))
    base = WeightsLocation(folder=model, checksum="0", model=model)
    assert await channel.load(base, 0, await channel.prepare(base), "") == ""


async def test_an_adapter_of_the_run_is_taken_by_a_policy_with_a_copy_of_its_model(tmp_path: Path, model: str) -> None:
    """As by one of past versions."""
    copy, other = str(shutil.copytree(model, tmp_path / "copy")), save(random_qwen(0), tmp_path / "other")
    write_address(tmp_path / "address.json", "http://127.0.0.1:1", model, os.getpid())
    client = client_of(tmp_path / "address.json", copy)
    client.find_address()
    shared = SharedServer(tmp_path / "address.json", AdapterRoom(4, (), 2), "past")
    place = EnginePlace(shared=shared, adapter_rank=4)
    channel = WeightChannel(DIALECTS["sglang"](), client, copy, GenerationSettings(engine="sglang"), place)
    for base in (model, copy):
        await channel.prepare(random_adapter(tmp_path / f"of-{Path(base).name}", base, 1)[1])
    with pytest.raises(EngineError, match=r"belongs to .*other, but this server has"):
        await channel.prepare(random_adapter(tmp_path / "of-other", other, 1)[1])


class OwnedServing(Serving):
    """An engine that owns the server of several policies."""

    def describe_end(self) -> str:
        return "SGLang ended with status 137" if self.gone else ""


async def test_an_owner_without_a_request_of_its_own_notices_the_end_of_a_shared_server(send, monkeypatch) -> None:
    monkeypatch.setattr(inference_worker, "RETRY_SECONDS", (0.01, 0.02))
    engines = [OwnedServing(), OwnedServing()]
    made = list(engines)
    worker = InferenceWorker(lambda _: made.pop(0), name=WORKER, concurrency=8)
    await send(worker, published(4))
    assert await send(worker, Tick(), now=1.0) == []
    engines[0].gone = True
    (lost,) = await send(worker, Tick(), now=2.0)
    assert lost == EngineLost(worker=WORKER, reason="SGLang ended with status 137")
    assert await send(worker, Tick(), now=3.0) == []
    (loaded,) = await send(worker, lost)
    assert loaded.weight_version == 4
    (answer,) = await send(worker, ASKED)
    assert answer.finish_reason == "stop"


# ---------------------------------------------------------------- recipes


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (["generation.engine=transformers"], '`policies.worker.engine`: found "shared", but generation.engine ='),
        (["trainer.lora.published=merged"], '`policies.worker.engine`: found "shared", but for the recipe\'s own'),
        (["policies.worker.settings.trainer.lora.published=merged"], "`policies.worker.settings.trainer.lora.publi"),
        (["policies.worker.settings.trainer.lora.quantize_base=torchao"], "each trainer rounds a base of its own"),
        (["policies.worker.model=other"], "`policies.worker.model`: found"),
        (["policies.worker.settings.generation.max_model_len=64"], "`policies.worker.settings.generation`"),
        (["policies.worker.settings.actors.inference_worker.count=2"], "inference_worker.count`: found 2, but the run"),
        (["policies.worker.kind=remote", "policies.worker.url=http://a/v1"], "`policies.worker.engine`"),
        (["generation.options.max-lora-rank=4"], "`generation.options.max-lora-rank`: found 4"),
        (["generation.options.max_loras_per_batch=2"], "adapters of 2 policies need 3"),
        (["autoscale.enabled=true", "autoscale.inference_worker.max=2"], "autoscale.inference_worker changes"),
        (["bus.host=127.0.0.1"], "with bus.host servers may be on hosts"),
        (["generation.sleep=on", "staleness_gate.max_staleness=0"], "other policies sample while this one takes a"),
        (
            ["generation.engine=vllm", "policies.worker.settings.trainer.lora.rank=600"],
            "`policies.worker.settings.trainer.lora.rank`: found 600, but vLLM takes adapters up to rank 512",
        ),
    ],
)
def test_what_does_not_fit_on_a_shared_server_is_refused_by_name(settings: list[str], text: str) -> None:
    with pytest.raises(RecipeError) as refused:
        recipe_with(*SHARED, *settings)
    assert text in str(refused.value)


def test_a_policy_without_an_adapter_is_refused_by_name() -> None:
    with pytest.raises(RecipeError, match=r"found none, but a shared server keeps its model and is given adapters"):
        recipe_with("generation.engine=sglang", "policies.worker.engine=shared")


@pytest.mark.parametrize("kind", ["trained", "frozen", "past"])
def test_policies_with_processes_may_share_a_server(kind: str) -> None:
    assert recipe_with(*SHARED, f"policies.worker.kind={kind}").has_shared_engine()
