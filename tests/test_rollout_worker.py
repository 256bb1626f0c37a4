from __future__ import annotations

import asyncio

import pytest
from samples import loaded, work

from areal_actors.actors.rollout_worker import LEASE_GRACE_SECONDS, RolloutWorker
from areal_actors.agent_runners.agent_runner import AgentResult
from areal_actors.agent_runners.episode_context import workflow_context
from areal_actors.errors import AgentError
from areal_actors.messages import (
    DescribeSession,
    EpisodeAbandoned,
    EpisodeScored,
    EvaluateEpisode,
    OpenSession,
    ScoreEpisode,
    SessionDescribed,
    SessionOpened,
)
from bus.errors import NoReply, NoResponder

DESCRIBED = SessionDescribed(session="s")
OPENED = SessionOpened(session="s", base_url="http://gateway/s/v1", api_key="sk-1")


class Agent:
    """Does what it is told, and remembers what it was given."""

    def __init__(self, outcome):
        self.outcome = outcome
        self.given = None

    async def run(self, task, *, base_url, api_key):
        self.given = (task.id, base_url, api_key)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if self.outcome == "hang":
            await asyncio.sleep(100)
        return self.outcome


class Answering:
    """Answers a question, or fails as a bus does."""

    def __init__(self, answer):
        self.answer = answer

    def __call__(self, question):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def said(say, agent, opened=OPENED, run=None, described=DESCRIBED):
    asked = []

    def open_session(question):
        asked.append(question)
        if isinstance(opened, Exception):
            raise opened
        return opened

    worker = RolloutWorker(agent, concurrency=1, timeout_seconds=0.01)
    answers = {OpenSession: open_session, DescribeSession: Answering(described)}
    messages = await say(worker, run or work("3.1", attempts_left=2), answers=answers)
    assert [(question.work.episode, question.lease_seconds) for question in asked] == [("3.1", 0.01 + LEASE_GRACE_SECONDS)]
    return messages


async def test_text_goes_to_be_scored(say):
    agent = Agent(AgentResult(output="42"))
    (scoring,) = await said(say, agent)
    assert isinstance(scoring, ScoreEpisode)
    assert (scoring.session, scoring.output, scoring.work) == ("s", "42", work("3.1", attempts_left=2))
    assert agent.given == ("task-3", "http://gateway/s/v1", "sk-1")


async def test_even_empty_text_goes_to_be_scored(say):
    (scoring,) = await said(say, Agent(AgentResult(output="")))
    assert isinstance(scoring, ScoreEpisode)


async def test_a_reward_of_the_agent_s_own_is_the_score(say):
    (scored,) = await said(say, Agent(AgentResult(reward=0.0)))
    assert isinstance(scored, EpisodeScored)
    assert (scored.reward, scored.rewards, scored.session) == (0.0, {}, "s")
    (scored,) = await said(say, Agent(AgentResult(rewards={"a": 1.0})))
    assert (scored.reward, scored.rewards) == (None, {"a": 1.0})


async def test_a_held_out_episode_runs_like_any_other(say):
    run = work("3.1", attempts_left=2, purpose="evaluate")
    (scoring,) = await said(say, Agent(AgentResult(output="42")), run=EvaluateEpisode(work=run))
    assert (scoring.session, scoring.work) == ("s", run)


async def test_held_out_episodes_have_slots_of_their_own(say):
    agent = Agent("hang")
    worker = RolloutWorker(agent, concurrency=3, timeout_seconds=0.05, evaluations=1)
    runs = [EvaluateEpisode(work=work(f"{number}.0", purpose="evaluate")) for number in range(2)] + [work("2.0")]
    started = asyncio.get_running_loop().time()
    ended = {}

    async def run(one):
        await say(worker, one, answers={OpenSession: Answering(OPENED), DescribeSession: Answering(SessionDescribed())})
        ended[getattr(one, "work", one).episode] = asyncio.get_running_loop().time() - started

    await asyncio.gather(*map(run, runs))
    assert ended["2.0"] < ended["1.0"] >= 0.1 > ended["0.0"], "the second held-out one waits for the first, what is trained does not"


async def test_an_agent_that_raises_is_abandoned_with_its_own_words(say):
    (gone,) = await said(say, Agent(AgentError("agent x raised ValueError")))
    assert isinstance(gone, EpisodeAbandoned)
    assert (gone.reason, gone.detail, gone.work.attempts_left) == ("agent", "agent x raised ValueError", 2)


async def test_an_agent_that_hangs_is_abandoned_by_the_clock(say):
    (gone,) = await said(say, Agent("hang"))
    assert gone.reason == "timeout"
    assert "0.01 s; raise task.timeout_seconds" in gone.detail


@pytest.mark.parametrize("agent", [AgentError("openai.InternalServerError: 503"), "hang"])
async def test_what_the_engine_could_not_answer_is_its_failure_and_not_the_agent_s(say, agent):
    cause = "inference_worker-0: log-probability at token 3: log-probability nan"
    (gone,) = await said(say, Agent(agent), described=SessionDescribed(session="s", engine_failure=cause))
    assert (gone.reason, gone.work.attempts_left) == ("engine", 2)
    assert gone.detail.startswith(f"{cause}; then the agent failed: ")


async def test_a_gateway_that_is_gone_leaves_the_failure_with_the_agent(say):
    (gone,) = await said(say, Agent(AgentError("agent x raised")), described=NoResponder("nobody serves session.describe"))
    assert (gone.reason, gone.detail) == ("agent", "agent x raised")


async def test_without_a_gateway_the_episode_is_abandoned_by_name(say):
    for error in (NoResponder("nobody serves session.open"), NoReply("session.open: no answer")):
        (gone,) = await said(say, Agent(AgentResult(reward=1.0)), opened=error)
        assert (gone.reason, str(error) in gone.detail) == ("session", True)


async def test_an_episode_that_somebody_has_finished_is_not_run_again(say):
    agent = Agent(AgentResult(reward=1.0))
    assert await said(say, agent, opened=SessionOpened(refused="episode 3.1 is finished")) == []
    assert agent.given is None


async def test_the_last_words_of_an_agent_that_hangs_are_part_of_the_reason(say):
    class Talker(Agent):
        async def run(self, task, *, base_url, api_key):
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError as error:
                error.add_note("; it last printed:\nhmm")
                raise

    (gone,) = await said(say, Talker(None))
    assert gone.detail.endswith("if it needs longer; it last printed:\nhmm")


async def test_an_agent_knows_the_newest_weights_of_its_start(say):
    class Knowing(Agent):
        async def run(self, task, *, base_url, api_key):
            return AgentResult(reward=float(workflow_context.get().weight_version))

    worker = RolloutWorker(Knowing(None), concurrency=1, timeout_seconds=1.0)
    opened = {OpenSession: lambda question: OPENED}
    versions = [loaded("inference_worker-0", 3), loaded("inference_worker-1", 2)]
    (before, after) = await say(worker, work("1.0"), *versions, work("1.1"), answers=opened)
    assert (before.reward, after.reward) == (-1.0, 3.0)
