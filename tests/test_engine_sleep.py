"""Engines release their memory during an optimizer step, and go on with the next weights as after any others."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import torch
from support.fake_engine import FixedTextEngine
from support.genuine_servers import DIALECTS
from support.samples import published
from support.tiny_engine import (
    CONTEXT,
    SETTINGS,
    complete,
    difference,
    plain_logprobs,
    prompt_of,
    random_qwen,
    running,
    save,
)
from test_engine_mismatch import alarm

from areal_actors.core.errors import EngineError, EngineUnavailable
from areal_actors.core.task_settings import TaskSettings
from areal_actors.core.values import SamplingParams
from areal_actors.embedded.released_weights import ReleasedWeights
from areal_actors.generation.engine import EnginePlace
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.generation.servers.server_process import ServerClient
from areal_actors.generation.settings import GenerationSettings
from areal_actors.messages import (
    EngineSlept,
    MemoryReleased,
    ReleaseMemory,
    StepCompleted,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.recipe.checks import problems
from areal_actors.recipe.recipe import Recipe
from areal_actors.staleness.ledger import StalenessGateConfig
from areal_actors.training.algorithms import Grpo
from areal_actors.training.trainer_sleep import EngineSleep
from areal_actors.weights.transfer import check_fit, write_weights
from areal_bus.errors import NoReply, NoResponder

WORKER = "inference_worker-0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(random_qwen(0), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def new_weights(tmp_path_factory, folder):
    return write_weights(random_qwen(1).state_dict(), tmp_path_factory.mktemp("weights") / "v1", folder)


# ---------------------------------------------------------------- the embedded engine


async def test_completions_in_flight_and_new_ones_wait_for_the_next_weights_and_every_token_is_exact(
    folder, new_weights
):
    models = {0: random_qwen(0), 7: random_qwen(1)}
    prompts = [prompt_of(4 + 6 * index) for index in range(6)]
    async with running(folder) as engine:
        sampling = SamplingParams(max_tokens=48)
        streams = [engine.generate(str(index), prompt, sampling, stream=True) for index, prompt in enumerate(prompts)]
        columns = [(await anext(stream)).columns for stream in streams]
        assert await engine.release_memory() > 0
        assert await engine.release_memory() == 0, "it sleeps already"
        late = asyncio.create_task(complete(engine, prompt_of(9), sampling))
        engine.take_counters()
        await asyncio.sleep(0.2)
        assert engine.take_counters().tokens == 0
        await streams.pop().aclose()  # its client leaves meanwhile
        await engine.load_weights(new_weights, 7)
        for place, stream in enumerate(streams):
            async for chunk in stream:
                columns[place] = columns[place].append(chunk.columns)
        assert difference(models[7], prompt_of(9), (await late).columns, 1.0) < 1e-5
    assert any(len(column.versions) == 2 for column in columns[:-1])
    for prompt, column in zip(prompts[:-1], columns[:-1], strict=True):
        before = column.versions_array() == 0
        expected = np.where(
            before, plain_logprobs(models[0], prompt, column, 1.0), plain_logprobs(models[7], prompt, column, 1.0)
        )
        assert np.abs(expected - column.logprobs_array()).max() < 1e-5


def write_all(kv_cache):
    """Memory that was never written takes no room."""
    with torch.inference_mode():
        for pair in kv_cache._layers:
            for storage in pair:
                storage.fill_(1)


async def memory_while_awake_and_asleep(folder, new_weights):
    slots, process = 4096, psutil.Process()  # storages above 32 MiB: the C library keeps smaller ones
    async with running(folder, msgspec.structs.replace(SETTINGS, max_num_seqs=slots)) as engine:
        write_all(engine._loop._decoder.kv_cache)
        awake = process.memory_info().rss
        released = await engine.release_memory()
        asleep = process.memory_info().rss
        assert released == 2 * 2 * slots * 2 * CONTEXT * 16 * 4, (
            "layers, keys and values, slots, heads, positions, head size, float32"
        )
        await engine.load_weights(new_weights, 1)
        completion = await complete(engine, prompt_of(9), SamplingParams(max_tokens=8))
        assert difference(random_qwen(1), prompt_of(9), completion.columns, 1.0) < 1e-5
        return awake, asleep, released


def in_an_event_loop(function, *arguments):
    return asyncio.run(function(*arguments))


@pytest.mark.long
def test_the_process_has_less_memory_while_its_engine_sleeps(folder, new_weights):
    """In a process of its own: in one that allocated much before, storages may come from memory that the C library
    keeps."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        awake, asleep, released = fresh.submit(
            in_an_event_loop, memory_while_awake_and_asleep, folder, new_weights
        ).result(timeout=300)
    assert awake - asleep > 0.9 * released


async def test_weights_that_do_not_fit_are_refused_and_it_sleeps_on_until_others_come(folder, new_weights, tmp_path):
    wrong = write_weights({"model.norm.weight": torch.zeros(64)}, tmp_path / "v1", folder)
    async with running(folder) as engine:
        await engine.release_memory()
        with pytest.raises(EngineError, match="missing"):
            await engine.load_weights(wrong, 1)
        assert engine.weight_version == 0
        await engine.load_weights(new_weights, 2)
        assert (await complete(engine, prompt_of(5), SamplingParams(max_tokens=3))).columns.versions_array().tolist()[
            0
        ] == 2


async def test_a_sleeping_engine_can_be_closed_and_then_releases_nothing_more(folder):
    async with running(folder) as engine:
        await engine.release_memory()
        waiting = asyncio.create_task(complete(engine, prompt_of(5), SamplingParams(max_tokens=8)))
        await asyncio.sleep(0)
    with pytest.raises(EngineError, match="closed"):
        await waiting
    with pytest.raises(EngineError, match="closed"):
        await engine.release_memory()


def test_released_weights_are_no_memory_until_they_are_again_what_they_were():
    model = random_qwen(3)
    ids = torch.arange(20)[None]
    before, names = model(ids).logits, model.state_dict()
    view = model.model.layers[0].self_attn.q_proj.weight[3:5]
    held = view.clone()
    released = ReleasedWeights(model.parameters())
    assert released.bytes == sum(parameter.nbytes for parameter in model.parameters()), "the tied head counts once"
    assert {parameter.untyped_storage().nbytes() for parameter in model.parameters()} == {0}
    with pytest.raises(EngineError, match=r"missing: .*norm"):
        check_fit(names, {name: tensor for name, tensor in names.items() if "norm" not in name}, "a folder")
    check_fit(names, {name: tensor for name, tensor in names.items() if name != "lm_head.weight"}, "a folder")
    released.restore()
    assert torch.equal(view, held)
    assert torch.equal(model(ids).logits, before)


# ---------------------------------------------------------------- the worker


class Sleeper(FixedTextEngine):
    """Counts its calls, and fails as it is made to."""

    def __init__(self, error=None):
        super().__init__()
        self.error, self.calls, self.closed = error, [], False

    async def release_memory(self):
        if self.error is not None:
            raise self.error
        self.calls.append("release")
        return 2**20

    async def load_weights(self, location, weight_version):
        self.calls.append(weight_version)
        await super().load_weights(location, weight_version)

    async def close(self):
        self.closed = True


def worker_with(*engines):
    to_come = list(engines)
    return InferenceWorker(lambda folder: to_come.pop(0), name=WORKER, concurrency=8)


async def test_a_worker_releases_the_memory_of_its_engine_until_it_has_the_next_weights(send):
    engine = Sleeper()
    worker = worker_with(engine)
    assert await send(worker, ReleaseMemory(weight_version=0)) == [MemoryReleased()], "there is no engine yet"
    await send(worker, published(0))
    assert await send(worker, ReleaseMemory(weight_version=3)) == [MemoryReleased()], (
        "other weights: the request is an old one"
    )
    assert await send(worker, ReleaseMemory(weight_version=0)) == [MemoryReleased(released_bytes=2**20)]
    assert worker.status() == {"weight_version": 0, "engine": "asleep"}
    (loaded,) = await send(worker, published(1))
    assert isinstance(loaded, WeightsLoaded)
    assert worker.status() == {"weight_version": 1}
    assert engine.calls == [0, "release", 1]


async def test_an_engine_that_is_recycled_while_it_sleeps_is_made_anew_with_the_next_weights(send):
    first, second = Sleeper(), Sleeper()
    worker = worker_with(first, second)
    await send(worker, published(0), ReleaseMemory(weight_version=0))
    assert await send(worker, alarm(WORKER)) == []
    assert first.closed
    assert second.calls == [], "its memory is the trainer's now"
    assert len(await send(worker, published(1))) == 1
    assert second.calls == [1]


@pytest.mark.parametrize(
    ("engine", "answer"),
    [
        (Sleeper(EngineUnavailable("gone")), MemoryReleased()),
        (Sleeper(EngineError("the server refused")), MemoryReleased(error="the server refused")),
        (
            FixedTextEngine(),
            MemoryReleased(
                error='FixedTextEngine has no `release_memory`; implement it, or write generation.sleep = "off"'
            ),
        ),
    ],
)
async def test_what_an_engine_cannot_release_is_the_answer(send, engine, answer):
    worker = worker_with(engine)
    assert (await send(worker, published(0), ReleaseMemory(weight_version=0)))[-1] == answer


# ---------------------------------------------------------------- the trainer


class Answers:
    """The context of a trainer whose requests get these answers, or errors, by worker."""

    def __init__(self, **answers):
        self.answers = answers

    async def ask(self, request, *, timeout, to=""):
        assert (request, timeout) == (ReleaseMemory(weight_version=4), 30.0)
        if isinstance(answer := self.answers[to], Exception):
            raise answer
        return answer


async def slept(**answers):
    return [
        event async for event in EngineSleep(list(answers), 30.0, time.monotonic).before_step(4, Answers(**answers))
    ]


async def test_a_step_begins_when_every_worker_has_released_its_memory_or_is_gone():
    events = await slept(a=MemoryReleased(released_bytes=5), b=NoResponder("gone"), c=MemoryReleased())
    assert [(event.worker, event.step, event.released_bytes) for event in events] == [("a", 4, 5), ("c", 4, 0)]
    assert all(event.seconds >= 0 for event in events)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            NoReply("30 s"),
            (
                "a has not released its memory for step 4 within watchdog.load_seconds = 30; raise it, or write"
                " generation.sleep"
            ),
        ),
        (MemoryReleased(error="the server refused"), "a holds its memory during step 4: the server refused"),
    ],
)
async def test_a_step_does_not_begin_while_a_worker_holds_its_memory(answer, message):
    with pytest.raises(EngineError, match=message):
        await slept(a=answer, b=MemoryReleased())


@pytest.mark.long
async def test_a_run_whose_engines_sleep_takes_the_same_steps(live):
    settings = ("steps=2", "staleness_gate.max_staleness=0", "evaluation.baseline=none", "evaluation.tasks=0")
    logs = []
    for sleep in ("on", "off"):
        run = live(*settings, f"generation.sleep={sleep}")
        assert await run.ended() == 0
        logs.append([message for _, message in await run.log()])
    on, off = logs
    slept = [message for message in on if isinstance(message, EngineSlept | StepCompleted)]
    assert [type(message) for message in slept] == [EngineSlept, StepCompleted] * 2
    assert all(message.released_bytes > 0 for message in slept if isinstance(message, EngineSlept))
    assert not [message for message in off if isinstance(message, EngineSlept)]
    weights = [[message.location.checksum for message in log if isinstance(message, WeightsPublished)] for log in logs]
    assert len(weights[0]) == 3
    assert weights[0] == weights[1]


# ---------------------------------------------------------------- servers


class Ordered(ServerClient):
    """Notes what a server is ordered to do; refuses one path."""

    def __init__(self, refused=""):
        super().__init__("server", "http://127.0.0.1:1")
        self.refusal_error, self.orders = refused, []

    async def post(self, path, body, seconds=None):
        self.orders.append((path, body))
        return (500, "no") if path.startswith(self.refusal_error or "-") else (200, None)


TAGS = {"tags": ["kv_cache", "weights"]}
RELEASES = {
    ("sglang", True): [("/flush_cache?timeout=60", {}), ("/release_memory_occupation", TAGS)],
    ("sglang", False): [("/flush_cache?timeout=60", {}), ("/release_memory_occupation", TAGS)],
    ("vllm", True): [("/sleep?level=1&mode=abort", {})],
    ("vllm", False): [("/sleep?level=2&mode=abort", {})],
}
WAKES = {"sglang": ("/resume_memory_occupation", TAGS), "vllm": ("/wake_up", {})}


@pytest.mark.parametrize(("name", "keeps"), RELEASES)
async def test_a_server_is_ordered_to_release_and_to_allocate_its_memory(name, keeps):
    dialect, server = DIALECTS[name](), Ordered()
    await dialect.release(server, 5, keeps_weights=keeps)
    await dialect.wake(server, 5)
    assert server.orders == [*RELEASES[name, keeps], WAKES[name]]


@pytest.mark.parametrize("name", DIALECTS)
async def test_a_server_that_refuses_is_an_error_with_the_setting_to_change_and_one_that_does_not_wake_is_unavailable(
    name,
):
    dialect = DIALECTS[name]()
    with pytest.raises(EngineError, match=r'did not release its memory \(500\): no; write generation.sleep = "off"'):
        await dialect.release(Ordered(RELEASES[name, False][-1][0]), 5, keeps_weights=False)
    with pytest.raises(EngineUnavailable, match=r"did not allocate its memory again \(500\): no"):
        await dialect.wake(Ordered(WAKES[name][0]), 5)


@pytest.mark.parametrize(("name", "flag"), [("sglang", "--enable-memory-saver"), ("vllm", "--enable-sleep-mode")])
def test_a_server_on_a_gpu_is_started_with_the_flag_for_it(name, flag):
    def command(sleep, rank=0):
        settings = GenerationSettings(engine=name, device="cuda", sleep=sleep)
        return DIALECTS[name]().command("python", "/model", settings, EnginePlace(adapter_rank=rank), 1)[0]

    assert flag in command("on")
    assert flag not in command("off")
    assert ("--enable-weights-cpu-backup" in command("on", rank=8)) == (name == "sglang")


# ---------------------------------------------------------------- the recipe


@pytest.mark.parametrize(
    ("engine", "staleness", "complaint"),
    [
        ("transformers", 2, 'write staleness_gate.max_staleness = 0, or "off"'),
        ("scripted", 0, 'generation.engine = "scripted" holds no memory to release'),
        ("transformers", 0, ""),
    ],
)
def test_a_recipe_in_which_engines_cannot_sleep_is_refused(engine, staleness, complaint, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent.parent)
    task = TaskSettings(agent="agents/gsm8k.py:Gsm8kAgent", reward="gsm8k", dataset="arithmetic")
    recipe = Recipe(
        run="r",
        steps=1,
        model="embedded",
        algorithm=Grpo(),
        task=task,
        generation=GenerationSettings(engine=engine, sleep="on"),
        staleness_gate=StalenessGateConfig(max_staleness=staleness),
    )
    found = [problem.complaint for problem in problems(recipe) if problem.key == ("generation", "sleep")]
    assert len(found) == bool(complaint)
    assert all(complaint in each for each in found)
