"""The state of a run from its history: field by field that of a fold over all events."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from support.audit_logs import STARTED, exported, published
from test_episode_counts import LOGS, sealed
from test_history import in_memory

from areal_actors.display.recorded_state import recorded_state
from areal_actors.display.run_state import RunState
from areal_actors.messages import (
    ActorFailed,
    ActorStarted,
    BatchRefused,
    CompletionRefused,
    EngineLost,
    EvaluationCompleted,
    LoadMeasured,
    LossEvaluated,
    RefusedSequence,
    RoleLoad,
    RunStalled,
    StepCompleted,
    TrajectoryDropped,
    WorkerJoined,
)

OF_NAMES = ("ends", "dropped_episodes")
"""Sets of names, with which counting goes on."""


def folded(log):
    state = RunState()
    for envelope in log:
        state.receive(envelope)
    return state


def fields_of_state(state):
    found = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    counts = {name: value for name, value in msgspec.structs.asdict(state.episodes).items() if name not in OF_NAMES}
    evaluations = [msgspec.structs.replace(one, samples=()) for one in state.evaluations]
    return found | {"episodes": counts, "evaluations": evaluations, "throughputs": list(state.throughputs)}


def trouble():
    """Events of all that a state shows of failures."""
    numbers = {"loss": 0.25, "kl": float("inf")}
    roles = {"reward_worker": RoleLoad(workers=1, slots=1, busy=0.5, waiting=0.0)}
    load = LoadMeasured(seconds=2.0, trainer_waits=0.5, episodes=3.0, allowed=4, roles=roles, engine_full=True)
    evaluation = {
        "tasks": 4,
        "failed": 1,
        "accuracy": 0.5,
        "mean_tokens": 3.0,
        "reward_metrics": {"parts": 0.5},
        "sampled_by": {0: 12},
    }
    refused = {"worker": "w", "session": "s", "episode": "0.0", "interaction": "i", "check": "routes", "cause": "c"}
    yield from (STARTED, published(0), ActorStarted(actor="trainer", process="trainer", pid=3))
    yield from (
        ActorFailed(actor="trainer", process="trainer", reason="it ended"),
        WorkerJoined(worker="a", role="r", host="h"),
        load,
    )
    yield from (
        EngineLost(worker="w", reason="gone"),
        CompletionRefused(**refused),
        LossEvaluated(weight_version=0, examples=2, metrics={"loss": 0.25}),
    )
    yield EvaluationCompleted(weight_version=0, mode="greedy", samples=({"output": "text"},), **evaluation)
    yield BatchRefused(
        step=0, sequences=(RefusedSequence(episode="0.0", cause="c"),), trained_sequences=0, cause="all were refused"
    )
    yield StepCompleted(step=1, metrics=numbers, sequences_checksum="c")
    yield RunStalled(sentence="nothing happens", seconds=9.0)


@pytest.mark.parametrize("name", LOGS)
def test_a_state_from_the_history_is_that_of_the_events(name):
    log = LOGS[name]()
    for end in (len(log), len(log) // 2, len(log) // 3):
        assert fields_of_state(recorded_state(in_memory(log[:end]))) == fields_of_state(folded(log[:end]))


@pytest.mark.parametrize(
    "more",
    [
        [],
        [exported("0.0", 0)],
        [exported("0.0", 0), TrajectoryDropped(episode="0.0", group="0", reason="stale"), exported("0.1", 0)],
        [
            exported("0.0", 0),
            RunStalled(sentence="again", seconds=1.0),
            TrajectoryDropped(episode="0.0", group="0", reason="stale"),
        ],
    ],
)
def test_a_state_has_every_failure_and_whether_the_run_stalls(more):
    log = list(sealed([*trouble(), *more]))
    assert fields_of_state(recorded_state(in_memory(log))) == fields_of_state(folded(log))
    assert folded(log).actor_failures
