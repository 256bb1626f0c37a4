from __future__ import annotations

import pytest
from support.manager_harness import Manager
from support.samples import LETTERS_TEMPLATE, abandoned, columns, exported, letters, work

from areal_actors.core.values import unpack_ids
from areal_actors.messages import (
    ActorFailed,
    AgentReturned,
    DescribeSession,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    Generated,
    ModelResponsePart,
    OpenSession,
    SetReward,
    TrajectoryExported,
)
from areal_actors.runtime.actor import Tick
from areal_bus.errors import NoReply, NoResponder


@pytest.fixture
async def manager(send):
    return await Manager(send).ready()


async def test_an_episode_from_its_session_to_its_trajectory(manager):
    opened = await manager.open(work("4.1", attempt=2))
    assert opened.session.startswith("4.1-2-")
    assert (opened.base_url, opened.weight_version) == (f"http://gateway/{opened.session}/v1", 0)
    (answer,) = await manager.chat(opened.session, "why?")
    (recorded,) = manager.recorded()
    assert isinstance(answer, ModelResponsePart)
    assert (answer.text, answer.finish_reason, answer.prompt_tokens, answer.completion_tokens) == ("hi", "stop", 9, 3)
    assert (recorded.interaction, recorded.weight_version) == (answer.interaction, 3)
    (left,) = await manager(EpisodeScored(work=work("4.1", attempt=2), session=opened.session, reward=0.5))
    assert isinstance(left, TrajectoryExported)
    assert (left.recorded, manager.recorded()) == ((recorded,), [])
    trajectory = left.trajectory
    assert (trajectory.episode, trajectory.group, trajectory.attempt, trajectory.reward) == ("4.1", "4", 2, 0.5)
    (turn,) = trajectory.interactions
    assert (turn.id, turn.completion, turn.reward) == (answer.interaction, columns("hi\n", 3), 0.5)
    assert "".join(map(chr, unpack_ids(turn.prompt_suffix))) == "u:why?\na:"
    assert len(manager.actor.registry) == 0


async def test_the_second_prompt_begins_with_the_exact_ids_of_the_first(manager):
    opened = await manager.open()
    await manager.chat(opened.session, "why?")
    await manager.chat(opened.session, "why?", "hi", "really?")
    _, recorded = manager.recorded()
    first, second = manager.asked
    assert second.prompt_ids.startswith(first.prompt_ids + columns("hi\n", 0).token_ids)
    assert (recorded.interaction, recorded.parent) == ("0.0-1-2", "0.0-1-1")
    (left,) = await manager(EpisodeScored(work=work(), session=opened.session, reward=1.0))
    assert [turn.parent for turn in left.trajectory.interactions] == ["", left.trajectory.interactions[0].id]
    assert left.trajectory.interactions[1].prompt_suffix == second.prompt_ids[len(first.prompt_ids) + 12 :]


async def test_a_session_s_keys_are_long_differ_and_follow_from_the_secret(send, manager):
    first, second = await manager.open(work("0.0")), await manager.open(work("0.1"))
    assert first.api_key != second.api_key
    assert all(opened.api_key.startswith("sk-") and len(opened.api_key) == 67 for opened in (first, second))


async def test_options_hold_for_the_call_and_the_session_s_sampling_for_the_rest(manager):
    opened = await manager.open()
    await manager.chat(opened.session, "a", top_p=0.5, stop=["x"])
    (question,) = manager.asked
    assert (question.sampling.top_p, question.sampling.stop, question.sampling.max_tokens) == (0.5, ("x",), 20)
    assert isinstance(question.sampling.seed, int)
    evaluated = await manager.open(work("0.1", purpose="evaluate"))
    await manager.chat(evaluated.session, "b", seed=7)
    assert manager.asked[1].sampling.seed == 7


@pytest.mark.parametrize(
    ("options", "field", "complaint"),
    [
        ({"temperature": "hot"}, "temperature", "'temperature': expected `float`, got `str`"),
        ({"temperature": -1}, "temperature", "'temperature': expected `float` >= 0.0"),
        ({"temperature": True}, "temperature", "got `bool`"),
        ({"temperature": 0.5}, "temperature", "'temperature' is 0.5, but this run trains at 1: leave it out"),
        ({"top_p": 0}, "top_p", "'top_p' is 0; expected a number above 0, at most 1"),
        ({"top_p": 1.5}, "top_p", "'top_p' is 1.5"),
        ({"top_k": 1.5}, "top_k", "'top_k': expected `int`, got `float`"),
        ({"max_tokens": 0}, "max_tokens", "'max_tokens': expected `int` >= 1"),
        ({"seed": "x"}, "seed", "'seed': expected `int | null`"),
    ],
)
async def test_a_wrong_option_is_a_400_that_names_it(manager, options, field, complaint):
    opened = await manager.open()
    (answer,) = await manager.chat(opened.session, "a", **options)
    assert (answer.error_status, answer.error_field) == (400, field)
    assert complaint in answer.error
    assert manager.asked == []


async def test_a_prompt_beyond_the_context_is_a_400_with_both_numbers(manager):
    opened = await manager.open()
    (answer,) = await manager.chat(opened.session, "x" * 300)
    assert (answer.error_status, answer.error_field) == (400, "messages")
    assert (
        answer.error
        == "prompt is too long: 305 tokens > 200 maximum; this model's maximum context length is 200 tokens: shorten"
        " 'messages'"
    )


async def test_max_tokens_is_cut_to_what_the_context_leaves(manager):
    opened = await manager.open()
    await manager.chat(opened.session, "x" * 190, max_tokens=100)
    assert manager.asked[0].sampling.max_tokens == 5


async def test_what_the_engine_refuses_is_the_client_s_error_and_what_it_cannot_do_is_not(manager):
    opened = await manager.open()
    manager.generate = lambda question: [Generated(error="'top_k' is too large for this engine", error_field="top_k")]
    (answer,) = await manager.chat(opened.session, "a")
    assert (answer.error_status, answer.error_field) == (400, "top_k")
    manager.generate = lambda question: [Generated(error="out of memory")]
    refused, answer = await manager.chat(opened.session, "a")
    assert (answer.error, answer.error_status) == ("a: engine error: out of memory", 503)
    assert (refused.worker, refused.session, refused.check) == ("a", opened.session, "engine error")
    manager.generate = lambda question: [Generated(finish_reason="stop")]
    refused, answer = await manager.chat(opened.session, "a")
    assert answer.error_status == 503
    assert "without a single token" in answer.error
    assert refused.check == "no tokens"
    (gone,) = await manager(EpisodeScored(work=work(), session=opened.session, reward=1.0))
    assert isinstance(gone, EpisodeAbandoned)
    assert (gone.reason, gone.detail) == ("engine", answer.error)


async def test_a_streamed_answer_comes_in_parts_and_is_recorded_once(manager):
    opened = await manager.open()
    manager.generate = lambda question: [
        Generated(columns=columns("h", 3)),
        Generated(columns=columns("i\n", 4), finish_reason="length"),
    ]
    first, second, last = await manager.chat(opened.session, "a", stream=True)
    assert (first.text, second.text, last.text, last.finish_reason) == ("h", "i", "", "length")
    (recorded,) = manager.recorded()
    assert (recorded.completion_tokens, recorded.weight_version, last.completion_tokens) == (3, 4, 3)


async def test_a_worker_that_dies_in_mid_completion_is_replaced_and_the_columns_are_whole(send):
    manager = await Manager(send, workers=("a", "b")).ready()
    opened = await manager.open()

    def generate(question):
        if len(manager.asked) == 1:
            yield Generated(columns=columns("hel", 3))
            raise NoResponder("no process serves tokens.generate as a now")
        yield Generated(columns=columns("lo\n", 4), finish_reason="stop")

    manager.generate = generate
    parts = await manager.chat(opened.session, "why?", stream=True)
    assert "".join(part.text for part in parts if isinstance(part, ModelResponsePart)) == "hello"
    first, second = manager.asked
    assert second.prompt_ids == first.prompt_ids + columns("hel", 0).token_ids
    assert second.sampling.max_tokens == first.sampling.max_tokens - 3
    assert second.sampling.seed == first.sampling.seed
    (left,) = await manager(EpisodeScored(work=work(), session=opened.session, reward=1.0))
    made = left.trajectory.interactions[0].completion
    assert "".join(map(chr, made.ids_array())) == "hello\n"
    assert made.versions_array().tolist() == [3, 3, 3, 4, 4, 4]
    assert made.logprobs_array().tolist() == [-0.5, -0.625, -0.75] * 2
    assert manager.actor.calls.pool.versions == {"b": 0}


async def test_a_session_stays_with_its_worker_until_that_gives_an_invalid_completion(send):
    manager = await Manager(send, workers=("a", "b")).ready()
    opened = await manager.open()
    with manager.actor.calls.pool.count_call("a"):
        await manager.chat(opened.session, "x")
    await manager.chat(opened.session, "y")
    manager.generate = lambda question: [Generated(error="out of memory")]
    assert [(await manager.chat(opened.session, "z"))[0].worker for _ in range(2)] == ["b", "a"]
    _, left = await manager(EpisodeScored(work=work(), session=opened.session, reward=1.0))
    assert left.reason == "engine"


async def test_a_worker_that_dies_with_the_last_word_missing_only_leaves_a_completion_cut_by_length(send):
    manager = await Manager(send, workers=("a", "b")).ready()
    opened = await manager.open()

    def generate(question):
        yield Generated(columns=columns("12345", 3))
        raise NoResponder("no process serves tokens.generate as a now")

    manager.generate = generate
    parts = await manager.chat(opened.session, "why?", stream=True, max_tokens=5)
    assert (parts[-1].finish_reason, parts[-1].completion_tokens, len(manager.asked)) == ("length", 5, 1)


async def test_a_silent_worker_is_a_503(manager):
    opened = await manager.open()

    def generate(question):
        raise NoReply("tokens.generate: no reply within 10 s")

    manager.generate = generate
    refused, answer = await manager.chat(opened.session, "a")
    assert answer.error_status == 503
    assert "a did not answer" in answer.error
    assert (refused.worker, refused.check) == ("a", "no answer")


async def test_before_the_first_weights_a_call_is_a_503(send):
    manager = Manager(send)
    opened = await manager.open()
    (answer,) = await manager.chat(opened.session, "a")
    assert (answer.error_status, "no weights have been published" in answer.error) == (503, True)


async def test_without_a_live_worker_a_call_is_a_503_within_the_timeout(manager):
    opened = await manager.open(lease=0.01)
    await manager(ActorFailed(actor="a", process="p", reason="killed"))
    (answer,) = await manager.chat(opened.session, "a")
    assert answer.error_status == 503
    assert "no inference worker has come up within 0.01 s" in answer.error
    assert manager.actor.registry.get(opened.session).running == 0


async def test_a_session_that_is_over_answers_410_and_no_reward(manager):
    opened = await manager.open()
    await manager.chat(opened.session, "a")
    await manager(EpisodeScored(work=work(), session=opened.session, reward=1.0))
    (answer,) = await manager.chat(opened.session, "b")
    assert answer.error_status == 410
    (answer,) = await manager(SetReward(session=opened.session, reward=1.0))
    assert answer.error_status == 410


async def test_a_reward_for_an_interaction_that_is_not_there_is_a_404(manager):
    opened = await manager.open()
    (answer,) = await manager(SetReward(session=opened.session, reward=1.0))
    assert (answer.error_status, "has no completed interaction" in answer.error) == (404, True)
    await manager.chat(opened.session, "a")
    (answer,) = await manager(SetReward(session=opened.session, interaction="else", reward=1.0))
    assert answer.error_status == 404


async def test_rewards_set_over_http_are_those_of_the_trajectory(manager):
    opened = await manager.open()
    (first,) = await manager.chat(opened.session, "a")
    await manager.chat(opened.session, "b")
    (answer,) = await manager(SetReward(session=opened.session, interaction=first.interaction, reward=0.25))
    assert not answer.error
    (left,) = await manager(EpisodeScored(work=work(), session=opened.session))
    assert [turn.reward for turn in left.trajectory.interactions] == [0.25, None]
    assert left.trajectory.reward == 0.25


@pytest.mark.parametrize(
    ("calls", "score", "complaint"),
    [
        (0, {"reward": 1.0}, "made no model call"),
        (1, {}, "returned None and set no reward"),
        (1, {"rewards": {"else": 1.0}}, "rewarded interactions else that this episode does not have; it has "),
    ],
)
async def test_what_cannot_be_trained_is_abandoned_by_name(manager, calls, score, complaint):
    run = work(attempts_left=1)
    opened = await manager.open(run)
    for _ in range(calls):
        await manager.chat(opened.session, "a")
    recorded = manager.recorded()
    *before, gone = await manager(EpisodeScored(work=run, session=opened.session, **score))
    assert [call for event in before for call in event.recorded] == recorded
    assert len(recorded) == calls
    assert isinstance(gone, EpisodeAbandoned)
    assert (gone.reason, gone.work) == ("agent", run)
    assert complaint in gone.detail
    assert len(manager.actor.registry) == 0
    await manager.open(work(attempt=2))


async def test_a_held_out_episode_is_evaluated_and_not_trained(manager):
    run = work("evaluation-0-greedy.1", purpose="evaluate")
    opened = await manager.open(run)
    await manager.chat(opened.session, "a")
    calls, done = await manager(EpisodeScored(work=run, session=opened.session, reward=1.0, output="42"))
    assert [call.purpose for call in calls.recorded] == ["evaluate"]
    assert done == EpisodeEvaluated(work=run, reward=1.0, output="42", completion_tokens=3, sampled_by={3: 3})


async def test_a_score_for_a_session_that_the_gateway_lost_abandons_the_attempt(manager):
    (gone,) = await manager(EpisodeScored(work=work(attempts_left=1), session="of-an-earlier-life", reward=1.0))
    assert (gone.reason, gone.work.attempts_left) == ("session", 1)


async def test_a_score_for_a_replaced_session_emits_nothing(manager):
    first = await manager.open()
    await manager.chat(first.session, "a")
    second = await manager.open()
    assert second.session != first.session
    assert await manager(EpisodeScored(work=work(), session=first.session, reward=1.0)) == []
    await manager.chat(second.session, "a")
    assert len(await manager(EpisodeScored(work=work(), session=second.session, reward=1.0))) == 1


async def test_an_episode_is_exported_once_whatever_is_scored_again(manager):
    opened = await manager.open()
    await manager.chat(opened.session, "a")
    scored = EpisodeScored(work=work(), session=opened.session, reward=1.0)
    assert len(await manager(scored, scored)) == 1
    (refused,) = await manager(OpenSession(work=work(), lease_seconds=1.0))
    assert refused.refused == "episode 0.0 is finished"


async def test_a_session_opened_before_the_news_that_its_episode_is_finished_exports_nothing(manager):
    opened = await manager.open()
    await manager.chat(opened.session, "a")
    await manager(exported("0.0"))
    assert await manager(EpisodeScored(work=work(), session=opened.session, reward=1.0)) == []
    assert len(manager.actor.registry) == 0


async def test_an_unused_session_is_lost_when_its_lease_ends(manager):
    opened = await manager.open(work(attempts_left=1), now=100.0)
    await manager.chat(opened.session, "a", now=105.0)
    (calls,) = await manager(Tick(), now=114.0)
    assert [(call.session, call.attempt, call.time) for call in calls.recorded] == [(opened.session, 1, 105.0)]
    (gone,) = await manager(Tick(), now=116.0)
    assert (gone.reason, gone.detail) == ("lost", f"session {opened.session} was not used for 10 s")
    assert await manager(Tick(), now=999.0) == []


async def test_calls_are_in_the_log_before_the_failure_of_their_agent_or_its_score_can_be(manager):
    reported = []
    for number, question in enumerate((DescribeSession, AgentReturned)):
        opened = await manager.open(work(f"{number}.0"))
        await manager.chat(opened.session, "a")
        reported += await manager(question(session=opened.session))
    first, described, second = reported
    assert [call.session for event in (first, second) for call in event.recorded] == [described.session, opened.session]
    assert manager.recorded() == []


async def test_calls_of_many_sessions_are_reported_together(manager, monkeypatch):
    monkeypatch.setattr("areal_actors.gateway.sessions.episode_end.REPORTED_TOGETHER", 2)
    for number in range(3):
        await manager.chat((await manager.open(work(f"{number}.0"))).session, "a")
    reported = await manager(Tick())
    assert [[call.episode for call in event.recorded] for event in reported] == [["0.0", "1.0"], ["2.0"]]
    assert await manager(Tick()) == []


async def test_what_others_abandoned_needs_no_session_any_more(manager):
    opened = await manager.open(work(attempts_left=1))
    await manager(abandoned("0.0", attempts_left=1))
    (answer,) = await manager.chat(opened.session, "a")
    assert answer.error_status == 410


async def test_a_template_that_rewrites_history_is_reported_with_the_interaction(send):
    manager = Manager(send)
    forgetful = letters(template=LETTERS_TEMPLATE.replace("in messages", "in messages[-1:]"))
    manager.actor.load_tokenizer = lambda folder: forgetful
    await manager.ready()
    opened = await manager.open()
    await manager.chat(opened.session, "a")
    await manager.chat(opened.session, "a", "hi", "b")
    _, recorded = manager.recorded()
    assert (recorded.parent != "", recorded.prefix, recorded.prefix_break_reason) == (
        True,
        "",
        "the chat template rewrites earlier messages",
    )


async def test_the_status_counts_sessions_and_what_is_in_flight(manager):
    await manager.open()
    assert manager.actor.status() == {"sessions": 1, "in flight of a": 0}


async def test_a_model_without_a_chat_template_is_an_answer_and_not_the_end_of_every_session(send):
    manager = Manager(send)
    manager.actor.load_tokenizer = lambda folder: letters(template="")
    await manager.ready()
    opened = await manager.open()
    (answer,) = await manager.chat(opened.session, "a")
    assert (answer.error_status, answer.error) == (
        503,
        "the model has no chat template: add chat_template.jinja to its folder",
    )
