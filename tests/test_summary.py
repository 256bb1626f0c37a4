import io
import json

import msgspec
import pytest
from matplotlib.image import imread
from rich.console import Console
from support import story

from areal_actors.display.curves import draw_curves
from areal_actors.display.run_state import RunState
from areal_actors.display.summary import read_throughputs, summary, write_summary
from areal_actors.display.throughput import busy_share, busy_while_training, overlap_share, tokens_per_second
from areal_actors.messages import KINDS, BestCheckpointChosen, RunFinished, Throughput
from areal_bus.base import LogSpan, Stamp
from areal_bus.errors import LogDamaged
from areal_bus.memory import MemoryBus

BY_SUBJECT = {kind.subject: kind for kind in KINDS}


def busy(side, started, seconds, tokens=100, actor=""):
    return Throughput(actor=actor or side, side=side, tokens=tokens, started=started, seconds=seconds)


def state_of(*envelopes):
    state = RunState()
    for envelope in envelopes:
        state.receive(envelope)
    return state


def printed(picture, width=100):
    console = Console(width=width, file=io.StringIO())
    console.print(picture)
    return " ".join(console.file.getvalue().split())


@pytest.mark.parametrize(
    ("generation", "training", "share"),
    [
        ([], [], 0.0),
        ([(0, 10)], [], 0.0),
        ([], [(0, 10)], 0.0),
        ([(0, 10)], [(10, 5)], 0.0),
        ([(0, 10)], [(2, 4)], 1.0),
        ([(0, 10)], [(5, 10)], 0.5),
        ([(0, 1), (2, 1), (4, 1)], [(0, 6)], 0.5),
        ([(0, 2), (1, 2), (1, 1)], [(0, 6)], 0.5),
        ([(4, 1), (0, 1)], [(0, 1), (4, 1), (8, 2)], 0.5),
        ([(0, 100)], [(10, 0)], 0.0),
    ],
)
def test_overlap_is_the_share_of_training_time_in_which_generation_was_busy(generation, training, share):
    throughputs = [busy("generation", *one) for one in generation] + [busy("training", *one) for one in training]
    assert overlap_share(throughputs) == pytest.approx(share)
    assert overlap_share(reversed(throughputs)) == pytest.approx(share)


def test_speed_adds_up_over_actors_and_counts_busy_time_only():
    first = [busy("generation", 0, 2, 100, "first"), busy("generation", 9, 2, 300, "first")]
    assert tokens_per_second([*first, busy("generation", 0, 1, 50, "second")]) == 150
    assert tokens_per_second([]) == 0
    assert busy_share([busy("training", 0, 5), busy("training", 8, 5)], (0.0, 10.0)) == pytest.approx(0.7)


@pytest.mark.parametrize("width", [80, 120])
def test_the_summary_reports_cost_and_learning(width):
    text = printed(summary(state_of(*story.whole_run()), [busy("generation", 0, 10), busy("training", 5, 10)]), width)
    for part in (
        "steps 40 of 40 in 6 min 40 s",
        "40 episodes exported, 48,000 tokens trained",
        "first step 0.344, last 0.800, best 0.803",
        "held out, sampled 0.310 → 0.710 of 200 tasks",
        "held out, greedy 0.350 → 0.740 of 200 tasks",
        "12.5 → 52.5 tokens",
        "0.4 → 0.8",
        "mean 0.80, max 2 (bound 2)",
        "3.1% a step, at most 3.1%",
        "at most 2.5e-06 in log p",
        "generation was busy in 50% of training time",
        (
            "1 attempt abandoned (agent); 1 attempt abandoned (timeout); 1 episode given up; 1 × rollout_worker-0:"
            " killed by signal 9"
        ),
        "Ana has 3 eggs [and buys 4]. How many?",
        "step 0, reward 0.0 #### 9",
        "step 40, reward 1.0 That makes 3+4=<<3+4=7>>7 eggs. #### 7",
    ):
        assert part in text


def test_a_run_that_ended_early_has_a_reason_and_no_invented_numbers():
    ended = story.sealed(RunFinished(steps=1, error="the trainer is gone"), 99)
    text = printed(summary(state_of(story.sealed(story.STARTED), story.stepped(1), ended), []))
    assert "1 of 40 in 1 min 39 s, ended early: the trainer is gone" in text
    assert "failures none" in text
    assert "held out" not in text
    assert "overlap" not in text


async def test_a_summary_of_a_state_that_was_folded_meanwhile_is_that_of_the_whole_log(tmp_path):
    bus, events = MemoryBus("gsm8k-grpo"), story.whole_run()
    for envelope in events:
        stamp = Stamp(id=envelope.id, sender="s", time=envelope.time)
        await bus.publish(envelope.open(BY_SUBJECT[envelope.subject]), stamp)
    log = [envelope async for envelope in bus.log()]
    whole = printed(await write_summary(bus, tmp_path))
    for folded in (len(log) // 2, len(log)):
        state = RunState()
        for envelope in log[:folded]:
            state.receive(envelope)
        assert printed(await write_summary(bus, tmp_path, folded=(state, log[folded - 1].sequence))) == whole
    await bus.close()


async def test_a_summary_is_read_from_the_log_and_left_in_the_folder(tmp_path):
    bus = MemoryBus("gsm8k-grpo")
    for envelope in story.whole_run():
        await bus.publish(
            envelope.open(BY_SUBJECT[envelope.subject]), Stamp(id=envelope.id, sender="s", time=envelope.time)
        )
    throughputs = [busy("generation", 0.0, 4.0), busy("training", 2.0, 4.0)]
    lines = [{"time": 1.0, "kind": "engine.throughput", **msgspec.to_builtins(one)} for one in throughputs]
    lines.append({"time": 1.0, "kind": "step.completed", "step": 1, "metrics": {"loss": None}})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"time": 3')
    text = printed(await write_summary(bus, tmp_path))
    await bus.close()
    assert "generation was busy in 50% of training time" in text
    assert "files metrics.jsonl: line 4 is truncated or damaged and ignored; the other 3 are used" in text
    assert "".join((tmp_path / "summary.txt").read_text().split()) == text.replace(" ", "")
    assert imread(tmp_path / "reward.png").shape[:2] == (600, 1080)
    assert read_throughputs(tmp_path / "nothing.jsonl") == []


def test_the_picture_is_drawn_for_any_run(tmp_path):
    draw_curves(state_of(*story.whole_run()), tmp_path / "whole.png")
    draw_curves(state_of(story.sealed(story.STARTED)), tmp_path / "empty.png")
    draw_curves(
        state_of(story.sealed(story.STARTED), story.stepped(1), story.evaluated(0, 0.5)), tmp_path / "short.png"
    )
    whole, empty = imread(tmp_path / "whole.png"), imread(tmp_path / "empty.png")
    assert (whole != 1).mean() > (empty != 1).mean() * 1.2


def test_the_best_checkpoint_is_named_with_what_made_it_the_best():
    chosen = BestCheckpointChosen(
        folder="runs/r/checkpoints/step-10", step=10, weight_version=11, metric="greedy", value=0.625
    )
    text = printed(summary(state_of(story.sealed(story.STARTED), story.stepped(1), story.sealed(chosen)), []))
    assert "best checkpoint step 10, greedy 0.625 on held-out data: runs/r/checkpoints/step-10" in text


@pytest.mark.parametrize(
    ("training", "share"),
    [([], 0.0), ([(5, 0)], 0.0), ([(0, 10)], 1.0), ([(0, 1), (3, 1)], 0.5), ([(100, 1), (109, 1)], 0.2)],
)
def test_the_trainer_s_share_is_of_the_time_from_its_first_step_to_its_last(training, share):
    throughputs = [busy("generation", 0, 200), *(busy("training", *one) for one in training)]
    assert busy_while_training(throughputs) == pytest.approx(share)


def test_the_summary_reports_trainer_utilization_and_the_limit_reached():
    state = state_of(story.sealed(story.STARTED), *map(story.stepped, range(1, 3)))
    text = printed(summary(state, [busy("training", 0, 1), busy("training", 3, 1)]), width=400)
    assert "trainer busy 50% of the time from its first step to its last" in text
    assert "limit actors.rollout_worker.concurrency = 64 is the lowest limit: 64 episodes at once, of the 384" in text


async def test_a_summary_of_a_damaged_log_is_of_what_comes_before(tmp_path):
    class Damaged:
        async def span(self):
            return LogSpan(first=1, last=2, bytes=0)

        async def log(self, *, after):
            assert after == 0
            yield story.sealed(story.STARTED)
            raise LogDamaged("event 2 is missing in the log of run r")

    text = printed(await write_summary(Damaged(), tmp_path))
    assert "log damaged" in text
    assert "event 2 is missing" in " ".join(text.split())
