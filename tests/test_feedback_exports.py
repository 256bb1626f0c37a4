"""Judged sessions as data: rewards by feedback, edited answers, preferred calls; nothing of erased ones."""

from __future__ import annotations

import msgspec
from support.samples import interaction
from support.sessions_harness import SAMPLING

from areal_actors.core.values import Task, Trajectory
from areal_actors.export.judged import edit_rows, preferred_rows
from areal_actors.export.selection import select_best
from areal_actors.feedback.ledger import FeedbackLedger
from areal_actors.messages import (
    ConversationKept,
    EpisodeAbandoned,
    FeedbackGiven,
    RunEpisode,
    SessionsErased,
    SessionStarted,
    TrajectoryExported,
)
from areal_actors.reader.feedback import REWARD_AT_END, judge_sessions
from areal_actors.reader.records import EndedEpisode

CALLS = (interaction("s-1", "xy"), interaction("s-2", "z", parent="s-1"), interaction("s-3", "xw"))


def work(number):
    return RunEpisode(episode=f"{number}.0", group=str(number), task=Task(id="chat", data={}), sampling=SAMPLING)


def unrewarded(number, calls=CALLS, omitted=0):
    kept = ConversationKept(
        session=f"s{number}",
        episode=f"{number}.0",
        group=str(number),
        attempt=1,
        interactions=calls,
        omitted_calls=omitted,
    )
    event = EpisodeAbandoned(work=work(number), reason="unrewarded", detail="")
    return EndedEpisode(event=event, time=0.0, sequence=number + 1, work=None, output="", conversation=kept)


def rewarded(number, reward):
    calls = (msgspec.structs.replace(CALLS[0], reward=reward),)
    trajectory = Trajectory(
        episode=f"{number}.0", group=str(number), attempt=1, task="chat", reward=reward, interactions=calls
    )
    event = TrajectoryExported(trajectory=trajectory)
    return EndedEpisode(event=event, time=0.0, sequence=number + 1, work=None, output="")


def judged(ended, *events):
    ledger, sessions = FeedbackLedger(), {}
    for attempt in ended:
        name = f"s{attempt.group}"
        consent = attempt.group != "9"
        started = SessionStarted(
            session=name, work=work(int(attempt.group)), member=0, index=0, key=b"", user="ann", consent=consent
        )
        ledger.fold(started, 0.0)
        sessions[attempt.episode, 1] = name
    for event in events:
        ledger.fold(event, 1.0)
    return judge_sessions(ended, ledger, sessions)


def feedback(session, **fields):
    return FeedbackGiven(**{"id": f"{session} {fields}", "session": session, "kind": "reward", **fields})


def test_a_judged_session_becomes_a_trajectory_with_the_tokens_of_its_calls():
    result = judged([unrewarded(0), unrewarded(1)], feedback("s0", reward=0.5), feedback("s0", reward=1.0, user="bob"))
    first, second = result.ended()
    assert (first.outcome, first.reward, first.trajectory.interactions[0].completion) == (
        "exported",
        0.75,
        CALLS[0].completion,
    )
    assert [call.reward for call in first.trajectory.interactions] == [None, None, 0.75]
    assert (second.outcome, second.reward) == ("surplus", None)
    assert [attempt.episode for attempt in select_best(result.ended(), best=9, least_reward=0).chosen] == ["0.0"]


def test_feedback_on_a_call_is_the_reward_of_that_call_alone():
    (ended,) = judged([unrewarded(0)], feedback("s0", interaction="s-1", reward=0.25)).ended()
    assert [call.reward for call in ended.trajectory.interactions] == [0.25, None, None]
    assert ended.reward == 0.25


def test_feedback_on_a_call_leaves_the_rewards_of_the_others():
    calls = (CALLS[0], msgspec.structs.replace(CALLS[1], reward=1.0))
    trajectory = Trajectory(episode="0.0", group="0", attempt=1, task="chat", reward=1.0, interactions=calls)
    ended = msgspec.structs.replace(rewarded(0, 1.0), event=TrajectoryExported(trajectory=trajectory))
    (judged_episode,) = judged([ended], feedback("s0", interaction="s-1", reward=0.25)).ended()
    assert [call.reward for call in judged_episode.trajectory.interactions] == [0.25, 1.0]
    assert judged_episode.reward == 1.0


def test_feedback_counts_in_place_of_the_reward_at_the_end():
    (ended,) = judged([rewarded(0, 1.0)], feedback("s0", reward=0.0), feedback("s0", reward=1.0, name="polite")).ended()
    assert (ended.reward, ended.trajectory.metrics) == (0.0, {"polite": 1.0, REWARD_AT_END: 1.0})
    (untouched,) = judged([rewarded(0, 1.0)]).ended()
    assert untouched == rewarded(0, 1.0)


def test_erased_sessions_and_those_without_consent_are_in_no_export():
    events = (feedback("s0", reward=1.0), feedback("s9", reward=1.0), SessionsErased(sessions=("s0",)))
    result = judged([unrewarded(0), unrewarded(9), rewarded(2, 1.0)], *events)
    assert [ended.episode for ended in result.ended()] == ["2.0"]
    assert result.left_out == {"an erasure on request": 1, "no consent": 1}


def test_a_conversation_whose_beginning_is_missing_has_no_reward():
    (ended,) = judged([unrewarded(0, omitted=1)], feedback("s0", reward=1.0)).ended()
    assert ended.trajectory is None


def test_an_edited_answer_is_a_demonstration_after_the_prompt_of_the_call():
    result = judged([unrewarded(0)], feedback("s0", kind="edit", interaction="s-2", text="ab", user="ann"))
    (row,) = edit_rows(result.sessions[0], lambda text: [ord(letter) for letter in text], lambda ids: None)
    prompt = [63, 120, 121, 63]
    end = [122] if CALLS[1].finish_reason == "stop" else []
    assert row["input_ids"] == [*prompt, 97, 98, *end]
    assert row["completion_mask"] == [0] * len(prompt) + [1] * (2 + len(end))
    assert (row["interaction"], row["user"]) == ("s-2", "ann")


def test_a_preferred_call_is_a_pair_if_both_answer_one_prompt():
    pair = feedback("s0", kind="preference", interaction="s-1", worse="s-3")
    other = feedback("s0", kind="preference", interaction="s-1", worse="s-2")
    result = judged([unrewarded(0)], pair, other)
    (row,) = preferred_rows(result.sessions[0], lambda ids: None)
    assert (row["prompt_ids"], row["chosen_ids"], row["rejected_ids"]) == ([63], [120, 121], [120, 119])
