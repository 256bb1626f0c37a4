"""Real runs over data of one's own: groups without signal, the best checkpoint, parquet."""

from __future__ import annotations

import re

import datasets
import msgspec
import pytest
from support.live_run import LiveRun

from areal_actors.messages import (
    BatchFormed,
    BestCheckpointChosen,
    CheckpointCommitted,
    EvaluationCompleted,
    RunFinished,
    TrajectoryDropped,
    TrajectoryExported,
)
from areal_actors.tasks.arithmetic import rows

pytestmark = pytest.mark.slow


@pytest.fixture
def live(tmp_path):
    runs = []

    def start(reward, *settings):
        (tmp_path / "rewards.py").write_text(f"def reward(task, output):\n    return {reward}\n")
        run = LiveRun(tmp_path / "runs", f"task.reward={tmp_path}/rewards.py:reward", *settings)
        runs.append(run)
        return run

    datasets.disable_progress_bars()
    yield start
    for run in runs:
        run.abort()


@pytest.mark.long
async def test_a_run_on_solved_tasks_saves_what_it_has_and_ends_with_a_sentence(live):
    run = live(
        "1.0", "steps=9", "evaluation.tasks=0", "batcher.dynamic_sampling=true", "batcher.max_filtered_batches=2"
    )
    assert await run.ended() == 1, run.output()
    log = [event for _, event in await run.log()]
    (finished,) = (event for event in log if isinstance(event, RunFinished))
    assert (
        finished.error
        == "batcher.dynamic_sampling has dropped 8 groups since the last batch: all the rewards of each were equal, so"
        " the tasks are solved or out of reach; take other tasks, or raise batcher.max_filtered_batches; ended after"
        " 0 of 9 steps; the checkpoint of step 0 is complete"
    )
    assert {event.reason for event in log if isinstance(event, TrajectoryDropped)} == {"filtered"}
    assert not any(isinstance(event, BatchFormed) for event in log)
    assert (run.folder / "checkpoints" / "step-0" / "model.safetensors").is_file()


@pytest.mark.long
async def test_a_run_on_a_parquet_file_trains_groups_with_signal_and_keeps_its_best_checkpoint(live, tmp_path):
    made = [{"problem": row["question"], "answer": row["answer"]} for row in rows("train", 60, 0)]
    datasets.Dataset.from_list(made).to_parquet(tmp_path / "sums.parquet")
    run = live(
        "float(len(output) % 2)",
        "steps=4",
        f"task.dataset={tmp_path}/sums.parquet",
        'task.columns={ question = "problem" }',
        "task.held_out=10",
        "batcher.dynamic_sampling=true",
        "evaluation.every_steps=2",
        "evaluation.periodic_tasks=6",
        "checkpoint.keep_best=sampled",
        "checkpoint.keep_last=1",
    )
    assert await run.ended() == 0, run.output()
    log = [event for _, event in await run.log()]
    rewards: dict[str, set[float]] = {}
    for event in log:
        if isinstance(event, TrajectoryExported):
            rewards.setdefault(event.trajectory.group, set()).add(event.trajectory.reward)
    trained = [number for event in log if isinstance(event, BatchFormed) for number in event.group_numbers()]
    assert len(trained) == 16
    assert all(rewards[str(number)] == {0.0, 1.0} for number in trained)

    evaluations = {
        event.weight_version: event
        for event in log
        if isinstance(event, EvaluationCompleted) and event.mode == "sampled"
    }
    assert set(evaluations[0].sampled_by) == {0}
    assert set(evaluations[4].sampled_by) == {4}
    best = [event for event in log if isinstance(event, BestCheckpointChosen)][-1]
    assert best.value == max(event.common_reward_mean for version, event in evaluations.items() if version)
    folder = run.folder / "checkpoints"
    assert (folder / "best").resolve() == (folder / f"step-{best.step}").resolve()
    assert msgspec.json.decode((folder / "best.json").read_bytes(), type=BestCheckpointChosen) == best
    saved = {event.step for event in log if isinstance(event, CheckpointCommitted)}
    assert saved in ({2, 4}, {3, 4}), "what is asked for after step 2 may be written when step 3 is taken"
    summary = (run.folder / "summary.txt").read_text()
    assert re.search(rf"best checkpoint +step {best.step}, sampled {best.value:.3f} on held-out data", summary)
