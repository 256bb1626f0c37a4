"""Images end to end: an agent's image in each dialect, a conversation in exact tokens, and a trainer that agrees with
the engine."""

from __future__ import annotations

import asyncio
import io
import itertools

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image
from support.gateway_harness import client
from support.samples import batch
from support.tiny_vision import TOP_K, data_url, picture, write_vision_model
from support.vision_harness import (
    ENGINE,
    EXACT,
    PictureCompletions,
    asked,
    plain_logprobs,
    plain_model,
    processor_of_transformers,
    rows_of,
    seeing,
    trainer_of,
    worse,
)

from areal_actors.core.errors import EngineError
from areal_actors.core.values import ImageRef, SamplingParams, unpack_ids
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.messages import TrajectoryExported
from areal_actors.sequences.credit import Credit
from areal_actors.sequences.sequence_check import SequenceLimits, batch_sequences
from areal_actors.vision.positions import rope_positions
from areal_actors.vision.processor import vision_of


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_vision_model(tmp_path_factory.mktemp("vision") / "model")


@pytest.fixture(scope="module")
def plain(model):
    return plain_model(model)


@pytest.mark.parametrize(
    ("width", "height", "kind"),
    [
        (100, 70, "PNG"),
        (30, 500, "PNG"),
        (999, 640, "JPEG"),
        (20, 20, "PNG"),
        (64, 65, "WEBP"),
        (112, 112, "GIF"),
        (57, 83, "PNG"),
    ],
)
def test_an_image_is_prepared_as_by_the_processor_of_transformers(model, width, height, kind):
    processor, content = vision_of(model), picture(1, width, height, kind)
    png, grid = processor.as_seen(content, 16)
    for image in (Image.open(io.BytesIO(content)).convert("RGB"), Image.open(io.BytesIO(png))):
        expected = processor_of_transformers()(images=[image], return_tensors="np")
        assert expected["image_grid_thw"].tolist() == [list(grid)]
        assert np.abs(expected["pixel_values"] - processor.patches(png)).max() < 2e-6


def test_positions_are_those_of_transformers(plain):
    grids = [(1, 4, 6), (1, 8, 2)]
    kinds = [0] * 5 + [1] * 6 + [0] * 3 + [1] * 4 + [0] * 2
    images = [
        ImageRef(digest="", start=5, grid=grids[0], tokens=6),
        ImageRef(digest="", start=14, grid=grids[1], tokens=4),
    ]
    ids = torch.zeros(1, len(kinds), dtype=torch.int64)
    expected, _ = plain.model.get_rope_index(
        ids, mm_token_type_ids=torch.tensor([kinds]), image_grid_thw=torch.tensor(grids)
    )
    assert np.array_equal(rope_positions(len(kinds), images, 2), expected[:, 0].numpy())
    for cut in range(len(kinds)):
        assert np.array_equal(
            rope_positions(cut, [one for one in images if one.start < cut], 2), expected[:, 0, :cut].numpy()
        )


async def test_a_conversation_with_images_is_sampled_recorded_and_trained_in_the_same_tokens(model, plain, tmp_path):
    images = [picture(1), picture(2, 60, 120), picture(3, 200, 50)]
    async with seeing(model, tmp_path) as harness:
        opened = await harness.open(harness.work())
        messages = [asked("Which is it?", images[0], images[1])]
        async with client(opened) as openai:
            first = await openai.chat.completions.create(model="m", messages=messages)
            messages += [
                {"role": "assistant", "content": first.choices[0].message.content},
                asked("And here?", images[2]),
            ]
            second = await openai.chat.completions.create(model="m", messages=messages)
            messages += [
                {"role": "assistant", "content": second.choices[0].message.content},
                {"role": "user", "content": "So?"},
            ]
            third = await openai.chat.completions.create(model="m", messages=messages)
        made = (await harness.finished(opened)).interactions
        assert [call.prefix for call in made] == ["", made[0].id, made[1].id]
        assert [len(call.images) for call in made] == [2, 1, 0]
        stored = [vision_of(model).as_seen(image, 16) for image in images]
        assert [harness.images.load(image.digest) for call in made for image in call.images] == [
            png for png, _ in stored
        ]
        expected = "<|im_start|>user\n" + "".join(
            f"<|vision_start|>{'<|image_pad|>' * vision_of(model).tokens(grid)}<|vision_end|>" for _, grid in stored[:2]
        )
        expected += "Which is it?<|im_end|>\n<|im_start|>assistant\n"
        assert harness.chat.decode(unpack_ids(made[0].prompt_suffix), skip_special=False) == expected
        assert third.usage.prompt_tokens == sum(
            len(call.prompt_suffix) // 4 + len(call.completion) for call in made
        ) - len(made[2].completion)
        exported = next(envelope for envelope in harness.bus._log if envelope.subject == TrajectoryExported.subject)
        assert len(exported.body) < 4000  # no pixels on the bus
        trajectory = exported.open(TrajectoryExported).trajectory
    (row,), refused = rows_of(trajectory, harness.images)
    assert not refused
    own = plain_logprobs(plain, row.token_ids.tolist(), images)
    assert np.abs(own - row.logprobs[1:])[row.loss_mask[1:]].max() < EXACT
    trainer = trainer_of(model)
    before = {name: tensor.clone() for name, tensor in trainer._model.state_dict().items()}
    metrics = trainer.step([row, worse(row)])
    assert metrics["train_infer_logprob_diff_max"] < EXACT
    assert metrics["parity_tokens"] == sum(len(call.completion) for call in (*made, made[0]))
    assert np.isfinite(metrics["grad_norm"])
    changed = {name for name, tensor in trainer._model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert any("language_model.layers.0" in name for name in changed)
    assert any("visual" in name for name in changed)


async def test_batch_invariant_decoding_sees_images(model, plain, tmp_path):
    settings = msgspec.structs.replace(ENGINE, batch_invariant="on", threads=1)
    async with seeing(model, tmp_path, lambda: TransformersEngine(model, settings)) as harness:
        opened = await harness.open(harness.work())
        async with client(opened) as openai:
            await openai.chat.completions.create(model="m", messages=[asked("Which?", picture(1))])
        (row,), _ = rows_of(await harness.finished(opened), harness.images)
    own = plain_logprobs(plain, row.token_ids.tolist(), [picture(1)])
    assert np.abs(own - row.logprobs[1:])[row.loss_mask[1:]].max() < EXACT


@pytest.mark.parametrize("harm", ["another image", "no image", "moved"])
async def test_parity_notices_a_wrong_image(model, tmp_path, harm):
    async with seeing(model, tmp_path) as harness:
        opened = await harness.open(harness.work())
        async with client(opened) as openai:
            await openai.chat.completions.create(model="m", messages=[asked("Which?", picture(1))])
        (row,), _ = rows_of(await harness.finished(opened), harness.images)
    assert trainer_of(model).step([row])["train_infer_logprob_diff_max"] < EXACT
    (image,) = row.images
    other = harness.images.store(vision_of(model).as_seen(picture(2), 16)[0])
    wrong = {
        "another image": (msgspec.structs.replace(image, digest=other),),
        "no image": (),
        "moved": (msgspec.structs.replace(image, start=image.start - 1),),
    }
    assert (
        trainer_of(model).step([msgspec.structs.replace(row, images=wrong[harm])])["train_infer_logprob_diff_max"]
        > 100 * EXACT
    )


@pytest.mark.parametrize("harm", ["missing", "damaged"])
async def test_an_image_that_is_gone_is_a_failure_by_name_and_no_training_row(model, tmp_path, harm):
    async with seeing(model, tmp_path) as harness:
        opened = await harness.open(harness.work())
        async with client(opened) as openai:
            answer = await openai.responses.create(model="m", input=[_item("Which?", picture(1))])
            trajectory_of = harness.manager.registry.get(opened.session).interactions()
            file = harness.images.file(trajectory_of[0].images[0].digest)
            if harm == "missing":
                file.unlink()
            else:
                file.write_bytes(file.read_bytes()[:-1])
            with pytest.raises(Exception, match="send the image again") as refused:
                await openai.responses.create(model="m", input="And now?", previous_response_id=answer.id)
            assert refused.value.status_code == 400
            trajectory = await harness.finished(opened)
            rows, refused = rows_of(trajectory, harness.images)
            assert rows == []
            assert refused[0].cause.startswith("image at token ")
            assert file.name in refused[0].cause
            # Sent again, it is stored again.
            opened = await harness.open(harness.work("1.0"))
        async with client(opened) as openai:
            await openai.responses.create(model="m", input=[_item("Which?", picture(1))])
    assert rows_of(trajectory, harness.images)[1] == ()
    trainer = trainer_of(model)
    file.unlink()
    (row,) = [
        msgspec.structs.replace(one, image_folder=str(harness.images.path)) for one in _rows_unchecked(trajectory)
    ]
    with pytest.raises(EngineError, match="cannot be read"):
        trainer.step([row])


def _rows_unchecked(trajectory):
    return batch_sequences(batch(0, 0), [(0, trajectory)], Credit(), SequenceLimits()).sequences


def _item(text, image):
    return {
        "role": "user",
        "content": [{"type": "input_image", "image_url": data_url(image)}, {"type": "input_text", "text": text}],
    }


async def test_rows_with_and_without_images_are_trained_in_one_step(model, tmp_path):
    async with seeing(model, tmp_path) as harness:
        rows = []
        for number, images in enumerate([(picture(1),), (), (picture(2, 90, 90), picture(1))]):
            opened = await harness.open(harness.work(f"{number}.0"))
            async with client(opened) as openai:
                await openai.chat.completions.create(model="m", messages=[asked("Which is it?", *images)])
            rows += rows_of(await harness.finished(opened, f"{number}.0"), harness.images)[0]
    rows = [msgspec.structs.replace(row, reward=float(place)) for place, row in enumerate(rows)]
    metrics = trainer_of(model).step(rows)
    assert metrics["train_infer_logprob_diff_max"] < EXACT
    assert metrics["parity_tokens"] == sum(int(row.loss_mask.sum()) for row in rows)
    together, alone = trainer_of(model).logp(rows), [trainer_of(model).logp([row]) for row in rows]
    assert torch.allclose(together, torch.cat(alone), atol=1e-5)


async def test_completions_in_flight_see_their_images_under_new_weights_and_the_prefix_cache_keeps_images_apart(
    model, tmp_path
):
    """Equal tokens, other images: nothing of one completion may be reused for the other."""
    engine = TransformersEngine(model, ENGINE)
    seen = PictureCompletions(engine, [model, write_vision_model(tmp_path / "newer", seed=5)], tmp_path)
    unending = SamplingParams(top_k=TOP_K, seed=7)
    brief, long = (msgspec.structs.replace(unending, max_tokens=count) for count in (8, 300))
    try:
        first = await seen.sampled(0, brief)
        second = await seen.sampled(1, brief)
        third = await seen.sampled(0, brief)
        seen.assert_exact(first, 0)
        seen.assert_exact(second, 1)
        assert third.token_ids == first.token_ids != second.token_ids
        assert engine.take_counters().cached_tokens >= len(seen.text)
        rest = await seen.sampled(
            0, msgspec.structs.replace(brief, max_tokens=5), resumed=first.ids_array()[:3].tolist()
        )
        assert rest.token_ids == first.token_ids[12:]
        async with asyncio.timeout(300):
            for version in itertools.count(1):
                both = await seen.sampled(1, long, version=version)
                seen.assert_exact(both, 1)
                if len(both.versions) > 1:  # a fast engine may have ended the completion before the update
                    break
    finally:
        await engine.close()
