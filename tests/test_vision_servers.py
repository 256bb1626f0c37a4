"""SGLang's requests with images, and a genuine server that sees: images by reference, and log-probabilities that the
trainer's equal."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from support.gateway_harness import client
from support.tiny_vision import CONTEXT, TOP_K, picture, write_vision_model
from support.vision_harness import EXACT, PictureCompletions, asked, rows_of, seeing, trainer_of, worse

from areal_actors.core.errors import EngineError
from areal_actors.core.values import ImageRef, SamplingParams
from areal_actors.generation.engine import EnginePlace, PromptImages
from areal_actors.generation.servers.dialect import Segment
from areal_actors.generation.servers.http_engine import HttpEngine
from areal_actors.generation.servers.server_process import ServerClient
from areal_actors.generation.servers.sglang.dialect import SGLang
from areal_actors.generation.settings import GenerationSettings
from areal_actors.messages import WeightsLoaded, WeightsPublished
from areal_actors.vision.files import ImageFolder
from areal_actors.weights.weight_files import location_of

ROOT = Path(__file__).parent.parent
PAD = 9
SERVED = GenerationSettings(engine="sglang", device="cpu", max_num_seqs=4, max_model_len=CONTEXT)
genuine = pytest.mark.skipif(
    not (ROOT / ".environments/sglang/bin/python").exists(), reason="`just environments sglang` makes the server"
)


@pytest.mark.parametrize("made", [10, 12])
async def test_sglang_gets_the_path_of_an_image_and_one_placeholder_and_has_to_make_the_same_tokens_of_it(
    tmp_path, made
):
    sent = []

    class Server(ServerClient):
        async def post(self, path, body, seconds=None):
            sent.append(body)
            reason = {"type": "length"}
            return 200, {
                "meta_info": {
                    "output_token_logprobs": [[-0.5, 7, None]],
                    "finish_reason": reason,
                    "prompt_tokens": made,
                }
            }

    ids = [1, 2, PAD, PAD, PAD, 3, PAD, PAD, 4, 5]
    images = (
        ImageRef(digest="a", start=2, grid=(1, 2, 6), tokens=3),
        ImageRef(digest="b", start=6, grid=(1, 4, 2), tokens=2),
    )
    shown = PromptImages(images, ImageFolder(tmp_path))
    segment = Segment("r", ids, SamplingParams(max_tokens=1), 1, (), streamed=False, images=shown)
    parts = SGLang().sample(Server("sglang", "http://127.0.0.1:1"), segment)
    if made != len(ids):
        with pytest.raises(EngineError, match="has made 12 tokens of a prompt of 10 tokens with images"):
            [part async for part in parts]
        return
    assert [part.token_ids async for part in parts] == [[7]]
    assert sent[0]["input_ids"] == [1, 2, PAD, 3, PAD, 4, 5]
    assert sent[0]["image_data"] == [str(tmp_path / "a.png"), str(tmp_path / "b.png")]


@pytest.mark.long
@genuine
async def test_sglang_sees_images_and_its_log_probabilities_are_the_trainers(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    model = write_vision_model(tmp_path / "model")
    trainer = trainer_of(model, lr=1e-2)

    def make():
        return HttpEngine(SGLang(), model, SERVED, EnginePlace(logs=tmp_path))

    async with seeing(model, tmp_path / "run", make, tokens=16) as harness:
        for version in range(2):
            rows = []
            for number, images in enumerate([(picture(1),), (picture(2),), (), (picture(3, 60, 110), picture(4))]):
                rows += await conversation(harness, f"{version}.{number}", images, picture(5 + number), version)
            metrics = trainer.step([rows[0], worse(rows[0]), *rows[1:]])
            assert metrics["train_infer_logprob_diff_max"] < EXACT
            assert metrics["parity_tokens"] == sum(int(row.loss_mask.sum()) for row in (*rows, worse(rows[0])))
            assert {int(version) for row in rows for version in row.versions[row.loss_mask]} == {version}
            loaded = harness.until(WeightsLoaded)
            location = trainer.publish(str(tmp_path / "weights" / f"v{version + 1}"))
            await harness.publish(WeightsPublished(weight_version=version + 1, location=location))
            async with asyncio.timeout(300):
                await loaded


async def conversation(harness, episode, images, later, step):
    """Training rows of two turns, the second with another image, for this step."""
    opened = await harness.open(harness.work(episode))
    messages = [asked("Which is it?", *images)]
    async with client(opened) as openai:
        first = await openai.chat.completions.create(model="m", messages=messages)
        messages += [{"role": "assistant", "content": first.choices[0].message.content}, asked("And here?", later)]
        await openai.chat.completions.create(model="m", messages=messages)
    trajectory = await harness.finished(opened, episode)
    assert trajectory.interactions[1].prefix == trajectory.interactions[0].id
    rows, refused = rows_of(trajectory, harness.images, step)
    assert not refused
    return rows


@pytest.mark.long
@genuine
async def test_sglang_completes_under_new_weights_what_it_began_and_sees_with_the_new_ones(tmp_path, monkeypatch):
    """Log-probabilities that SGLang reports as it samples, and those of a pass over the whole text, which `biased`
    makes necessary."""
    monkeypatch.chdir(ROOT)
    models = [write_vision_model(tmp_path / f"model{seed}", seed=seed) for seed in (0, 5)]
    engine = HttpEngine(SGLang(), models[0], SERVED, EnginePlace(logs=tmp_path))
    seen = PictureCompletions(engine, models, tmp_path / "images")
    brief, long = (SamplingParams(max_tokens=count, top_k=TOP_K) for count in (8, 300))
    biased = SamplingParams(max_tokens=8, top_k=TOP_K, logit_bias={266: 0.5})
    try:
        async with asyncio.timeout(400):
            await engine.load_weights(location_of(models[0]), 0)
            for index in (0, 1, 0):
                seen.assert_exact(await seen.sampled(index, brief), index)
            for version in itertools.count(1):
                both = await seen.sampled(version % 2, long, version=version)
                seen.assert_exact(both, version % 2)
                seen.assert_exact(await seen.sampled(0, brief), 0)
                seen.assert_exact(await seen.sampled(1, biased), 1)
                if len(both.versions) > 1 and version > 2:  # the completion may have ended before the update
                    break
    finally:
        await engine.close()
