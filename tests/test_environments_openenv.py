"""Genuine OpenEnv in its own interpreter: servers of their own processes, sessions by its client; rewards are those of
its steps."""

from __future__ import annotations

import asyncio
import json
import subprocess

import psutil
import pytest
from support.environment_harness import listed, openenv_settings, playing
from support.framework_harness import ROOT, assert_extends

from areal_actors.core.environments import FOLDER
from areal_actors.core.errors import AgentError, SetupError

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PROBLEMS = "agents/openenv_problems.py:app"
ANSWER = {"action_pattern": r"(-?\d+)", "max_steps": 2}
NOTES = "tests/support/openenv_notes"
NOTE = {"action_pattern": r"(?P<title>\w+): (?P<stars>\w+)"}
SERVER = FOLDER / "openenv_server.py"


def servers():
    """Processes of servers that were started for an agent."""
    return [one for one in psutil.process_iter(["cmdline"]) if str(SERVER) in (one.info["cmdline"] or [])]


async def test_an_episode_has_the_rewards_of_the_steps_and_replays(tmp_path):
    task = openenv_settings(PROBLEMS, environment_tasks=9, instructions="", **ANSWER)
    tasks = listed(task, tmp_path)
    assert [one.id for one in tasks] == [f"openenv_problems-{number}" for number in range(9)]
    assert tasks[0].data["question"] == "Ben fills 4 bags with 4 plums each and sells 2. How many plums are left?"
    async with playing(task) as harness:
        for _ in range(2):
            result, trajectory = await harness.play_task(tasks[0], ["4 * 4 = 15", "4 * 4 = 16\n16 - 2 = 14"])
            assert (result.reward, result.metrics["terminated"], result.metrics["steps"]) == (0.5, 1.0, 2.0)
            assert (trajectory.reward, len(trajectory.interactions)) == (0.5, 2)
            assert_extends(harness, trajectory)
        assert "Your answer is wrong. Try again." in harness.prompt_text(1)
        assert (await harness.play_task(tasks[0], ["14"]))[0].reward == 1.0
        assert (await harness.play_task(tasks[0], ["1", "2"]))[0].reward == 0.0


async def test_an_answer_without_an_action_fails_the_episode_or_has_the_declared_reward(tmp_path):
    task = openenv_settings(PROBLEMS, environment_tasks=1, action_pattern=r"Answer: (\w+)")
    (first,) = listed(task, tmp_path)
    async with playing(task) as harness:
        for answer in ("No.", "Answer: none"):  # for the pattern, for the environment
            with pytest.raises(
                AgentError, match=f"answer 1 names no action: '{answer}'; declare environment_args.malf"
            ):
                await harness.play_task(first, [answer])
    task = openenv_settings(PROBLEMS, malformed_reward=-0.25, **ANSWER)
    async with playing(task) as harness:
        result, _ = await harness.play_task(first, ["None.", "14"])
        assert (result.reward, result.metrics["malformed"]) == (0.75, 1.0)
        assert "This names no action." in harness.prompt_text(1)


async def test_a_package_is_served_from_its_folder_with_actions_of_several_fields(tmp_path):
    task = openenv_settings(
        NOTES,
        environment_tasks=2,
        first_seed=7,
        turn_discount=0.9,
        reset={"book": "red"},
        observation="{observation[written]}",
        **NOTE,
    )
    tasks = listed(task, tmp_path)
    assert sorted(one.data["question"].rpartition("\n")[2] for one in tasks) == ["red 7", "red 8"]
    async with playing(task) as harness:
        result, trajectory = await harness.play_task(tasks[0], ["one: 1", "two: 2", "six: 6"])
        assert [call.reward for call in trajectory.interactions] == [0.1, 0.2, 0.6]
        assert result.metrics["return"] == pytest.approx(0.9)
        with pytest.raises(AgentError, match="this title breaks the environment"):
            await harness.play_task(tasks[0], ["one: 1", "break: 1"])
        assert len(servers()) == 1
        assert (await harness.play_task(tasks[0], ["a: 5", "b: 5", "c: 5"]))[0].metrics["steps"] == 3.0
    async with asyncio.timeout(30):
        while servers():  # noqa: ASYNC110 - processes have no events
            await asyncio.sleep(0.1)


async def test_a_server_that_runs_elsewhere_is_named_by_its_url(tmp_path):
    python = ROOT / openenv_settings(NOTES).python
    server = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
        [python, SERVER, NOTES, "server.app:app"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        url = f"http://127.0.0.1:{json.loads(server.stdout.readline())['port']}"
        task = openenv_settings(url, environment_tasks=1, observation="{observation[process]}", **NOTE)
        (first,) = listed(task, tmp_path)
        assert first.data["question"].endswith(str(server.pid))
        async with playing(task) as harness:
            assert (await harness.play_task(first, ["a: 1", "b: 1", "c: 1"]))[0].reward == pytest.approx(0.3)
    finally:
        server.kill()
        server.communicate()


@pytest.mark.parametrize(
    ("environment", "args", "complaint"),
    [
        (PROBLEMS, {"actions": ["left"]}, "environment_args has 'actions'; expected some of reset, instructions"),
        (PROBLEMS, {"action_pattern": "x"}, "does not fit the action, whose fields are number; write a group for each"),
        (NOTES, {}, r"whose fields are title, stars; write a group for each, as in `\(\?P<title>\.\+\)`"),
        (PROBLEMS, {"observation": "{observation[x]}"}, "does not fit the observation"),
        (PROBLEMS.replace("app", "other"), {}, "the server of .*other did not start: .*other"),
        ("nowhere.py:app", {}, "No such file or directory: .*nowhere.py"),
        ("tests/support", {}, "No such file or directory: .*openenv.yaml"),
        ("http://127.0.0.1:9", {}, "Connection refused"),
    ],
)
def test_what_does_not_fit_is_an_error_when_a_run_is_created(tmp_path, environment, args, complaint):
    with pytest.raises(SetupError, match=complaint):
        listed(openenv_settings(environment, **args), tmp_path)


def test_a_server_ends_with_the_process_that_started_it(tmp_path):
    python = ROOT / openenv_settings(NOTES).python
    code = f"import sys; sys.path.append({str(FOLDER)!r})\nfrom openenv_server import OpenEnvServer\n"
    code += f"server = OpenEnvServer({NOTES!r})\nprint(server.process.pid, flush=True)\ninput()"
    with subprocess.Popen(
        [python, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        server = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    server.wait(timeout=30)
