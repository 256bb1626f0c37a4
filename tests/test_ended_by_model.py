"""An episode that the model itself ends is trained with the reward that the recipe states for it; other failures are
retried."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager

import pytest
from support.gateway_harness import GatewayHarness, opened
from support.samples import TOOLS_TEMPLATE, letters, work

from areal_actors.core.task_settings import TaskSettings
from areal_actors.core.values import SamplingParams
from areal_actors.generation.scripted.engine import ScriptedEngine
from areal_actors.messages import EpisodeAbandoned, EpisodeEvaluated, EpisodeScored, EvaluateEpisode, TrajectoryExported
from areal_actors.rewards.reward_pool import RewardPool
from areal_actors.rewards.reward_worker import RewardWorker
from areal_actors.rollout.rollout_worker import RolloutWorker
from areal_actors.rollout.runners import runner_of
from areal_actors.sequences.build import sequences_of

OPENAI = """\
import asyncio, json, openai, pytest

class Looping:
    async def talk(self, task, base_url, api_key, turns):
        messages = [{"role": "user", "content": task["question"]}]
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
            for _ in range(turns):
                answer = (await client.chat.completions.create(model="m", messages=messages)).choices[0].message.content
                messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "go on"}]
        return answer
"""
TALKING = """
class Agent(Looping):
    async def run(self, task, *, base_url, api_key):
        answer = await self.talk(task, base_url, api_key, {turns})
        {then}
        return 1.0
"""
OVERFLOWING = """
        try:
            await self.talk(task, base_url, api_key, 99)
        except openai.BadRequestError: """


def agent_file(folder, then, turns=1, more=""):
    """A file of an agent that makes calls, each longer than the last, and then executes a line."""
    (folder / "agent.py").write_text(OPENAI + more + TALKING.format(turns=turns, then=then))
    return TaskSettings(agent="agent.py:Agent", reward="gsm8k", timeout_seconds=60.0)


@asynccontextmanager
async def playing(task, folder, monkeypatch, answer="forty two", context=300):
    """A gateway, an engine that always gives this answer, and a rollout worker with the agent of these settings."""
    monkeypatch.chdir(folder)
    chat = letters(template=TOOLS_TEMPLATE)
    tokens = [(token, -0.1) for token in (*chat.encode(answer), chat.stop_ids[0])]
    harness = GatewayHarness(chat=chat, max_model_len=context)
    runner = runner_of(task, folder, group_size=1)
    worker = RolloutWorker(
        runner,
        concurrency=4,
        timeout_seconds=task.timeout_seconds,
        overflow_reward=task.overflow_reward,
        plays_environment=False,
    )
    pool = RewardPool(task.reward, 1, 30.0, folder)
    async with opened(harness):
        await harness.engine(
            "inference_worker-0", ScriptedEngine(lambda *_: tokens, vocabulary_size=300, context=context)
        )
        await harness.serve("rollout_worker-0", worker)
        await harness.serve("reward_worker-0", RewardWorker(pool, concurrency=1))
        try:
            yield harness
        finally:
            await runner.close()
            await pool.close()


async def end_of(harness, run=None, purpose="train"):
    """The event that ends an episode."""
    run = run or work(sampling=SamplingParams(max_tokens=20), attempts_left=2, purpose=purpose)
    ends = [harness.until(kind) for kind in (TrajectoryExported, EpisodeEvaluated, EpisodeAbandoned)]
    await harness.publish(EvaluateEpisode(work=run) if purpose == "evaluate" else run)
    async with asyncio.timeout(120):
        done, waiting = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    (end,) = done
    return end.result()


async def play(folder, monkeypatch, task, purpose="train", **options):
    async with playing(task, folder, monkeypatch, **options) as harness:
        return await end_of(harness, purpose=purpose)


async def test_a_context_overflow_raised_through_the_agent_is_trained_as_truncated(tmp_path, monkeypatch):
    task = TaskSettings(**{**_fields(agent_file(tmp_path, "pass", turns=99)), "overflow_reward": -0.5})
    end = await play(tmp_path, monkeypatch, task)
    made = end.trajectory
    assert (made.ended_by, made.reward, len(made.interactions) > 3) == ("model", -0.5, True)
    assert "prompt is too long" in made.end_cause
    (sequence,) = sequences_of(made, 0, 0)
    assert [call.truncated for call in sequence.calls] == [*[False] * (len(made.interactions) - 1), True]
    assert (sequence.truncated, sequence.ended_by) == (True, "model")


async def test_a_prompt_of_the_task_that_is_too_long_is_no_deed_of_the_model(tmp_path, monkeypatch):
    end = await play(tmp_path, monkeypatch, agent_file(tmp_path, "pass"), context=6)
    assert (end.reason, end.ended_by()) == ("agent", "agent")
    assert "prompt is too long" in end.detail


async def test_an_agent_that_fails_by_itself_after_an_overflow_has_failed_by_itself(tmp_path, monkeypatch):
    then = OVERFLOWING + "pass\n        raise KeyError('bug')"
    end = await play(tmp_path, monkeypatch, agent_file(tmp_path, then))
    assert (end.reason, "KeyError" in end.detail) == ("agent", True)


async def test_an_overflow_that_the_agent_survives_is_its_own_to_judge(tmp_path, monkeypatch):
    then = OVERFLOWING + "return 0.25"
    end = await play(tmp_path, monkeypatch, agent_file(tmp_path, then))
    assert (end.trajectory.ended_by, end.trajectory.reward) == ("agent", 0.25)


@pytest.mark.parametrize("module", ["langgraph.errors:GraphRecursionError", "agents.exceptions:MaxTurnsExceeded"])
async def test_a_well_known_exception_of_a_framework_for_too_many_turns_ends_the_episode_as_the_model_s(
    tmp_path, monkeypatch, module
):
    place, _, name = module.partition(":")
    more = f"\nclass {name}(Exception): pass\n{name}.__module__ = {place!r}\nclass Sub({name}): pass\n"
    then = (
        "\n        try:\n            raise Sub('limit of 10')\n        except Sub as error:\n            raise"
        " RuntimeError('x') from error"
    )
    end = await play(tmp_path, monkeypatch, agent_file(tmp_path, then, more=more))
    assert (end.trajectory.ended_by, end.trajectory.reward) == ("model", 0.0)
    assert module in end.trajectory.end_cause


async def test_an_exception_that_the_recipe_names_ends_the_episode_as_the_model_s(tmp_path, monkeypatch):
    more = "\nclass Exhausted(BaseException): pass\n"
    task = agent_file(tmp_path, "raise Exhausted('too many')", more=more)
    assert (await play(tmp_path, monkeypatch, task)).reason == "agent"
    named = TaskSettings(**{**_fields(task), "model_errors": ("agent.py:Exhausted",)})
    assert (await play(tmp_path, monkeypatch, named)).trajectory.ended_by == "model"


async def test_json_of_the_model_that_the_agent_cannot_read_is_the_model_s_and_other_json_is_not(tmp_path, monkeypatch):
    end = await play(tmp_path, monkeypatch, agent_file(tmp_path, "json.loads(answer)"), answer='{"a": 1,')
    assert (end.trajectory.ended_by, end.trajectory.end_cause.startswith("it wrote text that is not JSON")) == (
        "model",
        True,
    )
    end = await play(tmp_path, monkeypatch, agent_file(tmp_path, "json.loads('<html>')"), answer='{"a": 1,')
    assert end.reason == "agent"


async def test_exceptions_of_an_agent_in_a_process_have_the_same_causes(tmp_path, monkeypatch):
    for then, turns, cause in (("pass", 99, "too long"), ("json.loads(answer)", 1, "not JSON")):
        task = TaskSettings(
            **{**_fields(agent_file(tmp_path, then, turns=turns)), "runner": "subprocess", "processes": 1}
        )
        end = await play_process(tmp_path, monkeypatch, task)
        assert (end.trajectory.ended_by, cause in end.trajectory.end_cause) == ("model", True)


async def test_a_program_whose_traceback_names_the_overflow_is_ended_by_the_model(tmp_path, monkeypatch):
    script = OPENAI + "\nimport os\ntask = json.loads(os.environ['AREAL_TASK'])\n"
    script += "asyncio.run(Looping().talk(task, os.environ['OPENAI_BASE_URL'], os.environ['OPENAI_API_KEY'], 99))\n"
    (tmp_path / "script.py").write_text(script)
    task = TaskSettings(command=(sys.executable, "script.py"), runner="subprocess", processes=1, reward="gsm8k")
    assert (await play_process(tmp_path, monkeypatch, task)).trajectory.ended_by == "model"


async def play_process(folder, monkeypatch, task):
    async with playing(task, folder, monkeypatch, answer='{"a": 1,') as harness:
        return await end_of(harness)


@pytest.mark.parametrize(
    "outcome", ["pytest.fail('no')", "pytest.skip('no')", "pytest.exit('no')", "raise KeyboardInterrupt", "exit(3)"]
)
async def test_an_outcome_of_pytest_raised_in_an_agent_is_a_failed_attempt_and_the_worker_serves_the_next(
    tmp_path, monkeypatch, outcome
):
    then = f"task['question'] == 'why?' and {outcome}" if "raise" not in outcome else outcome
    started = "await asyncio.create_task(self.quit())" if outcome == "exit(3)" else then
    more = "\nasync def quit(self): raise SystemExit(3)\nLooping.quit = quit\n"
    async with playing(agent_file(tmp_path, started, more=more), tmp_path, monkeypatch) as harness:
        for episode in ("0.0", "1.0"):
            end = await end_of(harness, work(episode, sampling=SamplingParams(max_tokens=20)))
            assert (end.reason, end.work.episode) == ("agent", episode)
        assert not harness.tasks["rollout_worker-0"].done()


@pytest.mark.parametrize("outcome", ["pytest.fail('no')", "pytest.skip('no')", "pytest.exit('no')", "exit(3)"])
async def test_an_outcome_of_pytest_raised_in_a_reward_is_a_failed_attempt_and_the_worker_serves_the_next(
    tmp_path, monkeypatch, outcome
):
    (tmp_path / "reward.py").write_text(f"import pytest\ndef reward(task, output):\n    {outcome}\n")
    task = TaskSettings(**{**_fields(agent_file(tmp_path, "return answer")), "reward": "reward.py:reward"})
    async with playing(task, tmp_path, monkeypatch) as harness:
        for episode in ("0.0", "1.0"):
            end = await end_of(harness, work(episode, sampling=SamplingParams(max_tokens=20)))
            assert (end.reason, end.ended_by(), end.work.episode) == ("reward", "environment", episode)
        assert not harness.tasks["reward_worker-0"].done()


async def test_a_held_out_episode_without_a_model_call_counts_and_a_training_one_has_nothing_to_train(
    tmp_path, monkeypatch
):
    task = agent_file(tmp_path, "pass", turns=0)
    (tmp_path / "agent.py").write_text(
        "class Agent:\n    async def run(self, task, *, base_url, api_key):\n        return 0.75\n"
    )
    end = await play(tmp_path, monkeypatch, task, purpose="evaluate")
    assert (end.reward, end.completion_tokens) == (0.75, 0)
    assert (await play(tmp_path, monkeypatch, task)).reason == "agent"


async def test_a_call_in_flight_when_the_agent_returns_is_counted(tmp_path, monkeypatch):
    then = (
        "\n        call = asyncio.create_task(self.talk(task, base_url, api_key, 1))\n        await asyncio.sleep(0.5)"
    )
    async with playing(agent_file(tmp_path, then), tmp_path, monkeypatch) as harness:
        begin = harness.manager.calls._begin
        calls = []

        async def hold(*arguments):
            calls.append(None)
            if len(calls) > 1:
                await asyncio.sleep(60)
            return await begin(*arguments)

        monkeypatch.setattr(harness.manager.calls, "_begin", hold)
        end = await end_of(harness)
    assert (len(end.trajectory.interactions), end.trajectory.unanswered_calls) == (1, 1)
    assert [sequence.unanswered_calls for sequence in sequences_of(end.trajectory, 0, 0)] == [1]


def test_scores_of_logs_without_an_end_are_the_agent_s():
    assert EpisodeScored(work=work(), session="s").ended_by == "agent"


def _fields(task):
    return {name: getattr(task, name) for name in task.__struct_fields__}
