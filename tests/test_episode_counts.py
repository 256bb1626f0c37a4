"""Counts of episodes: one rule of what is an episode, its end, a failure and a surplus, and the same numbers from every
reader of a log."""

from __future__ import annotations

import io
import re
from functools import cache
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from support.audit_logs import RECIPE, STARTED, Log, exported, published, sound_log
from support.count_readers import READERS, abandoned, run_state
from support.simulation import GROUP, Simulation

from areal_actors.core.values import SamplingParams, Task
from areal_actors.display.run_state import RunState
from areal_actors.display.summary import summary
from areal_actors.display.view import RunView
from areal_actors.messages import (
    CapacityGranted,
    EpisodeAbandoned,
    EpisodeEvaluated,
    RunEpisode,
    RunFinished,
    RunStarted,
    TrajectoryDropped,
    TrajectoryExported,
)
from areal_actors.messages.episode_ends import EpisodeCounts, EpisodeEnds, EpisodeSet, describe_party
from areal_bus import read_log
from areal_bus.base import Envelope, Stamp

RECORDINGS = Path(__file__).parent / "recordings"
ENDS = {kind.subject for kind in (TrajectoryExported, EpisodeEvaluated, EpisodeAbandoned)}
COUNTED = ("episodes", "exported", "evaluated", "failures", "given up", "rejected", "surplus")


def sealed(events):
    """Envelopes of these events, in order."""
    for number, event in enumerate(events, start=1):
        envelope = Envelope.seal(event, Stamp(id=f"m{number}", sender="test", time=1.7e9 + number), "a")
        yield msgspec.structs.replace(envelope, sequence=number)


def numbered(envelopes):
    """The envelopes with consecutive places, as a log has them."""
    return [msgspec.structs.replace(envelope, sequence=number) for number, envelope in enumerate(envelopes, start=1)]


def doubled(envelopes, *, every=1):
    """The log in which every such end of an attempt comes a second time, at its end: another message with the same
    content."""
    ends = [envelope for envelope in envelopes if envelope.subject in ENDS][::every]
    again = [msgspec.structs.replace(end, id=f"{end.id}-again") for end in ends]
    over = [envelope for envelope in envelopes if envelope.subject == RunFinished.subject]
    return numbered([*(envelope for envelope in envelopes if envelope.subject != RunFinished.subject), *again, *over])


def surplus_log():
    """A step, after which one group is complete and not needed, and the other still runs; one attempt was rejected, one
    failed."""
    log = Log()
    log.add(STARTED, published(0), CapacityGranted(first_group=0, groups=4, weight_version=0))
    log.add(
        abandoned("0.0", "rejected", 1),
        exported("0.0", 0),
        exported("0.1", 0),
        abandoned("1.0", "timeout", 1),
        exported("1.0", 0),
    )
    log.add(abandoned("1.1", "rejected"), exported("2.0", 0), exported("2.1", 0))
    log.batch(0, ("0.0", "0.1"), ("1.0",))
    log.add(abandoned("3.0", "surplus"), abandoned("3.1", "surplus"))
    log.add(*(TrajectoryDropped(episode=name, group="2", reason="surplus") for name in ("2.0", "2.1")))
    work = RunEpisode(
        episode="greedy-1.0",
        group="greedy-1",
        task=Task(id="t", data={}),
        purpose="evaluate",
        sampling=SamplingParams(),
    )
    log.add(EpisodeEvaluated(work=work, reward=1.0, output="", completion_tokens=2))
    log.add(RunFinished(steps=1))
    return list(sealed(log.events))


@cache
def simulated(seed):
    """The log of genuine actors that were killed, whose runs start more groups than their steps need."""
    log = Simulation(seed, surplus=4, trouble=0.15, kills=6, retries=1).run().log
    started = msgspec.structs.replace(STARTED, recipe={**RECIPE, "steps": 5, "algorithm": {"group_size": GROUP}})
    return numbered(
        [_restarted(envelope, started) if envelope.subject == RunStarted.subject else envelope for envelope in log]
    )


def _restarted(envelope, started):
    again = Envelope.seal(started, Stamp(id=envelope.id, sender=envelope.sender, time=envelope.time), "a")
    return msgspec.structs.replace(again, sequence=envelope.sequence)


LOGS = {
    **{name: lambda name=name: list(read_log(RECORDINGS / f"{name}.xz")) for name in ("log-2", "log-3")},
    **{
        f"{name}, doubled": lambda name=name: doubled(list(read_log(RECORDINGS / f"{name}.xz")), every=3)
        for name in ("log-2", "log-3")
    },
    "an export twice": lambda: list(sealed(sound_log())),
    "each end twice": lambda: doubled(list(sealed(sound_log()))),
    "surplus": surplus_log,
    "surplus, doubled": lambda: doubled(surplus_log()),
    **{f"genuine actors {seed}": lambda seed=seed: simulated(seed) for seed in (1, 2, 3)},
    "genuine actors 1, doubled": lambda: doubled(simulated(1), every=2),
}


# ---------------------------------------------------------------- what each reader counts


def by_hand(log):
    """The numbers by a second rule, without any code of the readers: names and attempts in sets."""
    failed, rejected, over, exported, evaluated, surplus, dropped = set(), set(), {}, 0, 0, 0, set()
    for envelope in log:
        if envelope.subject == TrajectoryDropped.subject:
            event = envelope.open(TrajectoryDropped)
            dropped |= {event.episode} if event.reason == "surplus" else set()
        if envelope.subject == TrajectoryExported.subject:
            name = envelope.open(TrajectoryExported).trajectory.episode
            exported += name not in over
            over.setdefault(name, "exported")
        if envelope.subject == EpisodeEvaluated.subject:
            name = envelope.open(EpisodeEvaluated).work.episode
            evaluated += name not in over
            over.setdefault(name, "evaluated")
        if envelope.subject == EpisodeAbandoned.subject:
            event = envelope.open(EpisodeAbandoned)
            key = (event.work.episode, event.work.attempt, event.work.attempts_left)
            if event.work.episode in over:
                continue
            if event.reason == "surplus":
                surplus += 1
            else:
                (rejected if event.reason == "rejected" else failed).add(key)
            if not event.work.attempts_left:
                over[event.work.episode] = event.reason
    given_up = sum(reason not in {"exported", "evaluated", "surplus", "rejected"} for reason in over.values())
    numbers = (len(over), exported, evaluated, len(failed), given_up, len(rejected), surplus + len(dropped))
    return dict(zip(COUNTED, numbers, strict=True))


# ---------------------------------------------------------------- the table


@pytest.mark.parametrize("name", LOGS)
def test_all_readers_count_the_same(name, tmp_path):
    log = LOGS[name]()
    expected = by_hand(log)
    table = {reader: count(log, tmp_path) for reader, count in READERS.items()}
    assert table == {reader: {what: expected[what] for what in counts} for reader, counts in table.items()}
    assert {what for counts in table.values() for what in counts} == set(COUNTED)


def test_the_logs_have_what_is_counted():
    counts = {name: by_hand(log()) for name, log in LOGS.items()}
    assert len(counts) >= 10
    assert all(any(numbers[what] for numbers in counts.values()) for what in COUNTED)
    assert counts["surplus"] == counts["surplus, doubled"]
    assert counts["surplus"]["surplus"] == 4
    assert sum(numbers["surplus"] > 0 for name, numbers in counts.items() if name.startswith("genuine")) >= 3


def test_the_numbers_of_episodes_add_up():
    for log in LOGS.values():
        counts = run_state(log()).episodes
        parts = (counts.exported, counts.evaluated, counts.given_up, counts.rejected_episodes, counts.surplus_running)
        assert sum(parts) == counts.episodes


# ---------------------------------------------------------------- the rule


def test_surplus_is_its_own_row_and_never_a_failure():
    state, screen = run_state(surplus_log()), io.StringIO()
    view = RunView()
    view.state = state
    Console(file=screen, width=200).print(summary(state, []), view)
    rows = dict(re.findall(r"^ ?(failures|set aside) +(.*?) *$", screen.getvalue(), re.MULTILINE))
    assert "surplus" not in rows["failures"]
    assert "4 surplus" in rows["set aside"]
    assert "2 rejected" in rows["set aside"]


def test_the_first_end_of_an_episode_counts_and_a_late_one_does_not():
    ends = EpisodeEnds(group_size=2)
    assert ends.is_first("0.0", 1, attempts_left=1)
    assert not ends.is_first("0.0", 1, attempts_left=1), "two actors report the same attempt lost"
    assert ends.is_first("0.0", 2, attempts_left=0)
    assert not ends.is_first("0.0", 1), "the first attempt was exported after it was reported lost"
    assert not ends.is_first("0.0", 1, attempts_left=1)
    assert ends.is_first("0.1", 1)
    assert not ends.is_first("0.1", 1)


@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_set_of_episodes_keeps_no_names_of_whole_groups(size):
    episodes, names = EpisodeSet(), [f"{group}.{member}" for group in (2, 0, 1, 3) for member in range(max(size, 1))]
    assert all(episodes.add(name, size) for name in names)
    assert not any(episodes.add(name, size) for name in names)
    assert all(episodes.has(name) for name in names)
    assert not episodes.has("4.0")
    assert (episodes.whole_below, episodes.whole, bool(episodes.members)) == (
        (4, set(), False) if size else (0, set(), True)
    )


def test_counts_survive_a_snapshot():
    log = LOGS["genuine actors 1, doubled"]()
    first, whole = EpisodeCounts(), EpisodeCounts()
    for number, envelope in enumerate(log):
        state = RunState()
        message = state.receive(envelope)
        if message is None:
            continue
        if number == len(log) // 2:
            first = msgspec.msgpack.decode(msgspec.msgpack.encode(first), type=EpisodeCounts)
        assert first.receive(message) == whole.receive(message)
    assert first == whole


def test_who_ended_an_attempt_is_the_same_text_everywhere():
    by_model = msgspec.structs.replace(
        exported("0.0", 0).trajectory, ended_by="model", end_cause="its turns were used up: 4"
    )
    assert describe_party(TrajectoryExported(trajectory=by_model)) == "the model: its turns were used up: 4"
    assert describe_party(exported("0.0", 0)) == ""
    parties = [describe_party(abandoned("0.0", reason)) for reason in ("agent", "engine", "surplus")]
    assert parties == ["the agent", "the infrastructure", ""]
