"""Messages of a short run, for tests of monitors and summaries."""

from __future__ import annotations

import math
from itertools import count

from areal_actors.core.values import Interaction, SamplingParams, Task, TokenColumns, Trajectory, WeightsLocation
from areal_actors.messages import (
    ActorFailed,
    CheckpointCommitted,
    EpisodeAbandoned,
    EvaluationCompleted,
    Heartbeat,
    RunEpisode,
    RunFinished,
    RunStarted,
    StepCompleted,
    Throughput,
    TrainerProgress,
    TrajectoryExported,
    Wait,
    WeightsLoaded,
    WeightsPublished,
)
from areal_bus.base import Envelope, Stamp

START = 1_700_000_000.0
STEPS = 40
LOCATION = WeightsLocation(folder="weights/0", checksum="00", model="model")
_ids = count()

STARTED = RunStarted(
    recipe={
        "run": "gsm8k-grpo",
        "steps": STEPS,
        "model": "embedded",
        "task": {"dataset": "arithmetic"},
        "sampling": {"max_tokens": 64},
        "algorithm": {"name": "grpo"},
        "staleness_gate": {"max_staleness": 2, "max_concurrent": 48},
    },
    profile="embedded",
    reason="no CUDA device was found",
    folder="runs/gsm8k-grpo",
)


def sealed(message, after=0.0, sender="somebody"):
    """The message, published `after` seconds after the start."""
    return Envelope.seal(message, Stamp(id=f"m{next(_ids)}", sender=sender, time=START + after), "gsm8k-grpo")


def metrics(step):
    return {
        "reward_mean": 0.3 + 0.5 * (1 - math.exp(-step / 12)) + 0.03 * math.sin(3 * step),
        "loss": 0.01 / step,
        "entropy": 0.9 / step,
        "grad_norm": 0.4,
        "clip_frac": 0.02,
        "trained_tokens": 1200.0,
        "train_infer_logprob_diff_max": 2.5e-6,
        "token_staleness_mean": 0.8,
        "token_staleness_p99": 2.0,
        "token_staleness_max": 2.0,
        "masked_frac": 0.031,
        "mean_tokens": 27.3,
        "length_bias": 1.01,
    }


def stepped(step):
    return sealed(StepCompleted(step=step, metrics=metrics(step), sequences_checksum="00"), 60 + 8.0 * step)


def evaluated(step, accuracy, mode="sampled", failed=0):
    answer = "That makes 3+4=<<3+4=7>>7 eggs.\n#### 7" if step else "#### 9"
    sample = {
        "task": {"question": "Ana has 3 eggs [and buys 4]. How many?", "answer": "#### 7"},
        "output": answer,
        "reward": float(step > 0),
    }
    event = EvaluationCompleted(
        weight_version=step,
        mode=mode,
        tasks=200,
        failed=failed,
        accuracy=accuracy,
        mean_tokens=12.5 + step,
        reward_metrics={"shows_work": 0.4 + step / 100},
        samples=(sample,),
    )
    return sealed(event, 61 + 8.0 * step)


def abandoned(reason="agent", attempts_left=1, detail="ValueError: no such unit"):
    work = RunEpisode(
        episode="3.1", group="3", task=Task(id="t", data={}), sampling=SamplingParams(), attempts_left=attempts_left
    )
    return sealed(EpisodeAbandoned(work=work, reason=reason, detail=detail), 70)


def exported(episode="1.0"):
    turn = Interaction(
        id="i", prompt_suffix=b"", completion=TokenColumns.of([1], [0.0], [0]), finish_reason="stop", reward=1.0
    )
    trajectory = Trajectory(
        episode=episode, group=episode.partition(".")[0], attempt=1, task="t", reward=1.0, interactions=(turn,)
    )
    return sealed(TrajectoryExported(trajectory=trajectory), 65)


def beat(actor, process, *, handling=None, status=None, waits=(), after=400.0):
    event = Heartbeat(
        actor=actor,
        process=process,
        pid=4711,
        handling=handling or {},
        waits=tuple(Wait(name=name, since=START + since, deadline=deadline) for name, since, deadline in waits),
        status=status or {},
        cpu_seconds=12.34,
        peak_memory_bytes=300 * 2**20,
    )
    return sealed(event, after)


def gate(bound="none", running=37, after=400.0):
    status = {"bound": bound, "weight_version": 40, "running": running, "complete": 11, "in_batch": 0, "trained": 640}
    return beat("staleness_gate-0", "control", status=status, after=after)


def batcher(complete=11, after=400.0):
    return beat(
        "batcher-0", "control", status={"complete_groups": complete, "open_groups": 3, "batch_size": 16}, after=after
    )


def trainer(*, busy, after=400.0):
    return beat("trainer-0", "trainer", handling={"BatchFormed": 1} if busy else {}, after=after)


def throughput(side, started, seconds, tokens=1000, actor=""):
    event = Throughput(
        actor=actor or side, side=side, tokens=tokens, started=START + started, seconds=seconds, concurrent=48
    )
    return sealed(event, started + seconds)


def warming(done):
    return sealed(TrainerProgress(phase="warm start", done=done, total=600, metrics={"loss": 1.234}), 10)


def whole_run():
    """A run of 40 steps with three evaluations, two failures and an actor that died."""
    yield sealed(STARTED)
    yield sealed(WeightsPublished(weight_version=0, location=LOCATION), 60)
    yield sealed(WeightsLoaded(worker="inference_worker-0", weight_version=0, checksum="00"), 60)
    yield evaluated(0, 0.31)
    yield evaluated(0, 0.35, "greedy")
    for step in range(1, STEPS + 1):
        yield exported(f"{step}.0")
        yield stepped(step)
        yield sealed(WeightsPublished(weight_version=step, location=LOCATION), 60 + 8.0 * step)
        if step == 20:
            yield evaluated(step, 0.55)
            yield abandoned()
            yield abandoned("timeout", 0, "no answer within 120 s")
            yield sealed(
                ActorFailed(actor="rollout_worker-0", process="rollout_worker-0", reason="killed by signal 9"), 230
            )
    yield evaluated(STEPS, 0.71, failed=3)
    yield evaluated(STEPS, 0.74, "greedy")
    yield sealed(CheckpointCommitted(folder="runs/gsm8k-grpo/checkpoints/40", step=STEPS, cursor=99), 390)
    yield sealed(RunFinished(steps=STEPS), 400)
