"""An engine whose log-probabilities are not the trainer's is named, recycled, and the run goes on; a sound one is left
alone."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.fake_engine import FixedTextEngine
from support.gateway_harness import client, opened_gateway
from support.live_run import LiveRun
from support.samples import published
from support.tiny_trainer import make_trainer, sequences_of, write_model
from test_gateway_errors import asked

from areal_actors.core.errors import EngineError
from areal_actors.core.values import SamplingParams, SequenceCall, WeightsLocation
from areal_actors.core.watchdog_settings import WatchdogSettings
from areal_actors.display.sentences import plain_line
from areal_actors.generation import inference_worker
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.messages import (
    ActorFailed,
    EngineMismatch,
    EpisodeAbandoned,
    Generate,
    RunFinished,
    StepCompleted,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.training.engine_mismatch import MAX_RECYCLES, EngineMonitor, reported_metrics
from areal_actors.training.logprob_check import mismatch_metrics

GOOD, BAD = "inference_worker-0", "inference_worker-1"
SETTINGS = WatchdogSettings(mismatch_steps=2)


def alarm(worker=BAD, *, recycle=True):
    return EngineMismatch(
        step=3,
        worker=worker,
        kl=0.21,
        vetoed_frac=0.0,
        tokens=40,
        steps=2,
        recycle=recycle,
        episode="3.1",
        position=7,
        token=44,
        recorded_logprob=-4.0,
        trainer_logprob=-1.5,
    )


@pytest.fixture(scope="module")
def rows_by_two(tmp_path_factory):
    """A trainer, and rows that two workers have sampled in turn."""
    trainer = make_trainer(write_model(tmp_path_factory.mktemp("model")), logprob_check_sequences=100)
    rows = [
        msgspec.structs.replace(
            row, calls=(SequenceCall(start=1, end=len(row.token_ids), reward=0.0, worker=(GOOD, BAD)[place % 2]),)
        )
        for place, row in enumerate(sequences_of(trainer))
    ]
    return trainer, rows


def wrong(rows, off):
    """The same rows, the second worker's log-probabilities off by so much."""
    return [
        (
            msgspec.structs.replace(
                row, logprobs=(row.logprobs - off * row.loss_mask).astype(np.float32), episode=f"0.{place}"
            )
            if row.calls[0].worker == BAD
            else row
        )
        for place, row in enumerate(rows)
    ]


def metrics_of(trainer, rows):
    behaviour = np.concatenate([row.logprobs[1:][row.loss_mask[1:]] for row in rows])
    rescored = trainer._logprob_check.rescore(rows, 0)
    return mismatch_metrics(rows, rescored.new_tensor(behaviour), rescored)


def test_the_metrics_of_each_worker_are_its_own(rows_by_two):
    trainer, rows = rows_by_two
    metrics = metrics_of(trainer, wrong(rows, 0.5))
    assert metrics[f"mismatch_kl_k3/{GOOD}"] < 1e-9
    assert metrics[f"mismatch_kl_k3/{BAD}"] == pytest.approx(np.exp(0.5) - 1.5, rel=1e-4)
    assert metrics[f"parity_tokens/{GOOD}"] + metrics[f"parity_tokens/{BAD}"] == metrics["parity_tokens"]
    assert metrics["mismatch_worst_sequence"] % 2 == 1
    assert set(reported_metrics(metrics)) == {
        name for name in metrics if "/" not in name or name.startswith("mismatch_kl_k3/")
    }


def test_a_mismatch_that_lasts_is_an_alarm_that_names_worker_and_token(rows_by_two):
    trainer, rows = rows_by_two
    off = wrong(rows, 1.0)
    monitor, metrics = EngineMonitor(SETTINGS, max_staleness=2), metrics_of(trainer, off)
    assert monitor.complete_step(0, off, metrics) == []
    (found,) = monitor.complete_step(1, off, metrics)
    assert (found.worker, found.steps, found.recycle, found.step) == (BAD, 2, True, 1)
    row = next(row for row in off if row.episode == found.episode)
    assert row.token_ids[found.position] == found.token
    assert found.trainer_logprob - found.recorded_logprob == pytest.approx(1.0, abs=1e-4)
    line = plain_line(found)
    assert BAD in line
    assert "its engine is recycled" in line


def test_tokens_that_the_old_engine_had_sampled_make_no_second_alarm(rows_by_two):
    trainer, rows = rows_by_two
    off = wrong(rows, 1.0)
    monitor, metrics = EngineMonitor(SETTINGS, max_staleness=2), metrics_of(trainer, off)
    alarms = [len(monitor.complete_step(step, off, metrics)) for step in range(20)]
    assert alarms == [0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0]
    monitor = EngineMonitor(SETTINGS, max_staleness=0)
    recycles = [found.recycle for step in range(40) for found in monitor.complete_step(step, off, metrics)]
    assert recycles == [True] * MAX_RECYCLES + [False] * (len(recycles) - MAX_RECYCLES)
    assert len(recycles) > MAX_RECYCLES


def test_one_bad_step_sound_engines_and_a_monitor_that_is_off_make_none(rows_by_two):
    trainer, rows = rows_by_two
    bad, good = metrics_of(trainer, wrong(rows, 1.0)), metrics_of(trainer, rows)
    monitor = EngineMonitor(SETTINGS, max_staleness=0)
    assert not any(monitor.complete_step(step, rows, bad if step % 2 else good) for step in range(20))
    off = EngineMonitor(WatchdogSettings(engine_mismatch="off"), max_staleness=0)
    assert not any(off.complete_step(step, rows, bad) for step in range(20))
    alarm_only = EngineMonitor(WatchdogSettings(engine_mismatch="alarm", mismatch_steps=1), max_staleness=0)
    assert [found.recycle for found in alarm_only.complete_step(0, rows, bad)] == [False]


def test_a_share_of_vetoed_tokens_is_an_alarm_and_without_workers_it_names_none(rows_by_two):
    trainer, rows = rows_by_two
    nameless = [msgspec.structs.replace(row, calls=()) for row in wrong(rows, 50.0)]
    metrics = metrics_of(trainer, nameless)
    assert metrics["mismatch_kl_k3"] < 1e-9
    assert 0.2 < metrics["mismatch_vetoed_frac"] < 0.8
    (found,) = EngineMonitor(WatchdogSettings(mismatch_steps=1), max_staleness=0).complete_step(0, nameless, metrics)
    assert found.worker == ""


# ---------------------------------------------------------------- recycling


class Made(FixedTextEngine):
    """Knows whether it is closed."""

    closed = False

    async def close(self):
        self.closed = True


async def test_a_worker_that_is_named_makes_its_engine_anew_and_loads_the_current_weights(send):
    engines = []

    def make(folder):
        engines.append(Made())
        return engines[-1]

    worker = InferenceWorker(make, name=BAD, concurrency=8)
    await send(worker, published(0), published(4))
    assert await send(worker, alarm(GOOD), alarm(recycle=False)) == []
    (loaded,) = await send(worker, alarm())
    assert loaded == WeightsLoaded(worker=BAD, weight_version=4, checksum=loaded.checksum)
    assert [engine.closed for engine in engines] == [True, False]
    assert engines[1].weight_version == 4
    assert len(await send(worker, alarm(""))) == 1, "an alarm that names no worker means each"
    assert await send(InferenceWorker(make, name=BAD, concurrency=8), alarm()) == [], (
        "a fresh worker has a fresh engine"
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_completions_in_flight_go_on_with_a_worker_that_serves(stream):
    async with opened_gateway() as harness:
        bad = await harness.engine(BAD, FixedTextEngine("hi there", hold_at=4))
        opened = await harness.open()

        async def ask():
            async with client(opened) as agent:
                return await asked(agent, stream=stream)

        asking = asyncio.create_task(ask())
        await bad.held.wait()
        bad.hold_at = -1
        again = harness.until(WeightsLoaded)
        await harness.publish(alarm())
        assert await asking == "hi there"
        assert (await again).worker == BAD
        (call,) = (await harness.trajectory(opened)).interactions
        assert "".join(map(chr, call.completion.ids_array())) == "hi there\n"
        assert call.worker == BAD


async def test_a_call_that_two_workers_sampled_names_neither():
    async with opened_gateway() as harness:
        bad = await harness.engine(BAD, FixedTextEngine("hi there", hold_at=4))
        opened = await harness.open()

        async def ask():
            async with client(opened) as agent:
                return await asked(agent, stream=True)

        asking = asyncio.create_task(ask())
        await bad.held.wait()
        await harness.engine(GOOD, FixedTextEngine("hi there"))
        await harness.kill(BAD)
        assert await asking == "hi there"
        (call,) = (await harness.trajectory(opened)).interactions
        assert call.worker == ""


@pytest.mark.long
@pytest.mark.slow
async def test_a_run_whose_engine_loads_damaged_weights_names_it_recycles_it_and_continues(tmp_path):
    run = LiveRun(
        tmp_path,
        "steps=16",
        "generation.engine=tests/support/drifting_engine.py:DriftingEngine",
        "actors.inference_worker.count=2",
        "staleness_gate.max_staleness=1",
        "watchdog.mismatch_steps=2",
        "evaluation.tasks=0",
    )
    try:
        async with run.listening(120):
            assert await run.ended() == 0, run.output()
        log = [event for _, event in await run.log()]
    finally:
        run.abort()
    assert [event for event in log if isinstance(event, RunFinished)] == [RunFinished(steps=16)]
    assert not [event for event in log if isinstance(event, ActorFailed | EpisodeAbandoned)]
    (found,) = [event for event in log if isinstance(event, EngineMismatch)]
    assert found.recycle
    assert found.worker in (GOOD, BAD)
    assert found.kl > 0.05
    (after,) = (place for place, event in enumerate(log) if event is found)
    again = next(event for event in log[after:] if isinstance(event, WeightsLoaded) and event.worker == found.worker)
    assert again.weight_version >= found.step, (
        "the weights that it had are loaded again, or newer ones if these are gone by now"
    )
    steps = [event for event in log if isinstance(event, StepCompleted)]
    (sound,) = {GOOD, BAD} - {found.worker}
    assert all(event.metrics.get(f"mismatch_kl_k3/{sound}", 0.0) < 1e-6 for event in steps)
    late = [event.metrics[name] for event in steps[-4:] if (name := f"mismatch_kl_k3/{found.worker}") in event.metrics]
    assert late
    assert max(late) < 1e-6
    assert "engine mismatch" in run.output()


async def test_weights_that_are_replaced_while_a_worker_loads_them_are_skipped_and_the_next_are_loaded(
    send, tmp_path, monkeypatch
):
    engines = []

    class Reading(Made):
        async def load_weights(self, location, weight_version):
            if not Path(location.folder).is_dir():
                raise EngineError("the weights cannot be read")
            await super().load_weights(location, weight_version)

    def make(folder):
        engines.append(Reading())
        return engines[-1]

    def version(number, *, exists=True):
        folder = tmp_path / f"v{number}"
        if exists:
            folder.mkdir(exist_ok=True)
            (folder / "model.safetensors").touch()
        return WeightsPublished(
            weight_version=number, location=WeightsLocation(folder=str(folder), checksum="c", model="m")
        )

    worker = InferenceWorker(make, name=BAD, concurrency=8)
    with pytest.raises(EngineError, match="cannot be read"):
        await send(worker, version(1, exists=False))
    version(3)
    assert await send(worker, version(2, exists=False)) == []
    assert not worker.serving.is_set(), "the engine has the weights of no version"
    monkeypatch.setattr(inference_worker, "RECYCLE_SECONDS", 0.01)
    (refused,) = await send(worker, Generate(prompt_ids=b"", sampling=SamplingParams()))
    assert refused.error == f"{BAD} has no weights yet"
    assert len(await send(worker, version(3))) == 1
    assert worker.serving.is_set()
    shutil.rmtree(tmp_path / "v3")
    version(4)
    assert await send(worker, alarm()) == []
    assert not worker.serving.is_set()
    (loaded,) = await send(worker, version(4))
    assert loaded.weight_version == engines[-1].weight_version == 4
    assert worker.serving.is_set()


async def test_weights_that_do_not_load_within_the_deadline_fail_the_worker_by_name(send):
    class Stuck(Made):
        async def load_weights(self, location, weight_version):
            if weight_version:
                await asyncio.Event().wait()

    worker = InferenceWorker(lambda folder: Stuck(), name=BAD, concurrency=8)
    await send(worker, published(0))
    worker.load_seconds = 0.05
    with pytest.raises(
        EngineError,
        match=rf"{BAD} has not loaded weight version 1 within watchdog.load_seconds = 0.05; it serves version 0",
    ):
        await send(worker, published(1))
