"""Processes, addresses and ports of several gateways, and a run that has two."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.core.gateways import gateway_of_group, gateway_of_session
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import (
    ActorFailed,
    ActorStarted,
    EpisodeAbandoned,
    StepCompleted,
    TrajectoryExported,
    recorded_calls,
)
from areal_actors.processes.cpu_actors import CPU_ACTORS
from areal_actors.processes.fold_actors import BuildContext
from areal_actors.processes.process import actors_of_process
from areal_actors.recipe.load import load
from areal_actors.recipe.plan import plan
from areal_actors.supervision.nats_server import with_port

RECIPE = (
    'run = "several"\nsteps = 1\nmodel = "embedded"\n[task]\nagent = "online"\n[algorithm]\nname = "grpo"\ngroup_size'
    " = 2\n"
)


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def read(*overrides):
        Path("recipe.toml").write_text(RECIPE)
        return load([Path("recipe.toml")], overrides, CudaDevices(0, "none")).recipe

    return read


def test_every_gateway_is_a_process_with_a_port_of_its_own(read, tmp_path):
    recipe = read("actors.session_manager.count=2", "gateway.port=21000")
    assert actors_of_process(recipe, "gateway-1") == {"session_manager-1": "session_manager"}
    folder = RunFolder(tmp_path)
    (tmp_path / "secret").write_bytes(b"secret")
    built = [
        CPU_ACTORS["session_manager"](BuildContext(recipe=recipe, folder=folder, instance=f"session_manager-{n}"))
        for n in range(2)
    ]
    assert [(one.share.number, one.share.count, one.config.port) for one in built] == [(0, 2, 21000), (1, 2, 21001)]
    assert any("ports 21000 to 21001" in line for line in plan(recipe))


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        (
            "gateway.advertise=http://proxy:80",
            'found "http://proxy:80", which is one address for 3 gateways; name a host',
        ),
        ("gateway.port=65534", "found 65534, but 3 gateways take ports up to 65536; write at most 65533"),
        (
            "bus.port=21002",
            (
                "found 21000, but 3 gateways take the ports from 21000 to 21002, among them bus.port = 21002; write"
                " another"
            ),
        ),
    ],
)
def test_addresses_that_do_not_do_for_several_gateways_are_refused(read, override, complaint):
    with pytest.raises(RecipeError) as caught:
        read("actors.session_manager.count=3", "gateway.port=21000", override)
    assert complaint in str(caught.value)


async def test_ports_in_a_row_are_chosen_and_a_taken_one_is_named(read):
    recipe = with_port(read("actors.session_manager.count=2"))
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", recipe.gateway.port + 1)
    try:
        with pytest.raises(
            SetupError, match=rf"gateway.port: cannot listen on 127\.0\.0\.1:{recipe.gateway.port + 1} "
        ):
            with_port(recipe)
    finally:
        server.close()


@pytest.mark.long
@pytest.mark.slow
async def test_a_run_with_two_gateways_survives_the_death_of_one(live):
    run = live("steps=12", "actors.session_manager.count=2")
    async with run.listening():
        await run.until(StepCompleted, 3)
        killed = run.kill("gateway-1")
        await run.until(ActorFailed, 1)
    assert await run.ended() == 0, run.output()
    events = [event for _, event in await run.log()]
    assert {event.process for event in events if isinstance(event, ActorFailed)} == {"gateway-1"}
    pids = [event.pid for event in events if isinstance(event, ActorStarted) and event.actor == "session_manager-1"]
    assert len(pids) == 2
    assert pids[0] == killed
    lost = [event for event in events if isinstance(event, EpisodeAbandoned) and event.reason == "session"]
    assert all(gateway_of_group(event.work.group, 2) == "session_manager-1" for event in lost)
    exported = [event.trajectory for event in events if isinstance(event, TrajectoryExported)]
    assert len(exported) == len({one.episode for one in exported})
    assert {gateway_of_group(one.group, 2) for one in exported} == {"session_manager-0", "session_manager-1"}
    calls = [call for event in events for call in recorded_calls(event)]
    assert calls
    assert all(
        gateway_of_session(call.session) == gateway_of_group(call.episode.rpartition(".")[0], 2) for call in calls
    )
    assert [event.step for event in events if isinstance(event, StepCompleted)] == list(range(1, 13))
