"""Rare events of a run are reported in every display: the live view, plain lines, `metrics.jsonl`, the summary."""

from __future__ import annotations

import io
import json

import msgspec
import pytest
from rich.console import Console
from support import story

from areal_actors.display.sentences import plain_line
from areal_actors.display.summary import summary
from areal_actors.display.view import RunView
from areal_actors.messages import (
    BatchRefused,
    BestCheckpointChosen,
    BusRestarted,
    CheckpointDamaged,
    CompletionRefused,
    DiskLow,
    EngineMismatch,
    EventLoopBlocked,
    FilterExhausted,
    RefusedSequence,
    RunFinished,
    RunStopping,
    StepDiffered,
    TrainerRolledBack,
    TrainingHalted,
)
from areal_actors.metrics.metrics_file import Metrics

BEST = BestCheckpointChosen(
    folder="runs/r/checkpoints/step-30", step=30, weight_version=30, metric="greedy", value=0.94
)
USED_UP = FilterExhausted(reason="batcher.filter has dropped 160 groups since the last batch")
FELL_BACK = TrainerRolledBack(
    step=7, weight_version=4, reason="rank 1 died: killed by signal 9\nits log is in logs/trainer-0.1"
)

MISMATCH = EngineMismatch(
    step=7,
    worker="inference_worker-1",
    kl=0.214,
    vetoed_frac=0.02,
    tokens=400,
    steps=3,
    recycle=True,
    episode="12.3",
    position=61,
    token=44,
    recorded_logprob=-4.0,
    trainer_logprob=-1.5,
)
MISMATCH_SHOWN = (
    "inference_worker-1: KL 0.214 nats per token and 2.0% of tokens vetoed, 3 steps in a row, worst token 44 of episode"
    " 12.3 (engine -4.000, trainer -1.500); its engine is recycled"
)
REFUSED = CompletionRefused(
    worker="inference_worker-1",
    session="s",
    episode="3.1",
    interaction="s-1",
    check="log-probability",
    cause="log-probability at token 3: nan; a finite number of at most 0 was expected",
)
VOCABULARY = "vocabulary at token 12: id 999"
LEFT_OUT = BatchRefused(
    step=4, sequences=(RefusedSequence(episode="3.1", sequence=7, token=12, cause=VOCABULARY),), trained_sequences=15
)
WHOLE = BatchRefused(
    step=4, sequences=(RefusedSequence(episode="3.1", cause="reward: reward nan"),) * 2, trained_sequences=15
)
SKIPPED = BatchRefused(step=5, trained_sequences=0, cause="the loss of step 5 is nan")
BLOCKED = EventLoopBlocked(
    seconds=8.2, line="agent.py:7", innermost="ssl.py:713 in load_default_certs", episode="3.1", episodes=64
)
BLOCKED_SHOWN = (
    "episode 3.1 and 63 more blocked the event loop for 8.2 s at agent.py:7 (in ssl.py:713 in load_default_certs): "
    "make the client once, in the agent's `__init__`, or take `http_client`: each new one loads certificates"
)
DAMAGED = CheckpointDamaged(
    step=40,
    folder="checkpoints/set-aside-step-40",
    weight_version=20,
    reason="config.json has 9 bytes, manifest.json says 10",
)
GONE = CheckpointDamaged(step=40, folder="", weight_version=0, reason="checkpoints/step-40 is not there")
DIFFERED = StepDiffered(
    step=7, logged="a" * 32, found="b" * 32, reason="arithmetic does not repeat to the last bit on this device"
)
LOW = DiskLow(
    free_bytes=1, needed_bytes=2, reason="25 MiB are free on the disk of runs/a, a checkpoint and the log need 13"
)
DAMAGED_SHOWN = (
    "checkpoint of step 40 damaged, set aside as checkpoints/set-aside-step-40; went back to the checkpoint of step 20:"
    " config.json has 9 bytes, manifest.json says 10"
)
DIFFERED_SHOWN = (
    "step 7 repeated has bbbbbbbbbbbbbbbb, the log has aaaaaaaaaaaaaaaa: arithmetic does not repeat to the last bit on"
    " this device"
)
HALTED = TrainingHalted(reason="5 steps in a row changed no weight")


def view_of(*messages):
    view = RunView()
    for after, message in enumerate(messages):
        view.receive(story.sealed(message, after))
    return view


def printed(picture):
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(picture)
    return " ".join(console.export_text().replace("│", " ").split())


def test_the_best_checkpoint_so_far_stands_in_the_picture_and_in_the_summary():
    view = view_of(
        story.STARTED,
        BestCheckpointChosen(folder="step-20", step=20, weight_version=20, metric="greedy", value=0.9),
        BEST,
    )
    expected = "step 30, greedy 0.940 on held-out data: runs/r/checkpoints/step-30"
    assert f"best {expected}" in printed(view)
    assert f"best checkpoint {expected}" in printed(summary(view.state, []))
    assert "step-20" not in printed(view)


def test_why_a_run_is_stopping_is_shown_until_it_is_over():
    view = view_of(story.STARTED, USED_UP, RunStopping(reason=f"{USED_UP.reason}; ended"))
    assert f"stopping {USED_UP.reason}" in printed(view)
    view.receive(story.sealed(RunFinished(steps=3, error=f"{USED_UP.reason}; ended after 3 of 40 steps"), 9))
    assert "stopping" not in printed(view)
    assert f"ended early: {USED_UP.reason}; ended after 3 of 40 steps" in printed(summary(view.state, []))


def test_a_trainer_rollback_counts_among_the_failures():
    view = view_of(story.STARTED, FELL_BACK)
    expected = "1 × trainer rolled back to step 4: rank 1 died: killed by signal 9"
    assert expected in printed(view)
    assert expected in printed(summary(view.state, []))


def test_an_engine_that_disagrees_with_the_trainer_is_named_in_the_picture_and_in_the_summary():
    view = view_of(story.STARTED, MISMATCH)
    assert f"1 × engine mismatch: {MISMATCH_SHOWN}" in printed(view)
    assert f"1 × engine mismatch: {MISMATCH_SHOWN}" in printed(summary(view.state, []))


@pytest.mark.parametrize(
    ("message", "expected"), [(DAMAGED, DAMAGED_SHOWN), (DIFFERED, DIFFERED_SHOWN), (LOW, LOW.reason)]
)
def test_damage_and_a_disk_that_fills_stand_in_the_picture_and_in_the_summary(message, expected):
    view = view_of(story.STARTED, message)
    assert expected[:120] in printed(view)
    assert expected in printed(summary(view.state, []))


def test_refused_completions_are_counted_for_each_worker_and_the_last_cause_is_shown():
    view = view_of(story.STARTED, REFUSED, msgspec.structs.replace(REFUSED, worker="inference_worker-0"), REFUSED)
    expected = "2 completions of inference_worker-1 refused, 1 completion of inference_worker-0 refused"
    assert f"{expected}; last log-probability at token 3: nan" in printed(view)
    assert expected.replace(", ", "; ") in printed(summary(view.state, []))


def test_rows_and_steps_that_could_not_be_trained_are_counted():
    view = view_of(story.STARTED, LEFT_OUT, WHOLE, SKIPPED)
    expected = "3 sequences not trainable, 1 step skipped"
    assert f"{expected}; last step 6: the loss of step 5 is nan" in printed(view)
    assert expected in printed(summary(view.state, []))


def test_lines_that_block_the_agents_loop_stand_in_the_picture_and_in_the_summary_with_their_seconds():
    view = view_of(story.STARTED, BLOCKED, msgspec.structs.replace(BLOCKED, seconds=2.0, episode="4.0", episodes=1))
    expected = "episode 3.1 and 63 more blocked the event loop for 10.2 s (2 times together) at agent.py:7"
    assert expected in printed(view)
    assert expected in printed(summary(view.state, []))


def test_why_training_was_halted_is_shown_as_the_run_stops():
    assert f"stopping {HALTED.reason}" in printed(view_of(story.STARTED, HALTED))


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (BEST, "best checkpoint: step 30, greedy 0.940 on held-out data: runs/r/checkpoints/step-30"),
        (USED_UP, "nothing left to learn from: batcher.filter has dropped 160 groups since the last batch"),
        (FELL_BACK, "trainer rolled back to step 4 and repeats the steps to 7: rank 1 died: killed by signal 9"),
        (MISMATCH, f"engine mismatch: {MISMATCH_SHOWN}"),
        (REFUSED, f"completion of inference_worker-1 refused in episode 3.1: {REFUSED.cause}"),
        (
            LEFT_OUT,
            (
                "batch refused, 1 sequence left out, trained on 15 sequences: step 5: sequence 7 of episode 3.1:"
                f" {VOCABULARY}"
            ),
        ),
        (
            WHOLE,
            "batch refused, 2 sequences left out, trained on 15 sequences: step 5: episode 3.1: reward: reward nan",
        ),
        (SKIPPED, "batch refused, 0 sequences left out, skipped, weights unchanged: step 6: the loss of step 5 is nan"),
        (BLOCKED, BLOCKED_SHOWN),
        (DAMAGED, DAMAGED_SHOWN),
        (
            GONE,
            (
                "checkpoint of step 40 damaged; went back to the first weights and the whole log: checkpoints/step-40"
                " is not there"
            ),
        ),
        (DIFFERED, DIFFERED_SHOWN),
        (LOW, f"disk nearly full: {LOW.reason}"),
        (HALTED, "training halted: 5 steps in a row changed no weight"),
    ],
)
async def test_each_has_a_plain_line_and_a_line_in_the_metrics_file(send, tmp_path, message, line):
    assert plain_line(message) == line
    await send(Metrics(tmp_path / "metrics.jsonl"), message)
    (written,) = (json.loads(row) for row in (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert written["kind"] == message.subject
    expected = {name: written[name] for name in message.__struct_fields__}
    assert expected == json.loads(msgspec.json.encode(message))


def test_a_server_that_was_restarted_is_counted_with_how_long_it_was_away():
    outages = [
        BusRestarted(reason="nats-server (pid 7) ended with signal SIGKILL", seconds=seconds, restarts=1)
        for seconds in (0.4, 1.25)
    ]
    expected = (
        "nats-server restarted 2 times, down for at most 1.2 s; last: nats-server (pid 7) ended with signal SIGKILL"
    )
    view = view_of(story.STARTED, *outages)
    assert expected in printed(view)
    assert expected in printed(summary(view.state, []))
    assert plain_line(outages[0]) == "nats-server restarted after 0.4 s: nats-server (pid 7) ended with signal SIGKILL"
