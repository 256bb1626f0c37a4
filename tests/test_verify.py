"""The hash chain of a log, the draws of `verify`, and what it finds in a recorded log that was changed."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from areal_actors import cli
from areal_actors.messages import EpisodeScored, TrajectoryExported
from areal_actors.proof.chain import LogChain
from areal_actors.proof.proof import FORMAT, Proof, files_of_recipe, read_proof, write_proof
from areal_actors.replay.verification import Drawn
from areal_actors.replay.verified_log import VerifiedLog, draw_steps
from areal_bus.base import Envelope, Stamp
from areal_bus.recorded import FORMAT_VERSION, read_log

LOG = Path(__file__).parent / "recordings" / f"log-{FORMAT_VERSION}.xz"


@pytest.fixture(scope="module")
def events():
    return list(read_log(LOG))


def head_of(events):
    chain = LogChain()
    for envelope in events:
        chain.add(envelope)
    return chain.head


def test_the_head_depends_on_every_event_its_stamp_and_its_place(events):
    few = events[:20]
    heads = {head_of(few), head_of(few[:-1]), head_of([*few[:5], few[6], few[5], *few[7:]])}
    for field, value in (
        ("body", few[9].body + b"\0"),
        ("time", few[9].time + 1e-3),
        ("sender", "x"),
        ("subject", "y"),
    ):
        heads.add(head_of([*few[:9], msgspec.structs.replace(few[9], **{field: value}), *few[10:]]))
    assert len(heads) == 7


def test_a_chain_is_continued_from_its_head(events):
    chain = LogChain()
    for envelope in events[:10]:
        chain.add(envelope)
    later = LogChain(chain.head, chain.sequence, chain.first)
    for envelope in events[10:20]:
        later.add(envelope)
    assert (later.head, later.sequence, later.first) == (head_of(events[:20]), 20, 1)


def read(events, completions=5):
    log = VerifiedLog(completions, Random(1))
    for envelope in events:
        log.receive(envelope)
    return log


def test_a_sound_log_has_no_fault_and_draws_no_more_than_asked(events):
    log = read(events)
    assert log.faults == log.auditor.audit.all_faults() == []
    assert (log.scored, len(log.drawn), len(log.steps), sorted(log.published)) == (64, 5, 4, [0, 1, 2, 3, 4])
    assert sorted(log.saved) == [2, 4]
    assert set(log.heads.values()) == {head_of(events[:place]) for place in log.heads}


def with_reward(envelope, reward):
    event = envelope.open(TrajectoryExported)
    changed = TrajectoryExported(trajectory=msgspec.structs.replace(event.trajectory, reward=reward))
    stamp = Stamp(id=envelope.id, sender=envelope.sender, time=envelope.time, cause=envelope.cause)
    return msgspec.structs.replace(Envelope.seal(changed, stamp, envelope.run), sequence=envelope.sequence)


def test_a_reward_that_was_not_scored_is_named_with_its_event(events):
    place = next(place for place, envelope in enumerate(events) if envelope.subject == TrajectoryExported.subject)
    forged = [*events[:place], with_reward(events[place], 0.75), *events[place + 1 :]]
    (fault,) = read(forged).faults
    assert fault.startswith(f"event {events[place].sequence}: episode 0.0 was exported with reward 0.75, but scored")


def test_every_episode_is_drawn_about_as_often(events):
    scored = [envelope for envelope in events if envelope.subject == EpisodeScored.subject]
    counts = {}
    for seed in range(200):
        log = VerifiedLog(8, Random(seed))
        for envelope in scored:
            log._draw(envelope, envelope.open(EpisodeScored))
        for envelope in log.drawn:
            counts[envelope.sequence] = counts.get(envelope.sequence, 0) + 1
    expected = 200 * 8 / len(scored)
    assert len(counts) == len(scored)
    assert all(0.2 * expected < count < 2.5 * expected for count in counts.values()), counts


def test_steps_are_reached_from_the_nearest_state_before_and_the_last_is_always_computed():
    stretches = draw_steps(20, {0, 5, 10, 19}, 3, Random(4))
    assert stretches.by_start[19] == 20
    for step in stretches.drawn:
        start = max(state for state in (0, 5, 10, 19) if state < step)
        assert stretches.by_start[start] >= step
    assert set(stretches.by_start) <= {0, 5, 10, 19}


def test_the_probability_of_a_miss_is_that_of_the_draws():
    assert Drawn("steps", 40, 10).miss(0.3) == pytest.approx(0.7**10)
    assert Drawn("rewards", 64, 64).miss(0.01) == 0
    random, misses = Random(0), 0
    for _ in range(2000):
        misses += all(step > 12 for step in draw_steps(40, set(range(40)), 10, random).drawn)
    assert misses / 2000 == pytest.approx(0.7**10, abs=0.01)


def test_a_proof_is_read_as_written_and_names_the_files_of_the_recipe(tmp_path):
    (tmp_path / "agent.py").write_text("x = 1\n")
    files = files_of_recipe({"task": {"agent": "agent.py:Agent", "reward": "gsm8k", "columns": ["agent.py"]}}, tmp_path)
    assert list(files) == ["agent.py"]
    proof = Proof(
        format=FORMAT,
        run="r",
        step=4,
        first=1,
        sequence=9,
        head="a",
        manifest="b",
        recipe="c",
        program="d",
        files=files,
    )
    write_proof(tmp_path, proof)
    assert read_proof(tmp_path) == proof
    assert msgspec.structs.replace(proof, step=5).digest() != proof.digest()


def test_a_folder_without_a_proof_is_refused_with_the_remedy(tmp_path, capsys):
    assert cli.main(["audit", "--verify", str(tmp_path)]) == cli.FAILED
    assert "audit RUN --recompute" in capsys.readouterr().err
