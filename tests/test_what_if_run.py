"""A what-if of a synchronous run is the run that follows: up to the first step that differs, to the last bit of the
weights."""

from __future__ import annotations

import asyncio
import json

import pytest

from areal_actors import cli
from areal_actors.messages import StepCompleted, WeightsPublished

SYNCHRONOUS = ("staleness_gate.max_staleness=0", "evaluation.tasks=0", "steps=3")
REWARD = """\
def lengths(task, output):
    return len(output) / 64
"""


async def events(run, kind):
    return [event for _, event in await run.log() if isinstance(event, kind)]


async def checksums(run):
    return {str(one.weight_version): one.location.checksum for one in await events(run, WeightsPublished)}


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "setting", ["algorithm.name=rloo", "task.reward={folder}/rewards.py:lengths", "task.turn_discount=0.5"]
)
async def test_the_first_step_that_differs_is_that_of_a_run_with_the_setting(live, tmp_path, capsys, setting):
    (tmp_path / "rewards.py").write_text(REWARD)
    setting = setting.format(folder=tmp_path)
    was, now = live(*SYNCHRONOUS), live(*SYNCHRONOUS, setting)
    assert [await was.ended(), await now.ended()] == [0, 0], was.output() + now.output()
    assert await asyncio.to_thread(cli.main, ["what-if", str(was.folder), setting, "--train", "--json"]) == 0
    asked = json.loads(capsys.readouterr().out)
    recorded, trained = (side["checksums"] for side in asked["trained"])
    assert recorded == await checksums(was)
    truth, steps = await checksums(now), await events(now, StepCompleted)
    exact = asked["first_change"] or len(steps)
    assert exact == (3 if "discount" in setting else 1)
    for version in range(exact + 1):
        assert trained[str(version)] == truth[str(version)], (
            f"version {version} is exact, since its episodes are those of both runs"
        )
    for step, metrics in zip(asked["replayed"]["steps"][:exact], steps, strict=False):
        assert step == pytest.approx({name: metrics.metrics[name] for name in step}, nan_ok=True)
    if exact == 1:
        assert trained["1"] != recorded["1"]
