"""The limit of a run is named from its log."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from areal_actors import cli
from areal_actors.core.values import WeightsLocation
from areal_actors.messages import BatchFormed, CapacityGranted, RunFinished, RunStarted, StepCompleted, WeightsPublished
from areal_actors.recipe.recipe import recorded_recipe
from areal_actors.replay.in_flight import InFlight
from areal_actors.replay.time_shares import TimeFold, TimeShares
from areal_actors.replay.why import advise
from areal_bus.recorded import FORMAT_VERSION, read_log

LOG = Path(__file__).parent / "recordings" / f"log-{FORMAT_VERSION}.xz"


def test_the_time_of_a_recorded_run_is_divided_without_a_rest(capsys):
    assert cli.main(["why", str(LOG), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    log = list(read_log(LOG))
    finished = next(place for place, one in enumerate(log) if one.subject == RunFinished.subject)
    seconds = max(one.time for one in log[: finished + 1]) - log[0].time
    assert sum(found["shares"]["trainer"].values()) == pytest.approx(seconds)
    assert sum(found["shares"]["bounds"].values()) == pytest.approx(found["shares"]["trainer"]["waits for batches"])
    assert (found["status"], found["step"], found["steps"]) == ("finished", 4, 4)
    assert found["verdict"].startswith("generation limits this run")
    assert found["limits"] == sorted(found["limits"], key=lambda limit: limit["episodes"])


def formed(step):
    return BatchFormed(
        step=step,
        groups=(),
        oldest_version=0,
        trained_trajectories=0,
        trained_tokens=0,
        dropped_trajectories=0,
        dropped_tokens=0,
    )


def published(version):
    return WeightsPublished(weight_version=version, location=WeightsLocation(folder="", checksum="", model=""))


def completed(step):
    return StepCompleted(step=step, metrics={}, sequences_checksum="")


def test_the_trainer_waits_from_its_weights_to_the_next_batch():
    recipe = next(read_log(LOG)).open(RunStarted)
    times, flying = TimeFold(), InFlight(4)
    granted = CapacityGranted(first_group=0, groups=2, weight_version=0)
    for time, message, bound in (
        (100.0, recipe, ""),
        (110.0, published(0), "weights"),
        (110.0, granted, "none"),
        (114.0, formed(0), "staleness"),
        (115.0, formed(1), "staleness"),
        (120.0, completed(1), "staleness"),
        (121.0, published(1), "staleness"),
        (124.0, completed(2), "none"),
        (125.0, published(2), "none"),
    ):
        times.receive(message, time, bound=bound, flying=flying)
        flying.receive(message, time)
    assert times.shares.trainer == {
        "prepares the model": 10,
        "waits for batches": 4,
        "trains": 6 + 3,
        "publishes weights": 2,
    }
    assert times.shares.bounds == {"none": 0, "staleness": 4}
    assert times.shares.stages == {"in the first call or before it": 4 * 8}
    assert times.shares.waiting() == pytest.approx(4 / 15)
    assert times.activity == "waits for batches"


@pytest.fixture(scope="module")
def recipe():
    return recorded_recipe(next(read_log(LOG)).open(RunStarted).recipe)


@pytest.mark.parametrize(
    ("bounds", "sentence"),
    [
        ({"staleness": 8.0, "none": 2.0}, "staleness_gate.max_staleness = 2 is reached in 80% of the waiting time"),
        ({"concurrency": 6.0, "none": 4.0}, "staleness_gate.max_concurrent = 16 is reached in 60%"),
        ({"evaluation": 9.0, "none": 1.0}, "raise evaluation.every_steps"),
        ({"weights": 7.0, "none": 3.0}, "weights are still to be loaded in 70%"),
        ({"steps": 7.0, "none": 3.0}, "a longer run has less of it"),
        ({"none": 10.0}, "no bound of the gate is reached in 100%"),
    ],
)
def test_the_bound_that_holds_most_of_the_waiting_time_is_named_with_its_remedy(bounds, sentence, recipe):
    shares = TimeShares(trainer={"waits for batches": 10.0, "trains": 5.0}, bounds=bounds)
    verdict, advice = advise(shares, recipe)
    assert verdict.startswith("generation limits this run: the trainer waits for batches in 67% of the time")
    assert any(sentence in line for line in advice), advice


@pytest.mark.parametrize(("policy", "advised"), [("mask", False), ("wait", True)])
def test_waiting_for_stragglers_is_named_where_the_recipe_asks_for_it(policy, advised, recipe):
    batcher = msgspec.structs.replace(recipe.batcher, exit_policy=policy)
    changed = msgspec.structs.replace(recipe, batcher=batcher)
    shares = TimeShares(trainer={"waits for batches": 10.0, "trains": 5.0}, bounds={"staleness": 5.0, "steps": 5.0})
    _, advice = advise(shares, changed)
    assert any('batcher.exit_policy = "wait" has' in line for line in advice) == advised
    assert any(
        f"staleness_gate.surplus_groups = {recipe.trainer.batch_size} asynchronous training does not wait" in line
        for line in advice
    )


def test_a_trainer_that_is_always_busy_is_the_limit(recipe):
    busy = {"waits for batches": 0.2, "trains": 9.8}
    verdict, advice = advise(TimeShares(trainer=busy, bounds_in_training={"staleness": 9.0, "none": 1.0}), recipe)
    assert verdict.startswith("training limits this run")
    assert any("fewer inference workers would do" in line for line in advice)


def test_a_run_that_is_not_there_is_named(capsys):
    assert cli.main(["why", "no-such-run"]) == cli.FAILED
    assert "no-such-run" in capsys.readouterr().err
