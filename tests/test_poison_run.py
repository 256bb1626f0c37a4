"""Live runs with poison in them: they end with their exact number of steps, name what was bad, and train none of it."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.live_run import BY_SUBJECT, ROOT
from support.samples import interaction, trajectory
from test_resume import assert_every_step_was_taken_once, of

from areal_actors.core.values import TokenColumns, VersionSpan, pack_ids
from areal_actors.messages import (
    BatchRefused,
    CapacityGranted,
    CompletionRefused,
    EpisodeAbandoned,
    RunFinished,
    StepCompleted,
    TrajectoryExported,
    WeightsPublished,
)
from areal_bus.base import Stamp
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SUPPORT = Path(__file__).with_name("support")
ENGINE = (
    *("warm_start.steps=1", "warm_start.tail_steps=0", "evaluation.tasks=0"),
    *("generation.engine=scripted", "generation.scripted.shortest=8"),
)
AGENT = f"task.agent={SUPPORT / 'slow_agent.py'}:SlowAgent"
CHECKS = {
    "nan": "log-probability",
    "infinite": "log-probability",
    "minus-infinite": "log-probability",
    "positive": "log-probability",
    "vocabulary": "vocabulary",
    "too-many": "too many tokens",
    "fewer-logprobs": "column lengths",
    "unpublished": "weight version",
    "negative-version": "weight version",
    "gap": "version spans",
    "no-tokens": "no tokens",
    "unknown-reason": "finish reason",
    "no-end": "engine error",
    "raises": "engine error",
    "raises-anything": "engine error",
    "silent": "no answer",
    "endless": "no tokens",
}
"""Every way to spoil a completion that does not depend on how far the run is, and as what it is refused."""


async def test_an_engine_that_spoils_every_third_completion_in_another_way_trains_none_of_them(
    live, tmp_path, monkeypatch
):
    noted = tmp_path / "spoilt.jsonl"
    monkeypatch.setenv("POISON_KINDS", ",".join(CHECKS))
    monkeypatch.setenv("POISON_EVERY", "3")
    monkeypatch.setenv("POISON_LOG", str(noted))
    engine = f"generation.engine={ROOT / 'benchmarks' / 'poison_engine.py'}:PoisonEngine"
    run = live("steps=3", *ENGINE, engine, AGENT, "gateway.completion_seconds=5", "task.retries=4")
    assert await run.ended() == 0, run.output()
    events = [event for _, event in await run.log()]
    assert [event.step for event in of(events, StepCompleted)] == [1, 2, 3]
    assert of(events, RunFinished) == [RunFinished(steps=3)]
    spoilt = [json.loads(line) for line in noted.read_text().splitlines()]
    assert {one["kind"] for one in spoilt} == set(CHECKS)
    refused = Counter(event.check for event in of(events, CompletionRefused))
    assert refused == Counter(CHECKS[one["kind"]] for one in spoilt)
    poison = {bytes.fromhex(ids) for one in spoilt for ids in one["token_ids"]}
    exported = [turn.completion for event in of(events, TrajectoryExported) for turn in event.trajectory.interactions]
    given_up = [event for event in of(events, EpisodeAbandoned) if event.work.attempts_left == 0]
    assert len(exported) + len(given_up) == 3 * 4 * 4
    assert not [columns for columns in exported if columns.token_ids in poison]
    assert not of(events, BatchRefused)
    assert {event.reason for event in of(events, EpisodeAbandoned)} == {"engine"}
    assert run.processes_left() == []


def poisoned(kind, episode):
    """A trajectory as a gateway without checks would have written it into the log."""
    ids, logprobs, versions, reward = [300, 301, 302], [-1.0, -1.0, -1.0], ((0, 0, 3),), 1.0
    match kind:
        case "nan":
            logprobs[1] = math.nan
        case "positive":
            logprobs[1] = 2.0
        case "vocabulary":
            ids[1] = 2**31
        case "unpublished":
            versions = ((999, 0, 3),)
        case "gap":
            versions = ((0, 0, 1), (0, 2, 3))
        case "fewer":
            logprobs = logprobs[:-1]
        case "reward":
            reward = math.nan
        case "long":
            ids, logprobs, versions = ids * 3000, logprobs * 3000, ((0, 0, 9000),)
    columns = TokenColumns(
        token_ids=pack_ids(ids),
        logprobs=np.asarray(logprobs, dtype="<f4").tobytes(),
        versions=tuple(VersionSpan(weight_version=version, start=start, end=end) for version, start, end in versions),
    )
    turn = interaction(f"{episode}-poison", "x")
    turn = type(turn)(id=turn.id, prompt_suffix=turn.prompt_suffix, completion=columns, finish_reason="stop")
    return TrajectoryExported(trajectory=trajectory(episode, turn, reward=reward))


KINDS = ("nan", "positive", "vocabulary", "unpublished", "gap", "fewer", "reward", "long")


async def test_a_log_that_holds_poison_is_trained_without_it_resumed_and_comes_to_the_same_weights(live, tmp_path):
    """Groups 0, 2 and 4 are poison altogether, of 1, 3 and 5 one of three; the run is killed when the fifth step has
    been taken."""
    reward = tmp_path / "reward.py"
    reward.write_text("def score(task, output):\n    return sum(map(ord, output)) % 97 / 97\n")
    server = await EmbeddedServer.start(tmp_path / "nats")  # of one's own: only its processes publish to a run's
    run = live(
        f"bus.url=nats://{server.token}@127.0.0.1:{server.port}",
        *(
            "steps=8",
            *ENGINE,
            AGENT,
            "task.agent_options.seconds=2",
            f"task.reward={reward}:score",
            "checkpoint.every_steps=3",
        ),
        *(
            "trainer.batch_size=1",
            "algorithm.group_size=3",
            "staleness_gate.max_staleness=0",
            "batcher.exit_policy=keep",
        ),
    )
    kinds = itertools.cycle(KINDS)
    async with run.listening() as bus:
        for number in range(6):
            await run.until(CapacityGranted, number + 1)
            for member in range(1 if number % 2 else 3):
                event = poisoned(next(kinds), f"{number}.{member}")
                await bus.publish(event, Stamp(id=f"poison-{number}-{member}", sender="older-gateway", time=0.0))
        run.process.kill()
    run.resume()
    assert await run.ended(sound=False) == 0, run.output()
    bus = await NatsBus.connect(server.url, "gsm8k-grpo", name="reader", token=server.token, blobs=run.folder / "blobs")
    events = [envelope.open(BY_SUBJECT[envelope.subject]) async for envelope in bus.log()]
    await bus.close()
    await server.stop()
    assert_every_step_was_taken_once(events, 8)
    refused = {event.step: event for event in of(events, BatchRefused)}
    assert {step: (len(event.sequences), event.trained_sequences) for step, event in refused.items()} == {
        **dict.fromkeys((0, 2, 4), (3, 0)),
        **dict.fromkeys((1, 3, 5), (1, 2)),
    }
    causes = {
        row.cause.partition(" at token")[0].partition(":")[0] for event in refused.values() for row in event.sequences
    }
    assert causes == {
        "log-probability",
        "vocabulary",
        "weight version",
        "version spans",
        "column lengths",
        "reward",
        "context",
    }
    checksums = {event.weight_version: event.location.checksum for event in of(events, WeightsPublished)}
    assert [step for step in range(8) if checksums[step] == checksums[step + 1]] == [
        0,
        2,
        4,
    ], "and the others have learned something"
    assert run.processes_left() == []
