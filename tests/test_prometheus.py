"""Metrics of a run for Prometheus: read by Prometheus' own parser, equal to the state of the run."""

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support import story

from areal_actors.core.errors import SetupError
from areal_actors.display.prometheus import RunCollector, serving
from areal_actors.display.run_state import RunState
from areal_actors.messages import RunStalled


def state_of(*envelopes):
    state = RunState()
    for envelope in envelopes:
        state.receive(envelope)
    return state


def samples(state):
    """Values by name and labels, without the label of the run, which all have."""
    registry = CollectorRegistry()
    registry.register(RunCollector(lambda: state))
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        assert family.documentation.endswith(".")
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("run") == state.run
            found[sample.name, *sorted(labels.values())] = sample.value
    return found


def test_a_run_before_its_first_event_has_metrics():
    found = samples(RunState())
    assert found["areal_steps_total",] == 0
    assert found["areal_weight_version",] == -1


def test_a_whole_run_is_what_its_state_is():
    state = state_of(*story.whole_run(), story.gate(), story.trainer(busy=True))
    found = samples(state)
    assert (found["areal_steps_total",], found["areal_steps_wanted",]) == (40, 40)
    assert found["areal_run_info", "arithmetic", "embedded", "embedded", "grpo"] == 1
    for name, value in state.steps[-1].metrics.items():
        assert found["areal_step", name] == pytest.approx(value)
    assert found["areal_held_out", "accuracy", "sampled"] == pytest.approx(0.71)
    assert found["areal_attempts_abandoned_total", "agent"] == state.episodes.abandoned["agent"]
    assert found["areal_trajectories_exported_total",] == state.episodes.exported
    assert found["areal_actor_failures_total", "rollout_worker-0"] == 1
    assert found["areal_ended", "finished"] == 1
    assert found["areal_process_cpu_seconds_total", "control"] == pytest.approx(12.34)
    assert found["areal_actor_status", "running", "staleness_gate-0"] == 37
    assert found["areal_actor_seconds_since_heartbeat", "control", "staleness_gate-0"] >= 0


def test_a_stall_is_a_metric_until_there_is_progress():
    started, stalled = (
        story.sealed(story.STARTED),
        story.sealed(RunStalled(sentence="nothing has moved for 61 s", seconds=61.0), 90),
    )
    assert [samples(state_of(*events))["areal_stalled",] for events in ([started], [started, stalled])] == [0, 1]
    assert samples(state_of(started, stalled, story.stepped(1)))["areal_stalled",] == 0


async def test_it_is_served_as_prometheus_asks_for_it():
    state = state_of(*story.whole_run())
    async with serving(lambda: state, "0") as url, aiohttp.ClientSession() as client, client.get(url) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        families = {family.name for family in text_string_to_metric_families(await answer.text())}
    assert {"areal_steps", "areal_step", "areal_held_out"} <= families


@pytest.mark.parametrize(
    ("host", "status"), [("127.0.0.1", 200), ("localhost:9464", 200), ("[::1]", 200), ("evil.example", 403), ("", 403)]
)
async def test_on_loopback_only_names_of_this_machine_are_answered(host, status):
    async with (
        serving(RunState, "0") as url,
        aiohttp.ClientSession() as client,
        client.get(url, headers={"Host": host}) as answer,
    ):
        assert answer.status == status
        assert ("areal_" in await answer.text()) == (status == 200)


@pytest.mark.parametrize("address", ["9" * 5000, "", "http", "99999", "localhost", ":"])
async def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(SetupError, match=r"--prometheus: .* write a port, as in 9464, or HOST:PORT"):
        async with serving(RunState, address):
            pass


async def test_a_port_that_is_taken_is_refused():
    async with serving(RunState, "0") as url:
        taken = url.rpartition(":")[2].partition("/")[0]
        with pytest.raises(SetupError, match=f"cannot listen on {taken} .* choose another port"):
            async with serving(RunState, taken):
                pass
