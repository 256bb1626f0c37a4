from __future__ import annotations

import asyncio

import msgspec
import pytest
from support.clock import jumping_time
from support.samples import work

from areal_actors.core.errors import AgentError
from areal_actors.messages import (
    AgentReturned,
    DescribeSession,
    EpisodeAbandoned,
    EpisodeScored,
    EvaluateEpisode,
    EventLoopBlocked,
    OpenCall,
    OpenSession,
    Refusal,
    ScoreEpisode,
    SessionDescribed,
    SessionOpened,
    WorkerLeft,
)
from areal_actors.rollout.agent_runner import AgentResult, Cause
from areal_actors.rollout.episode_context import workflow_context
from areal_actors.rollout.rollout_worker import LEASE_GRACE_SECONDS, RolloutWorker
from areal_bus.errors import NoReply, NoResponder

TIMEOUT_SECONDS = 60.0
DESCRIBED = SessionDescribed(session="s")
OPENED = SessionOpened(session="s", base_url="http://gateway/s/v1", api_key="sk-1")


@pytest.fixture(autouse=True)
async def time_jumps():
    with jumping_time():
        yield


class Agent:
    """Returns or raises the given result, and records its arguments."""

    def __init__(self, outcome):
        self.outcome = outcome
        self.given = None
        self.reports = []

    def take_blocks(self):
        return self.reports

    async def run(self, task, *, base_url, api_key):
        self.given = (task.id, base_url, api_key)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if self.outcome == "hang":
            await asyncio.sleep(100)
        if self.outcome == "for ever":
            await asyncio.Event().wait()
        return self.outcome


class Sleeping(Agent):
    """Returns its result after 100 s."""

    async def run(self, task, *, base_url, api_key):
        await asyncio.sleep(100)
        return await super().run(task, base_url=base_url, api_key=api_key)


class Answering:
    """Answers a question, or fails as a bus does."""

    def __init__(self, answer):
        self.answer = answer

    def __call__(self, question):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def run_episode(send, agent, opened=OPENED, run=None, described=DESCRIBED):
    asked = []

    def open_session(question):
        asked.append(question)
        if isinstance(opened, Exception):
            raise opened
        return opened

    worker = RolloutWorker(agent, concurrency=1, timeout_seconds=TIMEOUT_SECONDS)
    answers = {OpenSession: open_session, DescribeSession: Answering(described)}
    messages = await send(worker, run or work("3.1", attempts_left=2), answers=answers)
    assert {(question.work.episode, question.lease_seconds) for question in asked} == {
        ("3.1", TIMEOUT_SECONDS + LEASE_GRACE_SECONDS)
    }
    return [message for message in messages if not isinstance(message, AgentReturned)]


async def test_text_goes_to_be_scored(send):
    agent = Agent(AgentResult(output="42"))
    (scoring,) = await run_episode(send, agent)
    assert isinstance(scoring, ScoreEpisode)
    assert (scoring.session, scoring.output, scoring.work) == ("s", "42", work("3.1", attempts_left=2))
    assert agent.given == ("task-3", "http://gateway/s/v1", "sk-1")


async def test_even_empty_text_goes_to_be_scored(send):
    (scoring,) = await run_episode(send, Agent(AgentResult(output="")))
    assert isinstance(scoring, ScoreEpisode)


async def test_a_reward_of_the_agent_s_own_is_the_score(send):
    (scored,) = await run_episode(send, Agent(AgentResult(reward=0.0)))
    assert isinstance(scored, EpisodeScored)
    assert (scored.reward, scored.rewards, scored.session) == (0.0, {}, "s")
    (scored,) = await run_episode(send, Agent(AgentResult(rewards={"a": 1.0})))
    assert (scored.reward, scored.rewards) == (None, {"a": 1.0})


async def test_a_held_out_episode_runs_like_any_other(send):
    run = work("3.1", attempts_left=2, purpose="evaluate")
    (scoring,) = await run_episode(send, Agent(AgentResult(output="42")), run=EvaluateEpisode(work=run))
    assert (scoring.session, scoring.work) == ("s", run)


async def test_held_out_episodes_have_slots_of_their_own(send):
    agent = Agent("hang")
    worker = RolloutWorker(agent, concurrency=3, timeout_seconds=TIMEOUT_SECONDS, evaluations=1)
    runs = [EvaluateEpisode(work=work(f"{number}.0", purpose="evaluate")) for number in range(2)] + [work("2.0")]
    started = asyncio.get_running_loop().time()
    ended = {}

    async def run(one):
        await send(
            worker, one, answers={OpenSession: Answering(OPENED), DescribeSession: Answering(SessionDescribed())}
        )
        ended[getattr(one, "work", one).episode] = asyncio.get_running_loop().time() - started

    await asyncio.gather(*map(run, runs))
    assert ended == pytest.approx({"0.0": TIMEOUT_SECONDS, "1.0": 2 * TIMEOUT_SECONDS, "2.0": TIMEOUT_SECONDS}), (
        "the second held-out one waits for the first, what is trained does not"
    )


async def test_an_agent_that_raises_is_abandoned_with_its_own_words(send):
    (gone,) = await run_episode(send, Agent(AgentError("agent x raised ValueError")))
    assert isinstance(gone, EpisodeAbandoned)
    assert (gone.reason, gone.detail, gone.work.attempts_left) == ("agent", "agent x raised ValueError", 2)


async def test_an_agent_that_hangs_is_abandoned_by_the_clock(send):
    (gone,) = await run_episode(send, Agent("hang"))
    assert gone.reason == "timeout"
    assert "within 60 s; raise task.timeout_seconds" in gone.detail


@pytest.mark.parametrize("agent", [AgentError("openai.InternalServerError: 503"), "hang"])
async def test_what_the_engine_could_not_answer_is_its_failure_and_not_the_agent_s(send, agent):
    cause = "inference_worker-0: log-probability at token 3: log-probability nan"
    (gone,) = await run_episode(send, Agent(agent), described=SessionDescribed(session="s", engine_failure=cause))
    assert (gone.reason, gone.work.attempts_left) == ("engine", 2)
    assert gone.detail.startswith(f"{cause}; then the agent failed: ")


def waiting(seconds, *, at="engine", left=False):
    what = "inference_worker-0 (no token yet; it has 3 calls in flight)" if at == "engine" else "the gateway"
    return SessionDescribed(session="s", open_calls=(OpenCall(seconds=seconds, waits_for=what, at=at, left=left),))


async def test_a_call_that_took_most_of_the_time_is_the_reason_and_not_the_agent(send):
    (gone,) = await run_episode(send, Agent("hang"), described=waiting(31.0))
    assert gone.reason == "engine"
    assert (
        gone.detail == "the agent did not return within 60 s; "
        "its model call had waited 31 s for inference_worker-0 (no token yet; it has 3 calls in flight)"
    )
    (gone,) = await run_episode(send, Agent("hang"), described=waiting(31.0, at="gateway"))
    assert (gone.reason, "for the gateway" in gone.detail) == ("gateway", True)


async def test_a_call_that_took_little_of_the_time_leaves_the_failure_with_the_agent_and_is_named(send):
    (gone,) = await run_episode(send, Agent("hang"), described=waiting(29.0))
    assert gone.reason == "timeout"
    assert "; its model call had waited 29 s for inference_worker-0" in gone.detail
    assert gone.detail.endswith("; raise task.timeout_seconds if it needs longer")


async def test_an_agent_that_gives_up_on_a_call_that_hangs_fails_by_what_the_call_waited_for(send):
    (gone,) = await run_episode(
        send, Agent(AgentError("agent x raised APITimeoutError")), described=waiting(30.0, left=True)
    )
    assert gone.reason == "engine"
    assert gone.detail.startswith("its model call had waited 30 s for inference_worker-0")
    assert gone.detail.endswith("when the agent left it; then the agent failed: agent x raised APITimeoutError")


@pytest.mark.parametrize("agent", [AgentError("agent x raised APIConnectionError"), "hang"])
async def test_a_gateway_that_is_gone_or_has_lost_the_session_is_the_reason(send, agent):
    (gone,) = await run_episode(send, Agent(agent), described=NoResponder("no process serves session.describe"))
    assert (
        gone.reason,
        "does not answer (no process serves session.describe); then the agent failed" in gone.detail,
    ) == ("gateway", True)
    for status, reason in ((404, "there is no session 's'"), (503, "the gateway is reading the run's log; retry")):
        lost = SessionDescribed(refused=Refusal(status=status, reason=reason))
        (gone,) = await run_episode(send, Agent(agent), described=lost)
        assert (gone.reason, "the gateway has lost the session" in gone.detail) == ("gateway", True)


async def test_an_agent_that_fails_when_another_worker_has_its_episode_ends_nothing(send):
    taken = SessionDescribed(refused=Refusal(status=410, reason="over"), replaced_by="s2")
    assert await run_episode(send, Agent(AgentError("agent x raised: 410")), described=taken) == []


@pytest.mark.parametrize(
    "over", [SessionDescribed(refused=Refusal(status=410, reason="over")), SessionDescribed(state="abandoned")]
)
async def test_an_agent_that_fails_because_its_episode_has_ended_ends_nothing_again(send, over):
    assert await run_episode(send, Agent(AgentError("agent x raised: 410")), described=over) == []


async def test_a_note_that_explains_where_the_time_went_takes_the_place_of_the_advice(send):
    class Held(Agent):
        async def run(self, task, *, base_url, api_key):
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError as error:
                error.add_note(Cause("meanwhile episode 7.1 blocked the event loop for 9.0 s at agent.py:7"))
                error.add_note("; it waited at mine.py:3")
                raise

    (gone,) = await run_episode(send, Held(None))
    blocked = "meanwhile episode 7.1 blocked the event loop for 9.0 s at agent.py:7"
    assert gone.detail == f"the agent did not return within 60 s; {blocked}; it waited at mine.py:3"


async def test_reports_of_a_blocked_loop_follow_the_outcome(send):
    agent = Agent(AgentResult(reward=1.0))
    agent.reports = [EventLoopBlocked(seconds=8.2, line="agent.py:7")]
    scored, report = await run_episode(send, agent)
    assert isinstance(scored, EpisodeScored)
    assert report.line == "agent.py:7"


async def test_without_a_gateway_the_episode_is_abandoned_by_name(send):
    for error in (NoResponder("no process serves session.open"), NoReply("session.open: no reply")):
        (gone,) = await run_episode(send, Agent(AgentResult(reward=1.0)), opened=error)
        assert (gone.reason, str(error) in gone.detail) == ("session", True)


@pytest.mark.parametrize("missed", [NoReply("session.open: no reply"), SessionOpened(leaving=True)])
async def test_a_gateway_that_does_not_answer_or_leaves_is_asked_again_until_another_process_has_taken_it_over(
    send, missed
):
    answers = [missed, missed, OPENED]

    def open_session(_):
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    worker = RolloutWorker(Agent(AgentResult(reward=1.0)), concurrency=1, timeout_seconds=TIMEOUT_SECONDS)
    *_, scored = await send(
        worker, work("3.1"), answers={OpenSession: open_session, DescribeSession: Answering(DESCRIBED)}
    )
    assert (scored.session, answers) == ("s", [])


@pytest.mark.parametrize(("actor", "is_lost"), [("session_manager-1", True), ("session_manager-0", False), ("", False)])
async def test_agents_whose_gateway_is_lost_with_its_host_are_stopped_at_once(send, actor, is_lost):
    opened = SessionOpened(session="3.1-1-abcdef01-g1", base_url="http://gone/v1", api_key="sk-1", gateways=2)
    worker = RolloutWorker(Agent("hang"), concurrency=1, timeout_seconds=TIMEOUT_SECONDS)
    unreachable = NoResponder("no process serves session.describe")
    answers = {OpenSession: Answering(opened), DescribeSession: Answering(unreachable)}
    started = asyncio.get_running_loop().time()
    running = asyncio.create_task(send(worker, work("3.1", attempts_left=2), answers=answers))
    await asyncio.sleep(5.0)
    await send(worker, WorkerLeft(worker="session_manager-10000", reason="no heartbeat", actor=actor))
    (gone,) = await running
    assert asyncio.get_running_loop().time() - started == pytest.approx(5.0 if is_lost else TIMEOUT_SECONDS)
    assert (gone.reason, gone.work.attempts_left) == ("gateway", 2)
    assert ("session_manager-10000, which served its gateway, has left the run" in gone.detail) == is_lost


async def test_a_finished_episode_is_not_run_again(send):
    agent = Agent(AgentResult(reward=1.0))
    assert await run_episode(send, agent, opened=SessionOpened(refused="episode 3.1 is finished")) == []
    assert agent.given is None


async def test_the_last_words_of_an_agent_that_hangs_are_part_of_the_reason(send):
    class Talker(Agent):
        async def run(self, task, *, base_url, api_key):
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError as error:
                error.add_note("; it last printed:\nhmm")
                raise

    (gone,) = await run_episode(send, Talker(None))
    assert gone.detail.endswith("if it needs longer; it last printed:\nhmm")


async def test_an_agent_knows_the_newest_weights_of_its_start(send):
    class Knowing(Agent):
        async def run(self, task, *, base_url, api_key):
            return AgentResult(reward=float(workflow_context.get().weight_version))

    worker = RolloutWorker(Knowing(None), concurrency=1, timeout_seconds=1.0)
    opened = {OpenSession: lambda question: msgspec.structs.replace(OPENED, weight_version=3)}
    (scored,) = await send(worker, work("1.0"), answers=opened)
    assert scored.reward == 3.0


@pytest.mark.parametrize(("queued", "ends"), [(0.0, True), (30.0, True), (50.0, False)])
async def test_the_time_limit_leaves_out_waits_for_a_first_token(send, queued, ends):
    """The agent takes 100 s of the 60 s that it has."""
    described = msgspec.structs.replace(DESCRIBED, queued_seconds=queued)
    (outcome,) = await run_episode(send, Sleeping(AgentResult(reward=1.0)), described=described)
    assert isinstance(outcome, EpisodeAbandoned if ends else EpisodeScored)
    assert not ends or outcome.reason == "timeout"


async def test_calls_that_wait_for_ever_for_a_first_token_end_the_episode(send):
    class Growing(Answering):
        def __call__(self, question):
            return msgspec.structs.replace(DESCRIBED, queued_seconds=asyncio.get_running_loop().time() - began)

    began = asyncio.get_running_loop().time()
    worker = RolloutWorker(Agent("for ever"), concurrency=1, timeout_seconds=TIMEOUT_SECONDS)
    answers = {OpenSession: lambda _: OPENED, DescribeSession: Growing(None)}
    (outcome,) = await send(worker, work("3.1", attempts_left=2), answers=answers)
    assert isinstance(outcome, EpisodeAbandoned)
    assert 4 * TIMEOUT_SECONDS <= asyncio.get_running_loop().time() - began <= 6 * TIMEOUT_SECONDS


async def test_an_agent_may_run_longer_only_while_its_gateway_answers(send):
    (outcome,) = await run_episode(send, Agent("hang"), described=NoReply("gone"))
    assert isinstance(outcome, EpisodeAbandoned)
