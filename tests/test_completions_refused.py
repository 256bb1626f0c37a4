"""A bad completion at the gateway: the agent may ask again, its episode is the engine's failure otherwise, and nothing
of it is kept."""

from __future__ import annotations

import asyncio
import math

import aiohttp
import msgspec
import openai
import pytest
from support.fake_engine import FixedTextEngine
from support.gateway_harness import HELLO, client, opened_gateway, root, work

from areal_actors.core.errors import EngineError
from areal_actors.core.values import TokenColumns
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.generation.engine import TokenChunk
from areal_actors.generation.inference_worker import MAX_FAILURES
from areal_actors.messages import CompletionRefused, EpisodeAbandoned, EpisodeScored


class FaultyEngine(FixedTextEngine):
    """Generates its text, but spoils the completions of these numbers, counted from 0."""

    def __init__(self, *numbers, how="nan"):
        super().__init__("hi")
        self.numbers, self.how, self.count = numbers, how, 0

    async def generate(self, request_id, prompt_ids, sampling, *, stream=False, resumed_tokens=0):
        number, self.count = self.count, self.count + 1
        async for chunk in super().generate(
            request_id, prompt_ids, sampling, stream=stream, resumed_tokens=resumed_tokens
        ):
            if number in self.numbers and chunk.finish_reason:
                async for one in self.spoilt(chunk):
                    yield one
            else:
                yield chunk

    async def spoilt(self, chunk):
        if self.how == "nan":
            columns = chunk.columns
            ids = columns.ids_array().tolist()
            yield TokenChunk(
                columns=TokenColumns.of(ids, [math.nan] * len(ids), columns.versions_array()), finish_reason="stop"
            )
        elif self.how == "raises":
            raise KeyError("sequence 17")
        elif self.how == "fails":
            raise EngineError("")
        elif self.how == "no end":
            yield msgspec.structs.replace(chunk, finish_reason="")
        elif self.how == "silent":
            await asyncio.Event().wait()
        elif self.how == "endless":
            while True:
                yield TokenChunk(columns=TokenColumns())
                await asyncio.sleep(0)


def events(harness, kind):
    return [envelope.open(kind) for envelope in harness.bus._log if envelope.subject == kind.subject]


async def call(sdk, **options):
    return await sdk.chat.completions.create(model="m", messages=HELLO, **options)


async def consume(sdk, **options):
    """A call, to its end."""
    answer = await call(sdk, **options)
    return [part async for part in answer] if "stream" in options else answer


async def ended(harness, opened):
    """End of the episode that is scored now."""
    abandoned = harness.until(EpisodeAbandoned)
    await harness.publish(EpisodeScored(work=work(), session=opened.session, reward=1.0))
    async with asyncio.timeout(300):
        return await abandoned


CHECKS = {
    "nan": "log-probability at token 0: nan",
    "raises": "engine error: KeyError: 'sequence 17'",
    "fails": "engine error: EngineError: ",
    "no end": "engine error: the engine ended the completion without a chunk that has a finish reason",
    "endless": "no tokens: the inference worker answered without tokens or a finish reason",
    "silent": "no answer: inference_worker-0 did not answer",
}


@pytest.mark.parametrize("how", CHECKS)
async def test_a_client_that_asks_again_gets_a_sound_answer_which_alone_is_trained(how):
    async with opened_gateway(GatewaySettings(completion_seconds=1.0 if how == "silent" else 600.0)) as harness:
        await harness.engine("inference_worker-0", FaultyEngine(0, how=how))
        opened = await harness.open()
        async with client(opened, max_retries=2) as sdk:
            assert (await call(sdk)).choices[0].message.content == "hi"
        (refused,) = events(harness, CompletionRefused)
        assert refused.cause.startswith(CHECKS[how])
        assert (refused.worker, refused.session, refused.episode) == ("inference_worker-0", opened.session, "0.0")
        (turn,) = (await harness.trajectory(opened)).interactions
        assert turn.completion.logprobs_array().tolist() == [-0.5] * 3
        assert turn.id != refused.interaction
        assert [recorded.interaction for recorded in harness.recorded()] == [turn.id]
        assert harness.manager.status()["refused of inference_worker-0"] == 1
        async with aiohttp.ClientSession() as http, http.get(root(opened) + "/metrics") as response:
            assert 'areal_completions_refused_total{worker="inference_worker-0"} 1\n' in await response.text()


@pytest.mark.parametrize("options", [{}, {"stream": True}, {"n": 3}])
async def test_an_agent_that_swallows_the_error_ends_as_the_engine_s_failure(options):
    async with opened_gateway() as harness:
        await harness.engine("inference_worker-0", FaultyEngine(1))
        opened = await harness.open()
        async with client(opened) as sdk:
            if "n" not in options:
                await call(sdk, seed=1)
            with pytest.raises(openai.APIError, match="log-probability at token"):
                await consume(sdk, **options)
        kept = 0 if "n" in options else 1
        assert len(harness.recorded()) == kept
        gone = await ended(harness, opened)
        assert (gone.reason, gone.work.episode) == ("engine", "0.0")
        assert gone.detail.startswith("inference_worker-0: log-probability at token")


async def test_another_call_s_answer_does_not_make_up_for_one_that_never_came():
    async with opened_gateway() as harness:
        await harness.engine("inference_worker-0", FaultyEngine(0))
        opened = await harness.open()
        async with client(opened) as sdk:
            with pytest.raises(openai.InternalServerError):
                await call(sdk)
            await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "something else"}])
        assert (await ended(harness, opened)).reason == "engine"


async def test_a_worker_that_fails_now_and_then_lives_and_one_that_always_does_is_replaced():
    async with opened_gateway() as harness:
        await harness.engine(
            "inference_worker-0", FaultyEngine(*range(1, 9, 2), *range(9, 9 + MAX_FAILURES), how="raises")
        )
        async with client(await harness.open()) as sdk:
            for number in range(9 + MAX_FAILURES):
                assert not harness.tasks["inference_worker-0"].done()
                if number % 2 == 0 and number < 9:
                    await call(sdk, seed=number)
                else:
                    with pytest.raises(openai.InternalServerError, match="sequence 17"):
                        await call(sdk, seed=number)
            with pytest.raises(ExceptionGroup):
                await harness.tasks["inference_worker-0"]
