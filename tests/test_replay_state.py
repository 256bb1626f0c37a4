"""The state of a run at any moment of its log agrees with what its actors had then."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from areal_actors import cli
from areal_actors.core.errors import RecipeError
from areal_actors.core.values import SamplingParams, Task
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import (
    CapacityGranted,
    EpisodeAbandoned,
    InteractionRecorded,
    InteractionsRecorded,
    RunEpisode,
    StepCompleted,
    TrajectoryDropped,
)
from areal_actors.replay.control import KINDS_BY_SUBJECT, ControlReplay
from areal_actors.replay.in_flight import InFlight
from areal_actors.replay.state import Moment
from areal_bus.recorded import FORMAT_VERSION, read_log

LOG = Path(__file__).parent / "recordings" / f"log-{FORMAT_VERSION}.xz"


def state(at, capsys):
    assert cli.main(["show", str(LOG), "--at", at, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_after_every_event_the_groups_in_flight_are_those_that_the_gate_counts():
    control, flying = ControlReplay(RunFolder(Path("no-such-run")), only=["staleness_gate"]), InFlight(4)
    most = compared = granted = 0
    for envelope in read_log(LOG):
        asyncio.run(control.receive(envelope))
        flying.receive(envelope.open(KINDS_BY_SUBJECT[envelope.subject]), envelope.time)
        actor = control.actors["staleness_gate-0"].actor
        granted += envelope.open(CapacityGranted).groups if envelope.subject == CapacityGranted.subject else 0
        if actor.ledger.granted != granted:
            continue  # the gate has granted groups, which the log has a few events later
        gate, compared = actor.status(), compared + 1
        assert len(flying.groups) == gate["running"] + gate["complete"] + gate["in_batch"], envelope.sequence
        exported = [
            all(one.phase in ("exported", "in batch") for one in group.values()) for group in flying.groups.values()
        ]
        assert sum(exported) == gate["complete"] + gate["in_batch"], envelope.sequence
        most = max(most, len(flying.groups))
    assert most == 12
    assert compared > 300
    assert flying.groups == {}


def test_a_moment_is_an_event_a_step_or_a_time(capsys):
    log = list(read_log(LOG))
    step = next(one for one in log if one.subject == StepCompleted.subject and one.open(StepCompleted).step == 2)
    at_step = state("step-2", capsys)
    assert (at_step["event"], at_step["step"], at_step["steps"]) == (step.sequence, 2, 4)
    assert state(str(step.sequence), capsys) == at_step
    seconds = (log[step.sequence].time + step.time) / 2 - log[0].time
    assert state(f"{seconds:.6f}s", capsys)["event"] == step.sequence
    end = state("end", capsys)
    assert (end["event"], end["groups"], end["step"]) == (len(log), {}, 4)
    assert state("0", capsys)["event"] == 0
    with pytest.raises(RecipeError, match="write an event as 1200"):
        Moment.parse("yesterday")
    assert cli.main(["show", str(LOG), "--at", "step two"]) == cli.WRONG_RECIPE


def test_the_state_is_printed(capsys):
    assert cli.main(["show", str(LOG), "--at", "250"]) == 0
    printed = capsys.readouterr().out
    assert "after event 250" in printed
    assert "step 2 of 4, weight version 1; inference workers: 1 at version 1" in printed
    assert "groups in flight: 12; episodes: 16 in batch, 30 exported, 2 scored" in printed


def work(attempt, left):
    return RunEpisode(
        episode="3.0",
        group="3",
        attempt=attempt,
        attempts_left=left,
        task=Task(id="t", data={}),
        sampling=SamplingParams(),
    )


def test_an_attempt_that_is_abandoned_begins_again_or_fails_and_a_dropped_group_leaves():
    flying = InFlight(2)
    flying.receive(CapacityGranted(first_group=3, groups=1, weight_version=0), 1.0)
    flying.receive(EpisodeAbandoned(work=work(1, 1), reason="agent", detail=""), 2.0)
    episode = flying.groups["3"]["3.0"]
    assert (episode.phase, episode.attempt, episode.calls) == ("not begun", 2, 0)
    counts = {"prompt_tokens": 5, "completion_tokens": 2, "finish_reason": "stop", "weight_version": 4}
    calls = [
        InteractionRecorded(session="s", episode="3.0", interaction="i", attempt=attempt, **counts)
        for attempt in (1, 2)
    ]
    flying.receive(InteractionsRecorded(recorded=(calls[0],)), 2.5)
    assert (episode.phase, episode.calls) == ("not begun", 0)
    flying.receive(InteractionsRecorded(recorded=tuple(calls)), 2.5)
    assert (episode.phase, episode.calls) == ("sampling", 1)
    flying.receive(EpisodeAbandoned(work=work(2, 0), reason="agent", detail=""), 3.0)
    assert (episode.phase, episode.since) == ("failed", 3.0)
    flying.receive(TrajectoryDropped(episode="3.1", group="3", reason="incomplete group"), 4.0)
    assert flying.groups == {}
