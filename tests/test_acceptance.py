from __future__ import annotations

import pytest
from support.samples import exported, work

from areal_actors.core.errors import RecipeError
from areal_actors.core.watchdog_settings import WatchdogSettings
from areal_actors.messages import (
    DescribeSession,
    EpisodeAbandoned,
    EpisodeScored,
    InteractionSummary,
    OpenSession,
    ScoreEpisode,
    SessionDescribed,
    SessionOpened,
)
from areal_actors.rewards import Score
from areal_actors.rewards.acceptance import Acceptance
from areal_actors.rewards.reward_worker import RewardWorker
from areal_actors.rollout.agent_runner import AgentResult
from areal_actors.rollout.rollout_worker import RolloutWorker
from areal_actors.supervision.watchdog import Watchdog

FUNCTIONS = """
seen = []

def good(episode):
    seen.append(episode)
    return episode["reward"] is None or episode["reward"] > 0.5

async def later(episode):
    return good(episode)

def silent(episode):
    pass

def broken(episode):
    return episode["rewrad"]

number = 3
"""


@pytest.fixture
def acceptance(tmp_path):
    (tmp_path / "accept.py").write_text(FUNCTIONS)
    return lambda name="good", *, retry=False: Acceptance(f"accept.py:{name}", tmp_path, retry=retry)


class Agent:
    def __init__(self, result):
        self.result = result

    async def run(self, task, *, base_url, api_key):
        return self.result

    def take_blocks(self):
        return []


class Scorer:
    async def score(self, task, output):
        return Score(float(output))


async def rolled_out(send, acceptance, result, run=None, set_over_http=None):
    worker = RolloutWorker(Agent(result), concurrency=1, timeout_seconds=1.0, acceptance=acceptance)
    opened = SessionOpened(session="s", base_url="u", api_key="k")
    answers = {OpenSession: lambda question: opened, DescribeSession: lambda question: described(set_over_http or {})}
    *_, emitted = await send(worker, run or work("3.1", attempts_left=2), answers=answers)
    return emitted


def described(rewards):
    """A session whose calls have these rewards."""
    calls = [
        InteractionSummary(
            id=name, parent="", prompt_tokens=1, completion_tokens=1, finish_reason="stop", reward=reward
        )
        for name, reward in rewards.items()
    ]
    return SessionDescribed(interactions=tuple(calls))


async def test_an_episode_that_is_not_wanted_is_permanently_rejected_and_is_no_failure(send, acceptance):
    gone = await rolled_out(send, acceptance(), AgentResult(reward=0.0))
    assert isinstance(gone, EpisodeAbandoned)
    assert (gone.reason, gone.detail, gone.work.attempts_left) == ("rejected", "accept.py:good does not accept it", 0)
    watchdog = Watchdog(WatchdogSettings(max_failures_in_a_row=1), 0.0)
    watchdog.receive(gone, 1.0)
    assert watchdog.too_many_failures() == ""


@pytest.mark.parametrize("name", ["good", "later"])
async def test_an_episode_that_is_wanted_continues_and_the_function_saw_all_of_it(send, acceptance, name):
    wanted = acceptance(name)
    scored = await rolled_out(send, wanted, AgentResult(reward=1.0))
    assert isinstance(scored, EpisodeScored)
    assert wanted.function.__globals__["seen"] == [
        {
            "task_id": "task-3",
            "task": {"question": "why?"},
            "episode": "3.1",
            "group": "3",
            "attempt": 1,
            "output": None,
            "reward": 1.0,
            "rewards": {},
        }
    ]


async def test_a_recipe_may_want_rejected_episodes_tried_again(send, acceptance):
    gone = await rolled_out(send, acceptance(retry=True), AgentResult(reward=0.0))
    assert (gone.reason, gone.work.attempts_left) == ("rejected", 2)


async def test_what_only_evaluates_is_never_rejected(send, acceptance):
    assert isinstance(
        await rolled_out(send, acceptance(), AgentResult(reward=0.0), work(purpose="evaluate")), EpisodeScored
    )


async def test_text_is_judged_with_the_reward_it_got(send, acceptance):
    assert isinstance(await rolled_out(send, acceptance(), AgentResult(output="0")), ScoreEpisode)
    worker = RewardWorker(Scorer(), concurrency=1, acceptance=acceptance())
    answers = {DescribeSession: lambda question: described({"a": 0.5, "b": None})}
    good, bad = await send(
        worker, *(ScoreEpisode(work=work(), session="s", output=text) for text in ("1", "0")), answers=answers
    )
    assert isinstance(good, EpisodeScored)
    assert (bad.reason, bad.work) == ("rejected", work())


async def test_rewards_that_were_set_over_http_are_seen(send, acceptance):
    wanted = acceptance()
    assert isinstance(
        await rolled_out(send, wanted, AgentResult(), set_over_http={"a": 0.25, "b": None, "c": 1.0}), EpisodeScored
    )
    seen = wanted.function.__globals__["seen"]
    assert (seen[-1]["reward"], seen[-1]["rewards"]) == (None, {"a": 0.25, "c": 1.0})
    await rolled_out(send, wanted, AgentResult(rewards={"c": 2.0}), set_over_http={"a": 0.25, "c": 1.0})
    assert seen[-1]["rewards"] == {"a": 0.25, "c": 2.0}
    answers = {DescribeSession: lambda question: described({"a": 0.5})}
    await send(
        RewardWorker(Scorer(), concurrency=1, acceptance=wanted),
        ScoreEpisode(work=work(), session="s", output="1"),
        answers=answers,
    )
    assert (seen[-1]["reward"], seen[-1]["rewards"], seen[-1]["output"]) == (1.0, {"a": 0.5}, "1")


@pytest.mark.parametrize("retry", [False, True])
async def test_an_agent_that_returns_none_and_sets_no_reward_rejects_its_episode(send, retry):
    worker = RolloutWorker(Agent(AgentResult()), concurrency=1, timeout_seconds=1.0, retry_rejected=retry)
    opened = SessionOpened(session="s", base_url="u", api_key="k")
    rewards = {"a": None}
    answers = {OpenSession: lambda question: opened, DescribeSession: lambda question: described(rewards)}
    (gone,) = await send(worker, work("3.1", attempts_left=2), answers=answers)
    assert (gone.reason, gone.detail) == (
        "rejected",
        "the agent returned None and set no reward, which rejects the episode",
    )
    assert gone.work.attempts_left == (2 if retry else 0)
    rewards["a"] = 0.0
    (scored,) = await send(worker, work("3.1"), answers=answers)
    assert (scored.reward, scored.rewards) == (None, {})


async def test_an_agent_that_returns_none_because_the_engine_failed_rejects_nothing(send):
    worker = RolloutWorker(Agent(AgentResult()), concurrency=1, timeout_seconds=1.0)
    opened = SessionOpened(session="s", base_url="u", api_key="k")
    failed = SessionDescribed(engine_failure="inference_worker-0: log-probability at token 3: nan")
    (scored,) = await send(
        worker, work(), answers={OpenSession: lambda question: opened, DescribeSession: lambda question: failed}
    )
    assert isinstance(scored, EpisodeScored), "the session manager, which knows of the failure, ends it as the engine's"


def test_a_run_that_only_rejects_ends_by_name():
    watchdog = Watchdog(WatchdogSettings(max_rejections_in_a_row=3), 0.0)
    gone = EpisodeAbandoned(work=work(), reason="rejected", detail="accept.py:good does not accept it")
    for _ in range(2):
        watchdog.receive(gone, 0.0)
    watchdog.receive(exported("0.0"), 0.0)
    for _ in range(3):
        assert watchdog.too_many_failures() == ""
        watchdog.receive(gone, 0.0)
    assert (
        watchdog.too_many_failures()
        == "3 episodes in a row were rejected and none was exported; most common reason (3 times): rejected:"
        " accept.py:good does not accept it; accept more episodes, or raise watchdog.max_rejections_in_a_row"
    )


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("silent", "task.should_accept: accept.py:silent returned None; return True or False"),
        ("broken", "task.should_accept: accept.py:broken raised KeyError: 'rewrad' at accept.py:15"),
    ],
)
async def test_a_function_that_fails_is_a_failure_of_the_episode(send, acceptance, name, complaint):
    gone = await rolled_out(send, acceptance(name), AgentResult(reward=0.0))
    assert (gone.reason, gone.detail, gone.work.attempts_left) == ("agent", complaint, 2)


def test_what_is_no_function_is_refused(acceptance):
    with pytest.raises(RecipeError, match=r"`task.should_accept`: `accept.py:number` is not a function"):
        acceptance("number")
