import asyncio
import base64
import contextlib
import io
import json
import zlib
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from support import story
from support.clock import jumping_time

from areal_actors.display.fit import sparkline
from areal_actors.display.monitor import follow, print_json, print_messages
from areal_actors.display.sentences import duration, plain_line
from areal_actors.display.view import RunView
from areal_actors.messages import KINDS, RunFinished, RunStalled, StepCompleted, WeightsPublished
from areal_bus.base import Envelope, Stamp
from areal_bus.memory import MemoryBus

ROOT = Path(__file__).parent.parent
BY_SUBJECT = {kind.subject: kind for kind in KINDS}


def shown(view, width=120):
    console = Console(width=width, file=io.StringIO(), record=True, force_terminal=True)
    console.print(view)
    text = console.export_text()
    assert all(len(line) <= width for line in text.splitlines())
    return " ".join(text.replace("│", " ").split())


def view_of(*envelopes):
    view = RunView()
    for envelope in envelopes:
        view.receive(envelope)
    return view


def unfinished_run():
    return list(story.whole_run())[:-1]


def test_a_view_without_messages_shows_that_it_waits():
    assert "waiting for the run" in shown(RunView())


@pytest.mark.parametrize("width", [80, 120])
def test_the_warm_start_shows_its_progress(width):
    text = shown(view_of(story.sealed(story.STARTED), story.warming(240), story.trainer(busy=True, after=11)), width)
    for part in (
        "gsm8k-grpo",
        "embedded: no CUDA device was found",
        "warm start 240/600",
        "loss 1.23",
        "0/40",
        "all actors wait for the trainer to prepare the first weights",
    ):
        assert part in text
    assert "reward" not in text


@pytest.mark.parametrize("width", [80, 120])
def test_a_run_under_way_shows_everything_that_is_known(width):
    view = view_of(*unfinished_run(), story.gate(), story.batcher(), story.trainer(busy=False))
    text = shown(view, width)
    for part in (
        "40/40",
        "8.0 s a step, 0 s left",
        "0.800 ▁",
        "from 0.344",
        "sampled 0.310 → 0.710",
        "of 200 tasks at step 40, 3 without a score",
        "greedy 0.350 → 0.740",
        "27.3 tokens · shows_work 0.8 · length bias 1.01",
        "mean 0.80 · p99 2 · max 2 · 3.1% of tokens masked",
        "at most 2.5e-06 in log p",
        "2 attempts abandoned (agent 1, timeout 1), 1 episode given up; last 3.1: no answer within 120 s",
        "1 × rollout_worker-0: killed by signal 9",
        "step 40, runs/gsm8k-grpo/checkpoints/40",
        "control 4711 12.3 300",
    ):
        assert part in text
    assert "warm start" not in text


def test_a_missing_metric_is_not_shown():
    view = view_of(
        story.sealed(story.STARTED),
        story.sealed(StepCompleted(step=1, metrics={"reward_mean": 0.25}, sequences_checksum=""), 9),
    )
    text = shown(view)
    assert "1/40" in text
    assert "0.250" in text
    for absent in ("staleness", "masked", "answers", "a step", "None", "nan"):
        assert absent not in text


def test_time_left_follows_the_pace_of_the_last_steps():
    steps = [story.stepped(step) for step in range(1, 11)]
    assert "10/40" in shown(view_of(story.sealed(story.STARTED), *steps))
    assert "8.0 s a step, 4 min 0 s left" in shown(view_of(story.sealed(story.STARTED), *steps))


def test_a_repeated_step_of_a_restarted_trainer_counts_once():
    view = view_of(story.sealed(story.STARTED), *map(story.stepped, [1, 2, 3, 2, 3, 4]))
    assert [step.number for step in view.state.steps] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("beats", "sentence"),
    [
        (
            [story.gate(), story.batcher(), story.trainer(busy=False)],
            "the trainer waits for a batch: 11 of 16 groups are complete, 37 are running; no limit reached",
        ),
        (
            [story.gate("concurrency", 48), story.batcher(3), story.trainer(busy=False)],
            "3 of 16 groups are complete, 48 are running; limit reached: max_concurrent (48)",
        ),
        ([story.gate(), story.batcher(), story.trainer(busy=True)], "step 41 is trained while 37 groups are generated"),
        (
            [story.gate("staleness", 0), story.batcher(), story.trainer(busy=True)],
            "generation waits for the trainer: limit reached: max_staleness (2)",
        ),
        (
            [story.gate("baseline", 0), story.batcher(0), story.trainer(busy=False)],
            (
                "the trainer waits for a batch: 0 of 16 groups are complete, 0 are running; the evaluation before the"
                " first step is running"
            ),
        ),
        (
            [story.gate("evaluation", 0), story.batcher(0), story.trainer(busy=False)],
            "0 of 16 groups are complete, 0 are running; an evaluation between two steps is running",
        ),
        (
            [story.gate(), story.batcher(), story.beat("trainer-0", "trainer", handling={"RunStarted": 1})],
            "the trainer waits for a batch: 11 of 16 groups are complete",
        ),
        (
            [story.beat("session_manager-0", "gateway", waits=[("Generate from inference_worker-0", 380, 1.0)])],
            "session_manager-0 waits longest, 20 s for Generate from inference_worker-0",
        ),
    ],
)
def test_who_waits_for_whom_is_one_sentence(beats, sentence):
    assert sentence in shown(view_of(*unfinished_run(), *beats))


def test_short_waits_and_waits_for_work_are_not_mentioned():
    waits = [("Generate from inference_worker-0", 398, 1.0), ("RunEpisode", 100, 0.0)]
    assert "waits longest" not in shown(
        view_of(*unfinished_run(), story.beat("rollout_worker-0", "rollout_worker-0", waits=waits))
    )


def test_speed_is_that_of_busy_time_with_the_share_of_it():
    throughputs = [story.throughput("generation", 370 + n, 0.5, actor=f"inference_worker-{n % 2}") for n in range(30)]
    throughputs += [story.throughput("training", 380, 6.0, tokens=3000)]
    text = shown(view_of(*unfinished_run(), *throughputs, story.gate()))
    assert "generation 4,000 tokens/s, busy 50%" in text
    assert "training 500 tokens/s, busy 20%" in text


def test_a_stall_is_red_until_something_moves():
    view = view_of(
        story.sealed(story.STARTED),
        story.sealed(RunStalled(sentence="nothing has moved for 61 s [really]", seconds=61.0), 90),
    )
    console = Console(width=100, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(view)
    assert "\x1b[1;31mnothing has moved for 61 s [really]" in console.file.getvalue()
    view.receive(story.exported())
    assert "stalled" not in shown(view)


def test_the_end_is_reported_with_its_reason():
    assert "Finished after 40 steps." in shown(view_of(*story.whole_run()))
    ended = story.sealed(RunFinished(steps=3, error="interrupted"), 99)
    assert "Ended early after 3 steps: interrupted" in shown(view_of(story.sealed(story.STARTED), ended))


def test_messages_of_a_newer_version_are_passed_over():
    unknown = msgspec.structs.replace(story.sealed(story.STARTED), subject="run.teleported")
    assert view_of(unknown).receive(unknown) is None
    envelope = story.stepped(1)
    body = msgspec.msgpack.encode({**msgspec.msgpack.decode(envelope.body), "planet": "Mars"})
    newer = Envelope.seal(
        StepCompleted(step=1, metrics={}, sequences_checksum=""), Stamp(id="x", sender="s", time=1.0), "r"
    )
    newer = msgspec.structs.replace(newer, body=body, checksum=zlib.crc32(body))
    assert view_of(newer).state.steps[0].number == 1


def test_a_course_becomes_a_line_of_bars():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([1.0]) == "▁"
    assert len(sparkline(list(range(1000)), width=20)) == 20
    assert sparkline(list(range(1000)), width=20)[::19] == "▁█"


@pytest.mark.parametrize(
    ("groups", "equal", "words"),
    [
        (8.0, 0.0, ""),
        (8.0, 3.0, "equal rewards in 3 of 8 groups"),
        (8.0, 8.0, "no signal: equal rewards within each of 8 groups"),
        (1.0, 1.0, "no signal: equal rewards in its only group"),
    ],
)
def test_a_step_reports_how_many_groups_have_equal_rewards(groups, equal, words):
    step = StepCompleted(
        step=1, metrics={"reward_mean": 0.0, "groups": groups, "groups_without_signal": equal}, sequences_checksum="00"
    )
    assert plain_line(step) == ", ".join(filter(None, ("step 1: reward 0.000", words)))
    text = shown(view_of(story.sealed(story.STARTED), story.sealed(step, 9)))
    assert f"from 0.000 {words}".strip() in text
    assert ("equal rewards" in text) == bool(words)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "0 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2:05 h")]
)
def test_durations_in_words(seconds, words):
    assert duration(seconds) == words


def test_plain_lines_report_the_events():
    lines = [
        line for envelope in story.whole_run() if (line := plain_line(envelope.open(BY_SUBJECT[envelope.subject])))
    ]
    assert all("\n" not in line for line in lines)
    assert lines[0] == "run started, profile embedded: no CUDA device was found; files in runs/gsm8k-grpo"
    assert lines[1] == "held out at step 0, sampled: 0.310 of 200 tasks, 12.5 tokens, shows_work 0.4"
    expected = "step 1: reward 0.344, loss 0.0100, entropy 0.900, 27.3 tokens, staleness mean 0.80, max 2, 3.1% masked"
    assert expected in lines
    assert "episode 3.1 abandoned (attempt 1) by agent: ValueError: no such unit" in lines
    assert "episode 3.1 abandoned (given up) by timeout: no answer within 120 s" in lines
    assert "actor rollout_worker-0 failed: killed by signal 9" in lines
    assert lines[-2:] == ["checkpoint of step 40 saved: runs/gsm8k-grpo/checkpoints/40", "finished after 40 steps"]
    assert (
        plain_line(RunStalled(sentence="nothing has moved for 61 s", seconds=61.0))
        == "stalled: nothing has moved for 61 s"
    )
    assert plain_line(WeightsPublished(weight_version=0, location=story.LOCATION)) is None


# ---------------------------------------------------------------- on a bus


async def publish(bus, envelope):
    await bus.publish(
        envelope.open(BY_SUBJECT[envelope.subject]), Stamp(id=envelope.id, sender=envelope.sender, time=envelope.time)
    )


@pytest.fixture
async def time_jumps():
    with jumping_time():
        yield


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.usefixtures("time_jumps")
async def test_a_follower_shows_history_then_what_happens_until_the_end(live):
    bus = MemoryBus("gsm8k-grpo")
    envelopes = list(story.whole_run())
    for envelope in envelopes[:30]:
        await publish(bus, envelope)
    console = Console(width=100, file=io.StringIO(), force_terminal=live, color_system=None)
    view = RunView()
    following = asyncio.create_task(follow(bus, view, console, live=live))
    await asyncio.sleep(0.1)
    for envelope in (
        story.warming(300),
        story.warming(301),
        story.trainer(busy=True),
        story.throughput("training", 100, 5.0),
    ):
        await publish(bus, envelope)
    await asyncio.sleep(0.1)
    assert not following.done()
    for envelope in envelopes[30:]:
        await publish(bus, envelope)
    await asyncio.wait_for(following, 300)
    text = console.file.getvalue()
    if live:
        assert text.startswith("\x1b[?1049h")
        assert "\x1b[?1049l" in text, "the ordinary screen is back"
        assert "Finished after 40 steps." in shown(view)
        assert "trainer-0" in view.state.beats
        assert len(view.state.throughputs) == 1
    else:
        lines = [line.split(" ", 1)[1] for line in text.splitlines()]
        assert lines[0].startswith("run started")
        assert [line for line in lines if line.startswith("warm start")] == ["warm start 300/600, loss 1.23"]
        assert lines[-1] == "finished after 40 steps"
        assert len([line for line in lines if line.startswith("step ")]) == 40
    await bus.close()


@pytest.mark.usefixtures("time_jumps")
async def test_messages_of_a_subject_are_printed_from_the_first_to_the_newest():
    bus = MemoryBus("gsm8k-grpo")
    await publish(bus, story.stepped(1))
    await publish(bus, story.exported())
    console = Console(width=60, file=io.StringIO())
    printing = asyncio.create_task(print_messages(bus, "trajectory.>", console))
    await asyncio.sleep(0.05)
    await publish(bus, story.exported())
    await publish(bus, story.stepped(2))
    await asyncio.sleep(0.05)
    printing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await printing
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 2
    assert "#2 trajectory.exported from somebody: {" in lines[0]
    assert '"token_ids": "<4 bytes>"' in lines[1]
    await bus.close()


@pytest.mark.usefixtures("time_jumps")
async def test_json_has_every_message_whole(capsys):
    bus = MemoryBus("gsm8k-grpo")
    await publish(bus, story.stepped(1))
    await publish(bus, story.exported())
    printing = asyncio.create_task(print_json(bus, ">"))
    await asyncio.sleep(0.05)
    await publish(bus, story.stepped(2))
    await asyncio.sleep(0.05)
    printing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await printing
    first, exported, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert [line["sequence"] for line in (first, exported, last)] == [1, 2, 3]
    assert [first["message"]["step"], last["message"]["step"]] == [1, 2]
    assert exported["subject"] == "trajectory.exported"
    (turn,) = exported["message"]["trajectory"]["interactions"]
    assert len(base64.b64decode(turn["completion"]["token_ids"])) == 4
    assert set(exported) == {"time", "sequence", "subject", "sender", "id", "cause", "claim", "message"}
    await bus.close()
