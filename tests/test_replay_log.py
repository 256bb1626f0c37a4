"""A recorded log replays without a difference, and shows the first difference of another rule, setting or damaged
log."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from areal_actors import cli
from areal_actors.batching.batcher import Batcher
from areal_actors.core.errors import RewardError, SetupError
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import BatchFormed, CapacityGranted, EvaluationCompleted, TrajectoryExported
from areal_actors.processes.cpu_actors import CPU_ACTORS
from areal_actors.processes.fold_actors import BuildContext
from areal_actors.recipe.recipe import Recipe
from areal_actors.replay.control import FOLDS, ControlReplay
from areal_actors.replay.fold import NOTHING
from areal_actors.rewards import resolve_reward
from areal_actors.testing import replayed, rescored
from areal_bus import recorded
from areal_bus.base import Envelope, Stamp
from areal_bus.errors import LogUnavailable, RecordingDamaged
from areal_bus.recorded import FORMAT_VERSION, Header, Tape, read_log

RECORDINGS = Path(__file__).parent / "recordings"
LOG = RECORDINGS / f"log-{FORMAT_VERSION}.xz"
NO_FOLDER = RunFolder(Path("no-such-run"))


@pytest.fixture(scope="module")
def log():
    return list(read_log(LOG))


@pytest.fixture(scope="module")
def recipe(log):
    return msgspec.convert(msgspec.msgpack.decode(log[0].body)["recipe"], Recipe)


def replay(log, *settings, only=()):
    control = ControlReplay(NO_FOLDER, only=only, settings=settings)

    async def play():
        async def envelopes():
            for envelope in log:
                yield envelope

        return [difference async for difference in control.differences(envelopes())]

    return control, asyncio.run(play())


def sealed(envelope, message):
    """The envelope of another message in the place of this one."""
    stamp = Stamp(id=envelope.id, sender=envelope.sender, time=envelope.time, cause=envelope.cause)
    return msgspec.structs.replace(Envelope.seal(message, stamp, envelope.run), sequence=envelope.sequence)


def written(path, envelopes):
    with path.open("wb") as file:
        recorded._write(file, Header(holds="log", run="copy"))
        for envelope in envelopes:
            recorded._write(file, envelope)
    return path


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("log-*.xz")), ids=lambda path: path.stem)
def test_a_recording_of_every_released_format_loads_and_replays(path):
    control, differences = replay(read_log(path))
    assert differences == []
    assert control.left_out == {}
    assert set(control.actors) == {f"{kind}-0" for kind in FOLDS if kind != "example_source"}
    assert control.actors["task_source-0"].work > 50
    assert all(control.actors[f"{kind}-0"].equal >= 2 for kind in ("staleness_gate", "batcher", "evaluator"))


def test_the_present_format_has_a_recording():
    assert LOG.is_file(), (
        "a new format needs a recording: `areal-actors export` of a short run, as tests/recordings/log-N.xz"
    )


def test_other_settings_show_where_an_actor_would_have_decided_otherwise(log):
    _, differences = replay(log, "staleness_gate.max_staleness=0", only=["staleness_gate"])
    first = differences[0]
    assert (first.actor, first.subject) == ("staleness_gate-0", CapacityGranted.subject)
    assert first.fields["groups"] == (12, 4)
    assert first.status["bound"] == "staleness"
    assert log[first.sequence - 1].open(CapacityGranted).groups == 12

    _, differences = replay(log, "staleness_gate.max_staleness=1", only=["batcher-0"])
    changed = [one for one in differences if one.fields]
    assert set(changed[0].fields) == {"oldest_version"}
    assert all(one.recorded != NOTHING != one.replayed for one in changed)


def test_a_log_with_another_message_a_lost_one_or_an_extra_one_differs(log):
    place = next(number for number, one in enumerate(log) if one.subject == BatchFormed.subject)
    batch = log[place].open(BatchFormed)

    other = [
        *log[:place],
        sealed(log[place], msgspec.structs.replace(batch, trained_tokens=batch.trained_tokens + 1)),
        *log[place + 1 :],
    ]
    _, (found,) = replay(other, only=["batcher"])
    assert found.fields == {"trained_tokens": (batch.trained_tokens + 1, batch.trained_tokens)}
    assert (found.sequence, log[found.cause - 1].subject) == (place + 1, TrajectoryExported.subject)

    _, differences = replay(log[:place] + log[place + 1 :], only=["batcher"])
    assert [(one.recorded, one.subject) for one in differences] == [(NOTHING, BatchFormed.subject)]

    extra = msgspec.structs.replace(log[place], id="another")
    _, (found,) = replay([*log[: place + 1], extra, *log[place + 1 :]], only=["batcher"])
    assert (found.replayed, found.cause) == (NOTHING, 0)


def test_a_log_without_its_beginning_is_refused_with_the_remedy(log):
    with pytest.raises(SetupError, match=r'begins with event 41.*log\.keep = "all"'):
        replay(log[40:])


def test_a_run_resumed_with_other_settings_continues_from_its_state(log, recipe):
    at = 200
    build = BuildContext(recipe=recipe, folder=NO_FOLDER, instance="batcher-0")
    control, differences = replay(log[:at], only=["batcher"])
    assert differences == []
    replay_of_one = control.actors["batcher-0"]
    replay_of_one.continue_with(CPU_ACTORS["batcher"](build))
    whole, _ = replay(log[:at], only=["batcher"])
    assert replay_of_one.actor.snapshot() == whole.actors["batcher-0"].actor.snapshot()
    assert replay_of_one.actor.snapshot().batches_formed > 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--actor", "session_manager"), "only actors that are folds over events"),
        (("--actor", "batcher-7x"), "only actors that are folds over events"),
        (("staleness_gate.max_stalness=1",), "max_staleness"),
        (("another.log",), "no run"),
        (("--trainer", "trainer.batch_size=2"), "takes no settings"),
    ],
)
def test_wrong_words_are_answered_with_the_remedy(words, sentence, capsys, tmp_path):
    run = () if "another.log" in words else (str(LOG),)
    assert cli.main(["audit", "--replay", *run, *words, "--folder", str(tmp_path)]) in (1, 2)
    assert sentence in capsys.readouterr().err


def test_the_command_prints_what_is_equal_and_the_first_difference(log, capsys, tmp_path):
    assert cli.main(["audit", "--replay", str(LOG)]) == 0
    printed = capsys.readouterr().out
    assert f"replayed {len(log):,} events" in printed
    assert printed.count("equal ") == 4
    assert "DIFFERENT" not in printed

    place = next(number for number, one in enumerate(log) if one.subject == EvaluationCompleted.subject)
    event = msgspec.structs.replace(log[place].open(EvaluationCompleted), accuracy=0.5)
    copy = written(tmp_path / "copy.log", [*log[:place], sealed(log[place], event), *log[place + 1 :]])
    assert cli.main(["audit", "--replay", str(copy)]) == 1
    printed = capsys.readouterr().out
    assert "accuracy: recorded 0.5, replayed" in printed
    assert "its state:" in printed

    assert cli.main(["audit", "--replay", str(copy), "--all", "--json", "--actor", "evaluator"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["events"], found["count"], found["complete"]) == (len(log), 1, True)
    assert found["differences"][0]["fields"]["accuracy"][0] == 0.5

    assert cli.main(["audit", "--replay", str(LOG), "batcher.exit_policy=keep"]) == 0
    assert "oldest_version" in capsys.readouterr().out


class Lenient(Batcher):
    """A batcher of a user's own."""

    def _advance(self):
        for event in super()._advance():
            yield msgspec.structs.replace(event, oldest_version=0) if isinstance(event, BatchFormed) else event


def test_three_lines_replay_a_recording_to_an_actor_or_a_reward(recipe):
    def batcher(kind):
        algorithm, trainer, gate = recipe.algorithm, recipe.trainer, recipe.staleness_gate
        limits = {"batch_size": trainer.batch_size, "max_staleness": gate.max_staleness, "steps": recipe.steps}
        return kind(recipe.batcher, group_size=algorithm.group_size, **limits)

    assert replayed(LOG, batcher(Batcher)) == []
    found = replayed(LOG, batcher(Lenient), instance="batcher-0")
    assert found
    assert {name for one in found for name in one.fields} == {"oldest_version"}

    scores = rescored(LOG, resolve_reward("gsm8k"))
    assert len(scores) > 50
    assert not [score for score in scores if score.differs() or score.differing_metrics()]

    def strict(task, output):
        if not output:
            raise RewardError("no output")
        return 1.0

    now = rescored(LOG, strict)
    assert [score.now for score in now] == [1.0 if score.output else None for score in now]
    assert all(score.differs() for score in now if score.recorded == 0.0)
    names = {tuple(score.differing_metrics()) for score in now if score.output}
    assert names == {("shows_work",)}, "numbers that a rule gave beside the reward are compared, too"


def test_an_actor_that_asks_others_needs_a_tape(log):
    class Asking(Batcher):
        async def receive(self, message, context):
            await context.ask(message, timeout=1.0)
            yield message

    with pytest.raises(LogUnavailable, match="batcher-0 sent a"):
        replayed(LOG, Asking(None, group_size=4, batch_size=4, max_staleness=2, steps=4), instance="batcher-0")


def test_a_cut_or_damaged_compressed_recording_gives_its_good_part(tmp_path, log):
    content = LOG.read_bytes()
    cut = tmp_path / "cut.xz"
    cut.write_bytes(content[: len(content) // 2])
    with pytest.raises(RecordingDamaged):
        list(read_log(cut))
    noise = tmp_path / "noise.xz"
    noise.write_bytes(b"no recording at all")
    with pytest.raises(RecordingDamaged, match="not a recording"):
        list(read_log(noise))
    tape = tmp_path / "actor.tape"
    Tape.record(tape).close()
    assert cli.main(["audit", "--replay", str(tape)]) == 1


def test_an_export_under_a_compressed_name_is_compressed(tmp_path, log):
    class OneLog:
        run = "copy"

        async def log(self):
            for envelope in log:
                yield envelope

    for name in ("run.log", "run.log.gz", "run.log.xz"):
        assert asyncio.run(recorded.export_log(OneLog(), tmp_path / name)) == len(log)
        assert list(read_log(tmp_path / name)) == log
    assert (tmp_path / "run.log.xz").stat().st_size < (tmp_path / "run.log").stat().st_size / 4
