"""Each tracker's own library, offline, holds the numbers of `metrics.jsonl`: `just environments trackers` installs
them."""

from __future__ import annotations

import json
import math
import subprocess

import pytest
from support.audit_logs import RECIPE
from support.live_run import RECIPE as GSM8K
from support.live_run import ROOT, SMALL
from test_reader import run_folder
from test_track import append, event, step

from areal_actors.cli import main
from areal_actors.core.trackers import TRACKERS
from areal_actors.messages import RunFinished

PYTHON = ROOT / ".environments" / "trackers" / "bin" / "python"
STATUSES = {"tensorboard": "STATUS_SUCCESS", "wandb": "finished", "mlflow": "FINISHED", "trackio": "run finished"}
FAILED = {"tensorboard": "STATUS_FAILURE", "wandb": "ended early", "mlflow": "FAILED", "trackio": "run ended early"}
VARIABLES = (
    *("WANDB_MODE", "WANDB_API_KEY", "WANDB_DIR", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"),
    *("TRACKIO_DIR", "TRACKIO_PROJECT", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"),
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not PYTHON.exists(), reason="`just environments trackers` makes the interpreter that this needs"
    ),
]


@pytest.fixture(autouse=True)
def local(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def holds(tracker, folder, run):
    """The run as the tracker's library reads it back: points by metric and step, the config, the status."""
    command = [PYTHON, ROOT / "tests" / "support" / "tracked_points.py", tracker, folder, run]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout)
    points = {(metric, number): float(value) for metric, number, value in found["points"]}
    assert len(points) == len(found["points"])  # no point is there twice
    return points, found["config"], found["status"]


def written(place):
    """The points of `metrics.jsonl`."""
    points = {}
    for row in map(json.loads, (place / "metrics.jsonl").read_text().splitlines()):
        if row["kind"] == "step.completed":
            points |= {
                (name, row["step"]): math.nan if value is None else value for name, value in row["metrics"].items()
            }
        elif row["kind"] == "evaluation.completed":
            numbers = {
                name: row[name]
                for name in ("tasks", "failed", "accuracy", "reward_mean", "common_reward_mean", "mean_tokens")
            }
            numbers |= {f"reward/{name}": value for name, value in row["reward_metrics"].items()}
            points |= {
                (f"evaluation/{row['mode']}/{name}", row["weight_version"]): float(value)
                for name, value in numbers.items()
            }
    return points


def close_to(points, tracker):
    return pytest.approx(points, rel=1e-6 if tracker == "tensorboard" else 0.0, abs=0.0, nan_ok=True)


@pytest.mark.long
@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_tracker_holds_the_numbers_of_the_file_and_each_once(tracker, tmp_path):
    place = run_folder(
        tmp_path, "a", recipe={**RECIPE, "model": "embedded"}, rewards=[0.25, float("nan"), 0.1], held_out=[0.1, 0.9]
    )
    command = ["export", "a", "--to", tracker, "--python", str(PYTHON), "--folder", str(tmp_path)]
    assert main(command) == 0
    points, config, status = holds(tracker, tmp_path, "a")
    assert points == close_to(written(place), tracker)
    assert len(points) == 3 + 2 * 6
    assert config["model"] == "embedded"
    nested = config.get("trainer", {}).get("batch_size")
    assert int(nested or config["trainer.batch_size"]) == 2
    assert status == STATUSES[tracker]

    append(place, step(3, 0.1), step(4, 1 / 3, loss=2.5), event(RunFinished(steps=4, error="the disk is full")))
    assert main(command) == 0
    points, _, status = holds(tracker, tmp_path, "a")
    assert points == close_to(written(place), tracker)
    assert points["loss", 4] == 2.5
    assert status == FAILED[tracker]


@pytest.mark.long
def test_a_run_sends_itself_to_all_trackers(tmp_path):
    """`[track]` of a live run: all four libraries hold what it wrote."""
    settings = [*SMALL, "task.dataset=arithmetic", "steps=2", f"folder={tmp_path}", "run=a"]
    trackers = [f"track.to={json.dumps(TRACKERS)}", f"track.python={PYTHON}", "track.stop_seconds=600"]
    assert main(["run", str(GSM8K), *settings, *trackers]) == 0
    for tracker in TRACKERS:
        points, config, status = holds(tracker, tmp_path, "a")
        assert points == close_to(written(tmp_path / "a"), tracker)
        assert ("reward_mean", 2) in points
        assert ("evaluation/greedy/accuracy", 2) in points
        assert config["seed"] in (0, "0")
        assert status == STATUSES[tracker]
