"""Around inference servers: a lost one is started again, one that ends takes nothing with it, and what cannot work is
refused before."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from support.live_run import LiveRun
from support.samples import published
from support.tiny_engine import random_qwen

from areal_actors.core.actor_settings import ActorsSettings
from areal_actors.core.errors import EngineError, EngineUnavailable, SetupError
from areal_actors.core.free_ports import find_free_ports
from areal_actors.core.task_settings import TaskSettings
from areal_actors.core.values import SamplingParams, TokenColumns, pack_ids
from areal_actors.display.sentences import plain_line
from areal_actors.generation import inference_worker
from areal_actors.generation.engine import EngineCounters, EnginePlace, TokenChunk
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.generation.named import engine_factory
from areal_actors.generation.servers.server_process import ServerClient, flags, interpreter, message_of
from areal_actors.generation.settings import GenerationSettings, ServerSettings
from areal_actors.messages import EngineLost, EngineStarting, Generate, Generated, Throughput, WeightsLoaded
from areal_actors.recipe.checks import problems
from areal_actors.recipe.recipe import Recipe
from areal_actors.runtime.actor import Tick
from areal_actors.training.algorithms import Grpo
from areal_actors.training.settings import LoraSettings, TrainerSettings
from areal_actors.weights.transfer import checksum, write_weights
from areal_actors.weights.weight_files import checksum_of, stored_tensors

WORKER = "inference_worker-0"
ASKED = Generate(prompt_ids=pack_ids([5, 6]), sampling=SamplingParams(max_tokens=3))


class Serving:
    """An engine whose server can be lost."""

    abilities: frozenset[str] = frozenset()

    def __init__(self, *, loads: int = 1000) -> None:
        self.weight_version = 0
        self.gone, self.closed, self.loads = False, False, loads
        self.counters = EngineCounters()

    async def generate(self, request_id, prompt_ids, sampling, *, stream=False, resumed_tokens=0):
        if self.gone:
            raise EngineUnavailable("the server was killed\nits last line")
        yield TokenChunk(columns=TokenColumns.of([7], [-0.5], [self.weight_version]), finish_reason="stop")

    async def load_weights(self, location, weight_version):
        self.loads -= 1
        if self.loads < 0:
            raise EngineUnavailable("the server does not come up")
        self.weight_version = weight_version

    def phase(self):
        return "loading shard 3 of 8" if self.gone else ""

    def take_counters(self):
        return self.counters

    async def close(self):
        self.closed = True


@pytest.fixture
def engines(monkeypatch):
    monkeypatch.setattr(inference_worker, "RETRY_SECONDS", (0.01, 0.02))
    return []


def worker_of(engines, *loads):
    to_come = [Serving(loads=count) for count in loads] + [Serving() for _ in range(3)]

    def make(folder):
        engines.append(to_come[len(engines)])
        return engines[-1]

    return InferenceWorker(make, name=WORKER, concurrency=8)


async def test_a_lost_server_is_reported_once_and_its_successor_loads_the_same_weights(send, engines):
    worker = worker_of(engines)
    await send(worker, published(4))
    (answer,) = await send(worker, ASKED)
    assert isinstance(answer, Generated)
    engines[0].gone = True
    (lost,) = await send(worker, ASKED)
    assert lost == EngineLost(worker=WORKER, reason="the server was killed\nits last line")
    assert plain_line(lost) == f"inference server of {WORKER} lost: the server was killed"
    assert not worker.serving.is_set()
    assert worker.failures == 0, "a lost server is no failure of the worker"
    (loaded,) = await send(worker, lost)
    assert (loaded.worker, loaded.weight_version) == (WORKER, 4)
    assert engines[0].closed
    assert engines[1].weight_version == 4
    (answer,) = await send(worker, ASKED)
    assert answer.finish_reason == "stop"


async def test_what_the_engine_counted_is_its_throughput(send, engines):
    worker = worker_of(engines)
    await send(worker, published(0))
    assert await send(worker, Tick(), now=100.0) == []
    engines[0].counters = EngineCounters(tokens=7, prefilled_tokens=20, cached_tokens=300, busy_seconds=0.5, running=2)
    (throughput,) = await send(worker, Tick(), now=102.0)
    assert throughput == Throughput(
        actor=WORKER,
        side="generation",
        tokens=7,
        started=100.0,
        seconds=0.5,
        concurrent=2,
        prefilled_tokens=20,
        cached_tokens=300,
    )


async def test_of_many_completions_that_a_server_takes_with_it_one_reports_it(send, engines):
    worker = worker_of(engines)
    await send(worker, published(1))
    engines[0].gone = True
    worker.serving.set()
    engine = worker.engine
    first = await send(worker, ASKED)
    worker.serving.set()
    worker.engine = engine
    assert [len(first), len(await send(worker, ASKED))] == [1, 0]


async def test_weights_that_arrive_for_a_lost_server_start_another_one(send, engines):
    worker = worker_of(engines, 1)
    await send(worker, published(1))
    engines[0].gone = True
    (lost,) = await send(worker, ASKED)
    (loaded,) = await send(worker, published(2))
    assert loaded.weight_version == 2
    (again,) = await send(worker, lost)
    assert isinstance(again, WeightsLoaded), (
        "the gateway dropped the worker when it read of the loss, so the load is reported again"
    )
    assert (again.weight_version, len(engines)) == (2, 2)


async def test_completions_of_a_server_that_is_gone_when_weights_arrive_are_continued_elsewhere(send, engines):
    class Holding(Serving):
        async def generate(self, request_id, prompt_ids, sampling, *, stream=False, resumed_tokens=0):
            while not self.closed:  # noqa: ASYNC110 - as short as possible
                await asyncio.sleep(0)
            raise EngineError("the generation engine is closed")
            yield

    holding = Holding(loads=1)
    worker = InferenceWorker(
        lambda folder: engines.append(holding if not engines else Serving()) or engines[-1], name=WORKER, concurrency=8
    )
    await send(worker, published(1))
    in_flight = [asyncio.create_task(send(worker, ASKED)) for _ in range(3)]
    await asyncio.sleep(0)
    (loaded,) = await send(worker, published(2))
    assert loaded.weight_version == 2
    (lost,) = [event for events in await asyncio.gather(*in_flight) for event in events]
    assert isinstance(lost, EngineLost)
    (again,) = await send(worker, lost)
    assert isinstance(again, WeightsLoaded)


async def test_a_server_that_does_not_come_up_is_tried_again_and_its_third_failure_is_final(send, engines):
    worker = worker_of(engines, 0, 0)
    (loaded,) = await send(worker, published(1))
    assert loaded.weight_version == 1
    assert [engine.closed for engine in engines] == [True, True, False]
    hopeless = InferenceWorker(lambda folder: Serving(loads=0), name=WORKER, concurrency=8)
    with pytest.raises(SetupError, match="3 starts in a row failed: the server does not come up"):
        await send(hopeless, published(1))


async def test_another_worker_s_loss_is_not_this_one_s(send, engines):
    worker = worker_of(engines)
    await send(worker, published(1))
    assert await send(worker, EngineLost(worker="inference_worker-7", reason="killed")) == []
    assert len(engines) == 1


async def test_a_server_that_starts_is_shown_with_its_last_line(send, engines):
    worker = worker_of(engines)
    await send(worker, published(1), now=100.0)
    engines[0].gone = True
    (shown,) = await send(worker, Tick(), now=101.0)
    assert shown == EngineStarting(worker=WORKER, phase="loading shard 3 of 8", seconds=0.0)
    assert await send(worker, Tick(), now=103.0) == []
    (shown,) = await send(worker, Tick(), now=112.0)
    assert shown.seconds == 11.0
    assert worker.status()["engine"] == "loading shard 3 of 8"


async def test_a_server_that_is_not_there_is_unavailable():
    client = ServerClient("SGLang", f"http://127.0.0.1:{find_free_ports()}")
    try:
        with pytest.raises(EngineUnavailable, match=r"SGLang at http://127.0.0.1:\d+ does not answer"):
            await client.get("/health")
        with pytest.raises(EngineUnavailable, match="does not answer"):
            [line async for line in client.lines("/generate", {})]
    finally:
        await client.close()


def test_answers_of_all_servers_have_one_sentence():
    assert message_of({"error": {"message": "too long"}}) == "too long"
    assert message_of({"success": False, "message": "no such file"}) == "no such file"
    assert message_of({"detail": "Not Found"}) == "Not Found"
    assert message_of("plain") == "plain"


def test_options_are_flags():
    assert flags({"tp_size": 2, "enable-metrics": True, "sleep-on-idle": False, "x": None, "stop": ["a", "b"]}) == [
        *("--tp-size", "2"),
        "--enable-metrics",
        *("--stop", "a", "b"),
    ]


# ---------------------------------------------------------------- files and recipes


@pytest.mark.parametrize(
    ("dtype", "shard_bytes"), [(torch.float32, 2**40), (torch.bfloat16, 2**40), (torch.float32, 200_000)]
)
def test_the_checksum_of_files_is_that_of_their_tensors(tmp_path, dtype, shard_bytes):
    model = random_qwen(3).to(dtype)
    location = write_weights(model.state_dict(), tmp_path / "v1", tmp_path, shard_bytes)
    tensors = stored_tensors(location.folder)
    assert checksum_of(tensors) == location.checksum
    assert {tensor.dtype for tensor in tensors.values()} == {str(dtype)}
    assert len({tensor.file for tensor in tensors.values()}) == len(list((tmp_path / "v1").glob("*.safetensors")))
    assert checksum({"a": torch.zeros(2)}) != location.checksum


def recipe(generation: GenerationSettings, **settings) -> Recipe:
    task = TaskSettings(agent="agents/gsm8k.py:Gsm8kAgent", reward="gsm8k", dataset="arithmetic")
    return Recipe(run="r", steps=1, model="embedded", algorithm=Grpo(), task=task, generation=generation, **settings)


@pytest.mark.parametrize(
    ("generation", "settings", "key", "complaint"),
    [
        (
            GenerationSettings(engine="sglang", server=ServerSettings(urls=("10.0.0.7:1",))),
            {},
            "urls",
            "write `http://host:port`",
        ),
        (
            GenerationSettings(engine="vllm", server=ServerSettings(urls=("http://a:1", "http://b:1"))),
            {},
            "urls",
            "write 1, or actors.inference_worker.count = 2",
        ),
        (GenerationSettings(engine="transformers", options={"tp-size": 2}), {}, "options", "has no use for it"),
        (
            GenerationSettings(engine="scripted", server=ServerSettings(python="python3")),
            {},
            "server",
            "has no use for it",
        ),
        (
            GenerationSettings(engine="vllm"),
            {"trainer": TrainerSettings(lora=LoraSettings(rank=600))},
            "rank",
            "up to rank 512",
        ),
    ],
)
def test_settings_that_contradict_the_engine_are_refused_by_name(generation, settings, key, complaint, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent.parent)
    found = [problem for problem in problems(recipe(generation, **settings)) if problem.key[-1] == key]
    assert len(found) == 1
    assert complaint in found[0].complaint


def test_a_server_for_each_worker_is_sound(monkeypatch):
    monkeypatch.chdir(Path(__file__).parent.parent)
    generation = GenerationSettings(engine="sglang", server=ServerSettings(urls=("http://a:1", "https://b:1")))
    actors = ActorsSettings()
    two = msgspec.structs.replace(actors, inference_worker=msgspec.structs.replace(actors.inference_worker, count=2))
    assert problems(recipe(generation, actors=two)) == []


def test_a_missing_environment_is_named_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(
        SetupError, match=r"generation.engine = \"vllm\".*`just environments vllm`.*generation.server.urls"
    ):
        interpreter("vllm", ServerSettings(), tmp_path)
    with pytest.raises(SetupError, match=r"generation.server.python: there is no program"):
        interpreter("vllm", ServerSettings(python="nowhere/python"), tmp_path)
    assert interpreter("vllm", ServerSettings(python=sys.executable), tmp_path) == sys.executable


async def test_a_run_without_the_environment_is_refused_before_it_starts(tmp_path):
    run = LiveRun(tmp_path / "runs", "generation.engine=vllm", "generation.server.python=nowhere/python")
    assert await run.ended() != 0
    assert "generation.server.python: there is no program" in run.output()
    assert not list((tmp_path / "runs").glob("*/nats"))


def test_a_maker_gets_its_place_if_it_has_a_parameter_for_it(tmp_path):
    (tmp_path / "mine.py").write_text(
        "class Engine:\n    def __init__(self, folder, settings, place):\n        raise ValueError(place.worker)\n"
    )
    make = engine_factory(
        GenerationSettings(engine="mine.py:Engine"), tmp_path, EnginePlace(worker="inference_worker-3")
    )
    with pytest.raises(ValueError, match="inference_worker-3"):
        make("model")
