"""Genuine SGLang and vLLM servers keep the contract of generation engines, and sample from exactly the weights that
they were given."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from support.genuine_server_engines import calls_grammar, served, serving
from support.genuine_servers import DIALECTS, PROMPT, ROOT, Genuine, settings_of, started, until_it_runs
from support.recorded_server import RecordedServer
from support.server_processes import signal_all
from support.tiny_engine import CONTEXT, VOCABULARY, random_qwen, save

from areal_actors.contracts.engine import CASES, EngineHarness, chunks_of, joined
from areal_actors.core.errors import EngineError, EngineUnavailable, RequestError, SetupError
from areal_actors.core.values import Constraint, SamplingParams, TokenColumns
from areal_actors.generation.engine import EnginePlace
from areal_actors.generation.named import engine_factory
from areal_actors.generation.servers.http_engine import HttpEngine
from areal_actors.generation.servers.server_process import ServerClient
from areal_actors.generation.settings import GenerationSettings
from areal_actors.weights.transfer import write_weights

SEEDED = {"a_seed_gives_the_same_tokens_streamed_or_whole", "a_completion_cut_anywhere_continues_as_if_it_had_not_been"}
"""Cases that need equal tokens for equal seeds, which not every server promises; greedy ones below replace them."""
PAUSED = {"closing_the_engine_fails_what_runs"}
"""A case in which a completion must not end by itself: the one below pauses the server."""

GENUINE = [pytest.param(name, marks=pytest.mark.long) for name in DIALECTS]
RECORDED = [f"recorded {name}" for name in DIALECTS]
RECORDINGS = Path(__file__).with_name("recordings")
RECORDS = bool(os.environ.get("AREAL_RECORD_SERVERS"))

pytestmark = pytest.mark.timeout(600)
genuine_only = pytest.mark.parametrize("genuine", GENUINE, indirect=True)
"""For tests in which time, files or processes of the server matter."""


@pytest.fixture(scope="module", params=[*GENUINE, *RECORDED])
def genuine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Genuine]:
    name = request.param.split()[-1]
    models = {version: random_qwen(version, head_dim=32) for version in (0, 1, 2)}
    folder = save(models[0], tmp_path_factory.mktemp("model"))
    weights = tmp_path_factory.mktemp("weights")
    versions = {
        number: write_weights(model.state_dict(), weights / f"v{number}", folder) for number, model in models.items()
    }
    with ExitStack() as stack:
        if request.param in RECORDED:
            process, url = None, served(stack, RecordedServer(RECORDINGS / f"{name}.json.gz"))
        else:
            process, url = started(stack, name, folder, tmp_path_factory.mktemp("logs"), EnginePlace())
            if RECORDS:
                url = served(stack, RecordedServer(RECORDINGS / f"{name}.json.gz", url))
        yield Genuine(name, settings_of(name, urls=(url,)), folder, versions, models, process)


@pytest.fixture
def harness(genuine: Genuine) -> EngineHarness:
    return EngineHarness(genuine.make, VOCABULARY, CONTEXT, genuine.versions[1])


@genuine_only
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.__name__ not in SEEDED | PAUSED], ids=lambda case: case.__name__
)
async def test_a_server_keeps_the_contract(harness: EngineHarness, case) -> None:
    if RECORDS:
        pytest.skip("what stands before the server to record it does not stream")
    await case(harness)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=24),
        SamplingParams(max_tokens=24, top_p=0.4),
        SamplingParams(max_tokens=24, top_k=4),
        SamplingParams(max_tokens=24, min_p=0.1),
        SamplingParams(max_tokens=24, temperature=0),
        SamplingParams(max_tokens=24, presence_penalty=1.5),
        SamplingParams(max_tokens=24, frequency_penalty=1.5),
        SamplingParams(max_tokens=24, logit_bias={70: 9.0}),
        SamplingParams(max_tokens=24, constraint=Constraint(kind="regex", text="[a-d]{6}")),
        SamplingParams(max_tokens=24, constraint=Constraint(kind="json_schema", text='{"enum": ["yes", "no"]}')),
        SamplingParams(max_tokens=24, constraint=calls_grammar()),
    ],
    ids=lambda sampling: ",".join(
        name for name in sampling.__struct_fields__ if getattr(sampling, name) != getattr(SamplingParams(), name)
    ),
)
@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_are_those_of_the_plain_model_whatever_alters_the_choice(
    genuine: Genuine, sampling, stream
) -> None:
    async with serving(genuine) as engine:
        columns = joined(await chunks_of(engine, PROMPT, sampling, stream=stream))
        genuine.assert_exact(columns)
        text = engine.tokenizer.decode(columns.ids_array().tolist(), skip_special=False)
        if sampling.constraint is not None:
            assert re.fullmatch(r'"?yes"?|"?no"?|[a-d]{6}|<mark>[a-d]{3}\[end\]', text.removesuffix("<end>")), text
        if sampling.logit_bias:
            assert 70 in columns.ids_array()


@pytest.mark.parametrize("genuine", [GENUINE[0], RECORDED[0]], indirect=True)  # vLLM's is started for one temperature
async def test_at_the_temperature_of_the_recipe_log_probabilities_are_scaled_by_it(genuine: Genuine) -> None:
    async with serving(genuine) as engine:
        columns = joined(await chunks_of(engine, PROMPT, SamplingParams(max_tokens=24, temperature=0.5)))
        genuine.assert_exact(columns, temperature=0.5)
        with pytest.raises(RequestError, match="temperature 1 only") as refused:
            await chunks_of(engine, PROMPT, SamplingParams(max_tokens=4, temperature=0.5, logit_bias={70: 1.0}))
        assert refused.value.field == "logit_bias"


async def test_a_greedy_completion_is_the_same_streamed_whole_and_cut_anywhere(genuine: Genuine) -> None:
    sampling = SamplingParams(max_tokens=12, temperature=0)
    async with serving(genuine) as engine:
        (whole,) = await chunks_of(engine, PROMPT, sampling)
        ids = whole.columns.ids_array().tolist()
        parts = await chunks_of(engine, PROMPT, sampling, stream=True)
        assert joined(parts).ids_array().tolist() == ids
        assert [part.finish_reason for part in parts] == [""] * (len(parts) - 1) + [whole.finish_reason]
        for cut in range(1, len(ids)):
            rest = SamplingParams(max_tokens=12 - cut, temperature=0)
            (later,) = await chunks_of(engine, PROMPT + ids[:cut], rest, resumed_tokens=cut)
            assert later.columns.ids_array().tolist() == ids[cut:]
        counters = engine.take_counters()
        sent = 2 * len(PROMPT) + sum(len(PROMPT) + cut for cut in range(1, len(ids)))
        assert counters.prefilled_tokens + counters.cached_tokens == sent


async def test_the_most_likely_tokens_are_beside_each_sampled_one(genuine: Genuine) -> None:
    async with serving(genuine) as engine:
        (chunk,) = await chunks_of(engine, PROMPT, SamplingParams(max_tokens=5, temperature=0, top_logprobs=3))
        tokens = len(chunk.columns)
        top = np.frombuffer(chunk.top_ids, "<u4").reshape(tokens, 3)
        scores = np.frombuffer(chunk.top_logprobs, "<f4").reshape(tokens, 3)
        assert top[:, 0].tolist() == chunk.columns.ids_array().tolist()
        assert (np.diff(scores, axis=1) <= 0).all()
        assert np.allclose(scores[:, 0], chunk.columns.logprobs_array(), atol=1e-5)


async def test_a_stop_string_ends_a_completion_with_its_last_token(genuine: Genuine) -> None:
    async with serving(genuine) as engine:
        (free,) = await chunks_of(engine, PROMPT, SamplingParams(max_tokens=12, temperature=0))
        ids = free.columns.ids_array().tolist()
        # A byte that is a character by itself, at its first place.
        place = next(
            place for place, token in enumerate(ids) if (text := engine.tokenizer.decode([token])).isascii() and text
        )
        stop = engine.tokenizer.decode([ids[place]])
        (stopped,) = await chunks_of(engine, PROMPT, SamplingParams(max_tokens=12, temperature=0, stop=(stop,)))
        assert stopped.columns.ids_array().tolist() == ids[: ids.index(ids[place]) + 1]
        assert stopped.finish_reason == "stop"


@genuine_only
async def test_a_stop_string_beside_a_bias_keeps_every_token(genuine: Genuine) -> None:
    async with serving(genuine) as engine:
        sampling = SamplingParams(max_tokens=30, stop=(engine.tokenizer.decode([70]),), logit_bias={70: 4.0})
        for _ in range(20):
            columns = joined(await chunks_of(engine, PROMPT, sampling))
            assert len(columns.ids_array())
            genuine.assert_exact(columns)


@genuine_only
async def test_completions_in_flight_continue_under_new_weights_and_every_token_is_exact(genuine: Genuine) -> None:
    """Eight completions at once and weights replaced as soon as they run, again and again until versions rise within a
    completion."""
    rounds = itertools.count()
    async with serving(genuine) as engine:

        async def sampled(number: int) -> TokenColumns:
            return joined(
                await chunks_of(engine, [*PROMPT, 20 + number], SamplingParams(max_tokens=80), stream=number % 2 == 0)
            )

        async def versions_rose() -> bool:
            """Returns True if a completion has tokens of both weights: a fast server may have ended all of them before
            the update."""
            tasks = [asyncio.create_task(sampled(number)) for number in range(8)]
            await until_it_runs(engine, *tasks)
            version = 1 + next(rounds) % 2
            await engine.load_weights(genuine.versions[version], version)
            found = await asyncio.gather(*tasks)
            for number, columns in enumerate(found):
                genuine.assert_exact(columns, prompt=[*PROMPT, 20 + number])
            return any(len(columns.versions) > 1 for columns in found)

        async with asyncio.timeout(300):
            while not await versions_rose():
                pass


@genuine_only
async def test_weights_are_loaded_the_moment_a_completion_has_ended(genuine: Genuine) -> None:
    """SGLang answers before a request has left its batch, and must not end when weights follow at once."""
    async with serving(genuine) as engine:
        for number in range(30):
            await chunks_of(engine, PROMPT, SamplingParams(max_tokens=1 + number % 3))
            await engine.load_weights(genuine.versions[number % 3], number % 3)
        genuine.assert_exact(joined(await chunks_of(engine, PROMPT, SamplingParams(max_tokens=7))))


@genuine_only
async def test_completions_wait_while_the_engine_sleeps_and_continue_under_the_next_weights(genuine: Genuine) -> None:
    """On a CPU the servers obey, and keep their memory."""
    async with serving(genuine) as engine:
        for version in (1, 2):
            tasks = [
                asyncio.create_task(chunks_of(engine, [*PROMPT, 20 + number], SamplingParams(max_tokens=60)))
                for number in range(4)
            ]
            await until_it_runs(engine, *tasks)
            assert await engine.release_memory() == 0
            tasks.append(asyncio.create_task(chunks_of(engine, [*PROMPT, 24], SamplingParams(max_tokens=5))))
            await asyncio.sleep(0.5)
            assert engine.take_counters().running == 0
            await engine.load_weights(genuine.versions[version], version)
            for number, chunks in enumerate(await asyncio.gather(*tasks)):
                genuine.assert_exact(joined(chunks), prompt=[*PROMPT, 20 + number])


async def test_sglang_drops_its_cache_by_an_order_of_its_own_after_the_weights() -> None:
    """It would end with an assertion if both were one order and a request, answered already, had not left its batch."""
    sent = []

    class Server(ServerClient):
        async def post(self, path, body, seconds=None):
            sent.append((path.partition("?")[0], body.get("flush_cache")))
            return (
                (400, "Timed out waiting for idle state.")
                if "flush" in path and len(sent) > 2
                else (200, {"success": True})
            )

    server = Server("sglang", "http://127.0.0.1:1")
    await DIALECTS["sglang"]().load(server, "/weights", 3, 5)
    assert sent == [("/update_weights_from_disk", False), ("/flush_cache", None)]
    with pytest.raises(
        EngineUnavailable, match=r"did not drop its prefix cache for weight version 3 \(400\): Timed out"
    ):
        await DIALECTS["sglang"]().load(server, "/weights", 3, 5)


@genuine_only
async def test_a_constrained_completion_is_awaited_before_weights_change(genuine: Genuine) -> None:
    async with serving(genuine) as engine:
        sampling = SamplingParams(max_tokens=40, constraint=Constraint(kind="regex", text="[a-d]{30}"))
        running = asyncio.create_task(chunks_of(engine, PROMPT, sampling))
        await until_it_runs(engine, running)
        await engine.load_weights(genuine.versions[1], 1)
        assert running.done() or engine.take_counters().running == 0
        columns = joined(await running)
        assert [span.weight_version for span in columns.versions] == [0]
        genuine.assert_exact(columns)


@pytest.mark.parametrize("harm", ["missing", "shapes", "cut short", "checksum", "no files"])
async def test_weights_that_are_not_whole_never_reach_the_server(genuine: Genuine, tmp_path: Path, harm: str) -> None:
    tensors = dict(genuine.models[2].state_dict())
    if harm == "missing":
        del tensors["model.layers.1.mlp.up_proj.weight"]
    if harm == "shapes":
        tensors["model.norm.weight"] = torch.ones(3)
    location = write_weights(tensors, tmp_path / "v2", genuine.folder)
    file = tmp_path / "v2" / "model.safetensors"
    if harm == "cut short":
        file.write_bytes(file.read_bytes()[:-1000])
    if harm == "checksum":
        content = bytearray(file.read_bytes())
        content[-5] ^= 1
        file.write_bytes(content)
    if harm == "no files":
        file.unlink()
    async with serving(genuine) as engine:
        with pytest.raises(EngineError, match="the weights in") as refused:
            await engine.load_weights(location, 2)
        assert not isinstance(refused.value, EngineUnavailable)
        assert engine.weight_version == 0
        genuine.assert_exact(joined(await chunks_of(engine, PROMPT, SamplingParams(max_tokens=6))))


@genuine_only
async def test_many_at_once_are_counted_and_exact(genuine: Genuine) -> None:
    async with serving(genuine, 2) as engine:
        engine.take_counters()
        prompts = [[*PROMPT, 30 + number] for number in range(24)]
        found = await asyncio.gather(*(chunks_of(engine, prompt, SamplingParams(max_tokens=20)) for prompt in prompts))
        columns = [joined(chunks) for chunks in found]
        for prompt, those in zip(prompts, columns, strict=True):
            genuine.assert_exact(those, prompt=prompt)
        counters = engine.take_counters()
        assert counters.tokens == sum(map(len, columns))
        assert counters.running == 0
        assert math.isfinite(counters.busy_seconds)
        assert counters.busy_seconds > 0


@genuine_only
async def test_a_server_reports_what_waits_and_how_much_of_its_kv_cache_is_used(genuine: Genuine) -> None:
    async with serving(genuine) as engine, asyncio.timeout(600):
        prompts, seen = [[*PROMPT, 30 + number] for number in range(40)], []
        while not any(usage.waiting for usage in seen):  # on a busy machine a round may end before its first report
            tasks = [
                asyncio.create_task(chunks_of(engine, prompt, SamplingParams(max_tokens=80))) for prompt in prompts
            ]
            while not all(task.done() for task in tasks):
                seen.append(await engine.dialect.usage(engine._server))
            await asyncio.gather(*tasks)
        assert 0 < max(usage.kv_cache for usage in seen) <= 1
        while (await engine.dialect.usage(engine._server)).waiting:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.1)


@genuine_only
async def test_closing_the_engine_fails_what_runs_even_if_the_server_does_not_answer(genuine: Genuine) -> None:
    assert genuine.process is not None
    family = psutil.Process(genuine.process._guard.pid).children(recursive=True)
    engine = genuine.make()
    await engine.load_weights(genuine.versions[0], 0)
    signal_all(family, signal.SIGSTOP)
    try:
        running = asyncio.create_task(chunks_of(engine, PROMPT, SamplingParams(max_tokens=80)))
        await until_it_runs(engine, running)
        await asyncio.wait_for(engine.close(), 300)
        with pytest.raises(EngineError, match="request: the generation engine is closed"):
            await running
    finally:
        signal_all(family, signal.SIGCONT)


@genuine_only
async def test_a_server_that_was_killed_is_unavailable_and_is_started_again_with_the_weights(
    genuine: Genuine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's own server, killed by `kill -9` of every process of it, in the middle of completions."""
    monkeypatch.chdir(ROOT)
    make = engine_factory(settings_of(genuine.name), ROOT, EnginePlace(logs=tmp_path))
    engine = await asyncio.to_thread(make, genuine.folder)
    assert isinstance(engine, HttpEngine)
    process = engine._server.process
    assert process is not None
    try:
        await engine.load_weights(genuine.versions[1], 1)
        family = psutil.Process(process._guard.pid).children(recursive=True)
        signal_all(family, signal.SIGSTOP)  # so that no completion ends before the kill
        tasks = [asyncio.create_task(chunks_of(engine, PROMPT, SamplingParams(max_tokens=80))) for _ in range(4)]
        await until_it_runs(engine, *tasks)
        signal_all(family, signal.SIGKILL)
        for task in tasks:
            with pytest.raises(EngineUnavailable):
                await task
        with pytest.raises(EngineUnavailable, match=r"does not answer|ended with status"):
            await engine.load_weights(genuine.versions[2], 2)
    finally:
        await engine.close()
    _, alive = psutil.wait_procs(family, 20)
    assert not alive


@genuine_only
async def test_the_error_of_a_server_that_cannot_start_has_its_cause(
    genuine: Genuine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    settings = GenerationSettings(engine=genuine.name, device="cpu", max_model_len=CONTEXT, options={"no-such-flag": 3})
    make = engine_factory(settings, ROOT, EnginePlace(logs=tmp_path))
    engine = await asyncio.to_thread(make, genuine.folder)
    try:
        with pytest.raises(SetupError, match=r"ended with status 2(.|\n)*no-such-flag"):
            await engine.load_weights(genuine.versions[1], 1)
    finally:
        await engine.close()
