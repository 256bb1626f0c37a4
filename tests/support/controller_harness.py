"""A controller over real actors in this process; only the engine is a toy."""

from __future__ import annotations

from contextlib import asynccontextmanager

import msgspec
from support.fake_engine import FixedTextEngine
from support.samples import TOOLS_TEMPLATE, letters

from areal_actors.core.actor_settings import ActorsSettings, Placement
from areal_actors.core.task_settings import TaskSettings
from areal_actors.core.values import SamplingParams, WeightsLocation
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.library.controllers import AsyncRolloutController, in_process
from areal_actors.library.workflow import ArealOpenAI, RolloutWorkflow
from areal_actors.recipe.recipe import Recipe
from areal_actors.staleness.ledger import StalenessGateConfig
from areal_actors.training.algorithms import Grpo
from areal_actors.training.settings import TrainerSettings

LOCATION = WeightsLocation(folder="v0", checksum="sum", model="toy")
ROWS = [{"id": f"row-{number}", "question": f"{number}?"} for number in range(100)]


def recipe_for(tmp_path, *, group_size=2, batch_size=2, max_staleness=1, max_concurrent=8, workers=1, **tables):
    tables = {"task": TaskSettings(retries=0, timeout_seconds=20.0), **tables}
    return Recipe(
        run="loop",
        folder=str(tmp_path / "runs"),
        steps=10,
        model="toy",
        algorithm=Grpo(group_size=group_size),
        trainer=TrainerSettings(batch_size=batch_size),
        staleness_gate=StalenessGateConfig(max_staleness=max_staleness, max_concurrent=max_concurrent),
        sampling=SamplingParams(max_tokens=20),
        actors=ActorsSettings(inference_worker=Placement(process="inference_worker", count=workers, concurrency=64)),
        **tables,
    )


def task_settings(**settings):
    return msgspec.structs.replace(TaskSettings(retries=0, timeout_seconds=20.0), **settings)


@asynccontextmanager
async def controller(recipe, engine=FixedTextEngine, *, published=True, **options):
    """A started controller that has weights 0; `engines` are those that its workers have made, by worker."""
    engines = {}

    def inference_worker(place):
        def made(folder):
            engines[place.instance] = engine()
            return engines[place.instance]

        return InferenceWorker(made, name=place.instance, concurrency=64)

    def session_manager(place):
        return SessionManager(
            place.recipe.gateway, lambda folder: letters(template=TOOLS_TEMPLATE), secret=b"secret", max_model_len=300
        )

    home = in_process({"inference_worker": inference_worker, "session_manager": session_manager})
    async with AsyncRolloutController(recipe, home, **options) as made:
        made.engines = engines
        if published:
            await made.update_weights(LOCATION)
        yield made


class OneCallWorkflow(RolloutWorkflow):
    """One model call; the reward is given."""

    def __init__(self, reward=1.0):
        self.reward = reward
        self.seen = []

    async def arun_episode(self, engine, data):
        self.seen.append(data["id"])
        async with ArealOpenAI(engine, max_retries=0) as client:
            await client.chat.completions.create(
                model="default", messages=[{"role": "user", "content": data["question"]}]
            )
        return self.reward


class GatedWorkflow(OneCallWorkflow):
    """Waits for a gate before it begins."""

    def __init__(self, gate, **options):
        super().__init__(**options)
        self.gate = gate
        self.running = 0

    async def arun_episode(self, engine, data):
        self.running += 1
        await self.gate.wait()
        return await super().arun_episode(engine, data)
