"""Images at the gateway: one image in every dialect gives the same tokens and one file; what cannot be shown is refused
by name."""

from __future__ import annotations

import base64
import io
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from support.gateway_harness import GatewayHarness, opened, post
from support.samples import work
from support.tiny_vision import data_url, picture, write_vision_model
from support.vision_harness import VisionHarness, asked, seeing

from areal_actors.core.errors import RequestError
from areal_actors.core.values import ImageRef, SamplingParams
from areal_actors.generation.engine import refuse_unable
from areal_actors.generation.scripted.engine import ScriptedEngine
from areal_actors.messages import TrajectoryExported
from areal_actors.vision.processor import vision_of

PICTURE = picture(1)
IN_EVERY_DIALECT = {
    "chat": ("/chat/completions", {"messages": [asked("Which?", PICTURE)]}),
    "responses": (
        "/responses",
        {
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_image", "image_url": data_url(PICTURE)},
                        {"type": "input_text", "text": "Which?"},
                    ],
                }
            ]
        },
    ),
    "messages": (
        "/messages",
        {
            "max_tokens": 4,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "image",
                            "source": {
                                "type": "base64",
                                "media_type": "image/png",
                                "data": base64.b64encode(PICTURE).decode(),
                            },
                        },
                        {"type": "text", "text": "Which?"},
                    ],
                }
            ],
        },
    ),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_vision_model(tmp_path_factory.mktemp("vision") / "model")


async def test_an_image_in_every_dialect_is_the_same_prompt_and_one_file(model, tmp_path):
    async with seeing(model, tmp_path, tokens=4) as harness:
        session = await harness.open(harness.work())
        for path, body in IN_EVERY_DIALECT.values():
            status, answer = await post(session, {"model": "m", **body}, path)
            assert status == 200, answer
        calls = (await harness.finished(session)).interactions
        assert len({(call.prompt_suffix, call.images) for call in calls}) == 1
        assert [file.name for file in harness.images.path.iterdir()] == [f"{calls[0].images[0].digest}.png"]
        (image,) = calls[0].images
        processor = vision_of(model)
        ids = harness.chat.encode("<|im_start|>user\n<|vision_start|>")
        assert (image.start, image.tokens) == (len(ids), processor.tokens(image.grid))
        log = b"".join(envelope.body for envelope in harness.bus._log if envelope.subject == TrajectoryExported.subject)
        assert image.digest.encode() in log
        assert base64.b64encode(PICTURE)[:40] not in log


def chat_body(*urls):
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"model": "m", "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "x"}]}]}


REFUSED = {
    "not base64": (data_url(b"x")[:-1] + "?", "is not valid base64"),
    "no image": (data_url(b"hello"), "is no PNG, JPEG, GIF or WebP file"),
    "cut short": (data_url(picture(1)[:60]), "cannot be decoded"),
    "too many pixels": (
        data_url(picture(1, 1400, 1000)),
        "1400 by 1000 pixels, and gateway.images.max_megapixels is 1",
    ),
    "too narrow": (data_url(picture(1, 2, 900)), "one side may be at most 200 times as long"),
    "too large": (data_url(b"x" * (2**20 + 1)), "gateway.images.max_mb = 1 MiB"),
    "web": ("https://example.com/a.png", "gateway.images.urls='fetch'"),
    "file": ("file:///etc/passwd", "send a data: URL"),
}


async def test_what_cannot_be_shown_is_refused_with_its_place_and_remedy(model, tmp_path):
    harness = VisionHarness(model, tmp_path, max_mb=1, max_megapixels=1, max_per_call=2)
    async with opened(harness):
        session = await harness.open(harness.work())
        for url, message in REFUSED.values():
            body = io.BytesIO(json.dumps(chat_body(data_url(PICTURE), url)).encode())  # aiohttp warns of large strings
            status, answer = await post(session, body, raw=True)
            assert (status, answer["error"]["param"]) == (400, "messages[0].content[1]"), answer
            assert message in answer["error"]["message"]
        status, answer = await post(session, chat_body(*[data_url(PICTURE)] * 3))
        assert status == 400
        assert "3 images, and gateway.images.max_per_call is 2; send fewer" in answer["error"]["message"]
    assert len(list(harness.images.path.iterdir())) == 1


@asynccontextmanager
async def website(tmp_path):
    async def image(_):
        return web.Response(body=PICTURE)

    async def large(_):
        return web.Response(body=b"x" * (2**20 + 1))

    app = web.Application()
    app.add_routes([web.get("/image.png", image), web.get("/large.png", large)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_the_gateway_loads_images_from_their_urls_if_it_is_set_to(model, tmp_path):
    harness = VisionHarness(model, tmp_path, urls="fetch", max_mb=1)
    async with website(tmp_path) as root, opened(harness):
        session = await harness.open(harness.work())
        status, answer = await post(session, {**chat_body(f"{root}/large.png")})
        assert status == 400
        assert "is larger than gateway.images.max_mb" in answer["error"]["message"]
        status, answer = await post(session, chat_body(f"{root}/missing.png"))
        assert status == 400
        assert "cannot be loaded (404" in answer["error"]["message"]
        counted = {
            "messages": [
                {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": f"{root}/image.png"}}]}
            ]
        }
        status, answer = await post(session, {"model": "m", **counted}, "/messages/count_tokens")
        assert status == 200, answer
        assert len(list(harness.images.path.iterdir())) == 1


async def test_a_model_without_vision_refuses_images(tmp_path):
    harness = GatewayHarness(run_folder=tmp_path)
    async with opened(harness):
        session = await harness.open(work())
        status, answer = await post(session, chat_body(data_url(PICTURE)))
        assert (status, answer["error"]["param"]) == (400, "messages[0].content[0]")
        assert "reads text only; send text, or set `model` to one with vision" in answer["error"]["message"]
    assert not (tmp_path / "images").exists()


def test_an_engine_that_does_not_see_refuses_prompts_with_images():
    image = ImageRef(digest="0", start=1, grid=(1, 2, 2), tokens=1)
    engine = ScriptedEngine.__new__(ScriptedEngine)
    refuse_unable(engine, SamplingParams())
    with pytest.raises(
        RequestError,
        match=r"not seen by ScriptedEngine.*leave them out, or set generation\.engine to transformers or sglang",
    ):
        refuse_unable(engine, SamplingParams(), [image])
