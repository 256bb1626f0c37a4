"""The monitor of docs/monitoring.md runs beside a live run, in a process that has nats-py and msgspec and nothing of
this package."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest
from support.doc_blocks import BLOCKS

from areal_actors.messages import RunStarted, StepCompleted, TrajectoryExported

SECONDS = 500.0
"""Time limit of each part of a run of seconds, on a machine that is busy with other things."""
ALLOWED = ("nats", "msgspec", "zstandard")
LAUNCHER = """\
import importlib.util, runpy, sys
sys.path[:] = [path for path in sys.path if "site-packages" not in path] + [{packages!r}]
found = [name for name in ("areal_actors", "areal_bus", "numpy") if importlib.util.find_spec(name)]
assert not found, found
runpy.run_path({program!r}, run_name="__main__")
"""


def monitor() -> str:
    """The program of the page."""
    [block] = [block for block in BLOCKS if block.page.name == "monitoring.md" and block.language == "python"]
    assert len(block.text.splitlines()) <= 26, "it is short"
    return block.text


async def first_completed_step(path: Path) -> dict[str, object]:
    """The request of the page for an earlier event, with the monitor's credentials."""
    page: dict[str, Any] = {"__name__": "page"}
    exec(monitor().replace("asyncio.run(watch(sys.argv[1]))", ""), page)
    address = json.loads(path.read_bytes())
    client = await nats.connect(address["url"], inbox_prefix="_INBOX.monitor")
    try:
        query = {"seq": 1, "next_by_subj": f"areal.{address['run']}.step.completed"}
        found = await client.request(
            f"$JS.API.DIRECT.GET.AREAL_{address['run']}_LOG", json.dumps(query).encode(), timeout=300
        )
        none = await client.request(
            f"$JS.API.DIRECT.GET.AREAL_{address['run']}_LOG", json.dumps({**query, "seq": 10**9}).encode(), timeout=60
        )
    finally:
        await client.close()
    assert none.headers["Status"] == "404"
    envelope = page["envelope_of"](found.data, address["dictionaries"])
    return {**msgspec.msgpack.decode(envelope["body"]), "position": int(found.headers["Nats-Sequence"])}


@pytest.fixture
def isolated(tmp_path):
    """The command that starts the page's program where only its own three libraries can be imported."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ALLOWED:
        (packages / name).symlink_to(Path(sys.modules[name].__file__).parent)
    program = tmp_path / "watch.py"
    program.write_text(monitor())
    (tmp_path / "launcher.py").write_text(LAUNCHER.format(packages=str(packages), program=str(program)))
    return sys.executable, "-I", "-S", str(tmp_path / "launcher.py")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 3)
async def test_the_monitor_of_the_page_prints_the_steps_and_trajectories_of_a_live_run(live, isolated, tmp_path):
    run = live("steps=3", "evaluation.tasks=0")
    path = run.folder / "monitor.json"
    await run._appears(path, SECONDS)
    watching = await asyncio.create_subprocess_exec(
        *isolated, str(path), cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with run.listening(SECONDS):
            await run.until(StepCompleted, 1, SECONDS)
            earlier = await first_completed_step(path)
            status = await run.ended(SECONDS)
        printed, errors = await asyncio.wait_for(watching.communicate(), SECONDS)
    finally:
        if watching.returncode is None:
            watching.kill()
            await watching.wait()
    assert status == 0, run.output()
    assert watching.returncode == 0, errors.decode()  # nats-py logs a server that ends before the monitor has left
    log = await run.log()
    assert isinstance(log[0][1], RunStarted)
    steps = [
        f"step {event.step} reward {event.metrics['reward_mean']}"
        for _, event in log
        if isinstance(event, StepCompleted)
    ]
    episodes = [
        f"episode {event.trajectory.episode} reward {event.trajectory.reward}"
        for _, event in log
        if isinstance(event, TrajectoryExported)
    ]
    lines = printed.decode().splitlines()
    assert len(steps) == 3
    for kind, expected in (("step", steps), ("episode", episodes)):
        found = [line for line in lines if line.startswith(f"{kind} ")]
        assert found, f"no {kind}"
        assert found == expected[-len(found) :], "a subscription has every message from its beginning on"
    assert set(lines) <= {*steps, *episodes}
    [(position, first)] = [
        (place, event) for place, event in log if isinstance(event, StepCompleted) and event.step == 1
    ]
    assert earlier["position"] == position
    assert (earlier["step"], earlier["metrics"]) == (1, first.metrics)
