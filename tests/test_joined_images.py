"""An inference worker of another host sees the images of the run's folder: pulled by digest, each once, with the tokens
of a local one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.gateway_harness import opened, post
from support.tiny_vision import picture, write_vision_model
from support.vision_harness import ENGINE, VisionHarness, asked

from areal_actors.core.errors import EngineError, ImageLost
from areal_actors.core.objects import FileAccess, RemoteObjects
from areal_actors.core.values import ImageRef
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.hosts.object_server import ObjectServer
from areal_actors.messages import WeightsLoaded
from areal_actors.vision.files import ImageFolder
from areal_actors.vision.pulled import ImagePuller

TOKEN = "token"


class Counted(RemoteObjects):
    """The run's files, with the images that were asked for."""

    def __init__(self, url: str) -> None:
        super().__init__(url, TOKEN, retry_for_seconds=0)
        self.asked: list[str] = []

    def read_image(self, digest: str) -> bytes:
        self.asked.append(digest)
        return super().read_image(digest)


def served(run_folder: Path) -> Counted:
    """The files of the run in this folder, over HTTP."""
    server = ObjectServer("run", run_folder, {})
    server.start("127.0.0.1", 0)
    server.access[TOKEN] = FileAccess(reads_images=True, writes_images=True)
    return Counted(f"http://127.0.0.1:{server.port}")


async def answers(model: Path, run_folder: Path, worker_folder: Path, **options: Any) -> list[Any]:
    """Calls of an episode that looks at two images, of a worker whose files are in `worker_folder`."""
    harness = VisionHarness(model, run_folder, tokens=8)
    engine = TransformersEngine(model, ENGINE)
    async with opened(harness):
        loaded = harness.until(WeightsLoaded)
        worker = InferenceWorker(
            lambda _: engine, name="inference_worker-0", concurrency=8, run_folder=worker_folder, **options
        )
        await harness.serve("inference_worker-0", worker)
        await loaded
        session = await harness.open(harness.work())
        for content in (picture(1), picture(2, 60, 120), picture(1)):
            status, answer = await post(session, {"model": "m", "messages": [asked("Which?", content)]})
            assert status == 200, answer
        calls = (await harness.finished(session)).interactions
    await engine.close()
    return [(call.prompt_suffix, call.images, call.completion) for call in calls]


async def test_a_worker_of_another_host_samples_the_tokens_of_a_local_one(tmp_path: Path) -> None:
    model, here, there = write_vision_model(tmp_path / "model"), tmp_path / "run", tmp_path / "there"
    local = await answers(model, tmp_path / "local", tmp_path / "local")
    objects = served(here)
    assert await answers(model, here, there, pull_images=ImagePuller(objects)) == local
    assert len(objects.asked) == 2
    names = {file.name for file in (there / "images").iterdir()}
    assert names == {f"{digest}.png" for digest in objects.asked} == {file.name for file in (here / "images").iterdir()}


async def test_each_image_is_pulled_once_and_again_where_its_file_was_damaged(tmp_path: Path) -> None:
    digest = ImageFolder.of_run(tmp_path / "run").store(picture(1))
    image = ImageRef(digest=digest, start=1, grid=(1, 2, 2), tokens=1)
    objects, there = served(tmp_path / "run"), ImageFolder(tmp_path / "there")
    pull = ImagePuller(objects)
    await asyncio.gather(*(pull([image, image], there) for _ in range(8)))
    assert objects.asked == [digest]
    there.file(digest).write_bytes(b"damaged")
    await pull([image], there)
    assert there.load(digest) == picture(1)


async def test_an_image_that_cannot_be_had_is_refused_with_the_cause(tmp_path: Path) -> None:
    here = ImageFolder.of_run(tmp_path / "run")
    digest, there = here.store(picture(1)), ImageFolder(tmp_path / "there")
    image = ImageRef(digest=digest, start=1, grid=(1, 2, 2), tokens=1)
    objects = served(tmp_path / "run")
    here.file(digest).write_bytes(b"damaged")
    with pytest.raises(ImageLost, match="damaged in the run's folder"):
        await ImagePuller(objects)([image], there)
    here.file(digest).unlink()
    with pytest.raises(ImageLost, match="no longer in the run's folder"):
        await ImagePuller(objects)([image], there)
    with pytest.raises(FileNotFoundError):
        objects.read_image("../../run.json")
    with pytest.raises(EngineError, match="cannot be pulled from the run's host"):
        await ImagePuller(RemoteObjects(objects.url, "another", retry_for_seconds=0))([image], there)
    assert not there.holds(digest)
