"""A candidate beside the served weights: shares, the sequential test, decisions, guards, and what the log proves."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from support.samples import SAMPLING, interaction

from areal_actors.audit.audit import Audit
from areal_actors.canary.assignment import draw_share, is_in_share
from areal_actors.canary.candidate_worker import CandidateWorker
from areal_actors.canary.comparison import block_sizes
from areal_actors.canary.report import describe_comparison
from areal_actors.canary.served_versions import ServedVersions
from areal_actors.canary.trial import CandidateTrial, TrialState
from areal_actors.canary.verdict import decide, decided_event, judge_candidate
from areal_actors.canary.version_routing import VersionedWorkerPool
from areal_actors.core.errors import EngineError
from areal_actors.core.values import Task, TokenColumns, Trajectory, VersionSpan, WeightsLocation
from areal_actors.messages import (
    CandidateDecided,
    CandidatePublished,
    ConversationKept,
    EpisodeAbandoned,
    FeedbackGiven,
    RunEpisode,
    SessionsErased,
    SessionStarted,
    ShadowAnswered,
    TrajectoryExported,
    WeightsPublished,
)

SERVED = WeightsLocation(folder="/models/a", checksum="a", model="/models/a")
CANDIDATE = WeightsLocation(folder="/models/b", checksum="b", model="/models/b")
BOUNDS = {"share": 0.5, "least_difference": -0.01, "least_sessions": 20}


def published(**fields):
    return CandidatePublished(weight_version=1, location=CANDIDATE, serving_version=0, **{**BOUNDS, **fields})


def work(number):
    return RunEpisode(
        episode=f"{number}.0",
        group=str(number),
        attempt=0,
        attempts_left=0,
        task=Task(id="t", data={}),
        sampling=SAMPLING,
    )


class Sessions:
    """A log of a served model, folded as it is written."""

    def __init__(self, **fields):
        self.trial = CandidateTrial(seed=0)
        self.events = []
        self.count = 0
        self.fold(WeightsPublished(weight_version=0, location=SERVED))
        self.fold(published(**fields))

    def fold(self, event):
        self.events.append(event)
        self.trial.fold(event)

    def start(self, **fields):
        name, self.count = f"t-{self.count}", self.count + 1
        version = self.trial.version_for(name)
        self.fold(
            SessionStarted(
                session=name, work=work(self.count - 1), member=0, index=0, key=b"", weight_version=version, **fields
            )
        )
        return name, version

    def judge(self, session, reward, **fields):
        self.fold(FeedbackGiven(id="", session=session, kind="reward", reward=reward, **fields))

    def reward(self, rewards, sessions):
        """Sessions with the reward of their version."""
        for _ in range(sessions):
            session, version = self.start()
            self.judge(session, rewards[version])


def call(version, tokens=2, finish_reason="stop", problem="", name="t-0-1"):
    made = interaction(name, "ab"[:tokens])
    columns = msgspec.structs.replace(
        made.completion, versions=(VersionSpan(start=0, end=tokens, weight_version=version),)
    )
    return msgspec.structs.replace(made, completion=columns, finish_reason=finish_reason, call_problem=problem)


# ------------------------------------------------------------ shares


def test_sessions_are_drawn_by_seed_candidate_and_name_in_their_share():
    names = [f"chat-{number}" for number in range(20_000)]
    drawn = [name for name in names if is_in_share(7, 1, name, 0.1)]
    assert 0.09 < len(drawn) / len(names) < 0.11
    assert drawn == [name for name in reversed(names) if is_in_share(7, 1, name, 0.1)][::-1]
    assert drawn != [name for name in names if is_in_share(8, 1, name, 0.1)]
    assert draw_share(7, 1, "chat-0") != draw_share(7, 2, "chat-0")
    assert set(drawn) <= {name for name in names if is_in_share(7, 1, name, 0.3)}, "a larger share keeps its sessions"


@pytest.mark.parametrize(("share", "sizes"), [(0.5, (1, 1)), (0.1, (9, 1)), (0.75, (1, 3)), (0.01, (99, 1))])
def test_a_pair_has_about_as_many_sessions_of_each_version_as_come(share, sizes):
    assert block_sizes(share) == sizes


# ------------------------------------------------------------ decisions


@pytest.mark.parametrize(("rewards", "decision"), [({0: 0.4, 1: 0.6}, "promoted"), ({0: 0.6, 1: 0.4}, "rolled back")])
def test_a_candidate_is_promoted_or_rolled_back_as_soon_as_rewards_show_it(rewards, decision):
    log = Sessions()
    while (decided := decide(log.trial)) is None:
        log.reward(rewards, 1)
        assert log.count < 500
    assert (decided.decision, decided.by) == (decision, "test")
    assert min(decided.sessions) >= 20
    log.fold(decided)
    assert decide(log.trial) is None
    assert {log.start()[1] for _ in range(20)} == ({1} if decision == "promoted" else {0})
    again = CandidateTrial(seed=0)
    for event in log.events[: log.events.index(decided)]:
        again.fold(event)
    assert decide(again) == decided, "the log before a decision gives its figures"
    assert decided.sentence().startswith(f"candidate version 1 is {decision}: the difference in reward is ")


def test_what_is_not_shown_is_refused_with_the_sessions_that_are_missing():
    log = Sessions()
    log.reward({0: 0.5, 1: 0.5}, 10)
    verdict = judge_candidate(log.trial)
    assert (verdict.decision, verdict.needed) == (None, 2 * (20 - min(log.trial.rewarded())))
    random = np.random.default_rng(0)
    for _ in range(100):
        session, _ = log.start()
        log.judge(session, float(random.random()))
    verdict = judge_candidate(log.trial)
    assert verdict.decision is None
    assert verdict.needed is not None
    assert verdict.needed > 100
    text = describe_comparison(log.trial, verdict)
    assert f"missing: about {verdict.needed:,} more sessions" in text
    assert msgspec.json.decode(describe_comparison(log.trial, verdict, as_json=True))["decision"] is None


def test_only_a_canary_is_decided_by_itself():
    log = Sessions(mode="a/b")
    log.reward({0: 0.1, 1: 0.9}, 200)
    assert judge_candidate(log.trial).decision == "promoted"
    assert decide(log.trial) is None


def test_superiority_asks_for_more_than_being_as_good():
    rewards, sessions = {0: 0.5, 1: 0.51}, 2000
    kinds = {}
    for least in (-0.05, 0.05):
        log = Sessions(least_difference=least)
        log.reward(rewards, sessions)
        kinds[least] = judge_candidate(log.trial).decision
    assert kinds == {-0.05: "promoted", 0.05: None}


def test_a_guard_beyond_its_limit_rolls_back_and_one_that_is_not_shown_to_be_within_keeps_back():
    log = Sessions(limits={"truncated": 0.2}, max_tokens=4)
    for number in range(400):
        session, version = log.start()
        log.judge(session, 0.9 if version else 0.1)
        if number == 200:
            assert "truncated" in judge_candidate(log.trial).reason
            assert judge_candidate(log.trial).decision is None
        if number > 200:
            calls = (call(version, finish_reason="length" if version else "stop"),)
            log.fold(ConversationKept(session=session, episode=f"{number}.0", group="", attempt=0, interactions=calls))
    metrics = {metric.name: metric for metric in log.trial.metrics()}
    assert (metrics["truncated"].candidate, metrics["truncated"].serving) == (1.0, 0.0)
    assert metrics["length"].candidate == pytest.approx(0.5)
    assert judge_candidate(log.trial).decision == "rolled back"
    assert "above its limit of +0.2" in judge_candidate(log.trial).reason


# ------------------------------------------------------------ sessions that count


def test_a_session_counts_once_and_neither_without_consent_nor_erased_nor_by_another_name():
    log = Sessions()
    once, _ = log.start()
    log.judge(once, 1.0)
    log.judge(once, 0.0)
    private, _ = log.start(consent=False)
    log.judge(private, 1.0)
    erased, _ = log.start()
    log.fold(SessionsErased(sessions=(erased,)))
    log.judge(erased, 1.0)
    named, _ = log.start()
    log.judge(named, 1.0, name="helpful")
    log.judge("of-an-earlier-day", 1.0)
    assert sum(log.trial.rewarded()) == 1
    ended, version = log.start()
    trajectory = Trajectory(
        episode=f"{log.count - 1}.0", group="", attempt=0, task="t", reward=1.0, interactions=(call(version),)
    )
    log.fold(TrajectoryExported(trajectory=trajectory))
    log.judge(ended, 0.0)
    assert sum(log.trial.rewarded()) == 2
    assert {metric.candidate or metric.serving for metric in log.trial.metrics() if metric.name == "reward"} == {1.0}


def test_open_sessions_are_those_without_an_end():
    log = Sessions()
    sessions = [log.start() for _ in range(6)]
    log.fold(EpisodeAbandoned(work=work(0), reason="session", detail=""))
    for version in (0, 1):
        expected = [name for name, its in sessions[1:] if its == version]
        assert log.trial.open_sessions(version) == expected


def test_a_restored_trial_goes_on_where_it_was():
    log = Sessions(limits={"length": 0.5})
    log.reward({0: 0.4, 1: 0.5}, 30)
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(log.trial.snapshot()), type=TrialState)
    restored = CandidateTrial(0, state)
    name, _ = log.start()
    for event in (log.events[-1], FeedbackGiven(id="", session=name, kind="reward", reward=1.0)):
        restored.fold(event)
    log.judge(name, 1.0)
    assert restored.metrics() == log.trial.metrics()
    assert restored.snapshot() == log.trial.snapshot()


def test_another_share_goes_on_with_the_comparison_and_another_candidate_begins_one():
    log = Sessions()
    log.reward({0: 0.5, 1: 0.5}, 10)
    log.fold(published(share=0.2))
    assert sum(log.trial.rewarded()) == 10
    log.fold(msgspec.structs.replace(published(), weight_version=2))
    assert sum(log.trial.rewarded()) == 0


# ------------------------------------------------------------ a shadow


def test_a_shadow_answers_no_session_and_is_compared_by_its_guards_only():
    log = Sessions(mode="shadow", max_tokens=4, limits={"truncated": 0.1})
    assert {log.start()[1] for _ in range(50)} == {0}
    log.judge("t-0", 1.0)
    for number in range(100):
        beside = call(1, finish_reason="length", name=f"t-{number}-1-shadow")
        log.fold(
            ShadowAnswered(session="t-0", interaction=f"t-{number}-1", weight_version=1, answer=beside, served_tokens=1)
        )
    metrics = {metric.name: metric for metric in log.trial.metrics()}
    assert log.trial.rewarded() == (0, 0)
    assert (metrics["truncated"].candidate, metrics["truncated"].serving) == (1.0, 0.0)
    assert metrics["length"].difference == pytest.approx(0.25)
    assert judge_candidate(log.trial).decision == "rolled back"


# ------------------------------------------------------------ weights of sessions


async def test_a_session_waits_for_a_worker_with_its_version_and_gets_no_other():
    pool = VersionedWorkerPool({"old": 0, "new": 1}.get)
    pool.record_load("inference_worker-0", 0)
    assert await pool.choose(1.0, "old") == "inference_worker-0"
    with pytest.raises(EngineError, match="no inference worker has version 1, that of session new"):
        await pool.choose(0.01, "new")
    pool.record_load("inference_worker-1", 1)
    assert await pool.choose(1.0, "new") == "inference_worker-1"
    with pool.count_call("inference_worker-1", "new"):
        assert await pool.choose(1.0, "new") == "inference_worker-1"
    pool.remove_lost("inference_worker-0")
    with pytest.raises(EngineError):
        await pool.choose(0.01, "old")


def test_a_worker_of_the_candidate_leaves_the_served_weights_to_the_others():
    assert {WeightsPublished, CandidatePublished} <= CandidateWorker.handlers.keys()
    assert CandidateWorker.handlers[WeightsPublished].emits == ()
    assert CandidateWorker.kind() == "inference_worker"


def test_the_audit_names_a_session_with_tokens_of_two_versions():
    audit = Audit(recipe={"actors": {"trainer": {"count": 0}}})
    events = [
        WeightsPublished(weight_version=0, location=SERVED),
        published(),
        *(
            SessionStarted(session=f"t-{n}", work=work(n), member=0, index=0, key=b"", weight_version=n)
            for n in range(2)
        ),
        ConversationKept(session="t-0", episode="0.0", group="0", attempt=0, interactions=(call(0),)),
        ConversationKept(session="t-1", episode="1.0", group="1", attempt=0, interactions=(call(1), call(0))),
    ]
    for number, event in enumerate(events, start=1):
        audit.event(number, event)
    assert (audit.sessions.checked, audit.sessions.mixed) == (1, 1)
    assert [str(fault) for fault in audit.faults] == [
        "event 6: version: episode 1.0 has version 1, and tokens of version 0"
    ]


# ------------------------------------------------------------ the next start


def decided(decision, version=1):
    return CandidateDecided(weight_version=version, serving_version=0, decision=decision, reason="")


@pytest.mark.parametrize(
    ("decisions", "asked", "version", "location"),
    [
        ((), SERVED, 0, SERVED),
        (("promoted",), SERVED, 1, CANDIDATE),
        (("promoted",), CANDIDATE, 1, CANDIDATE),
        (("rolled back",), SERVED, 0, SERVED),
        (("rolled back",), CANDIDATE, 2, CANDIDATE),
        (("promoted", "rolled back"), SERVED, 0, SERVED),
        (("rolled back", "promoted"), SERVED, 0, SERVED),
    ],
)
def test_a_promoted_candidate_is_served_in_place_of_the_model_that_is_asked_for(decisions, asked, version, location):
    versions = ServedVersions()
    for event in (WeightsPublished(weight_version=0, location=SERVED), published(), *map(decided, decisions)):
        versions.fold(event)
    assert versions.locate(asked) == WeightsPublished(weight_version=version, location=location)


def test_a_rollback_after_all_workers_have_loaded_it_publishes_the_model_again():
    versions = ServedVersions()
    for event in (
        WeightsPublished(weight_version=0, location=SERVED),
        published(),
        decided("promoted"),
        WeightsPublished(weight_version=1, location=CANDIDATE),
        decided("rolled back"),
    ):
        versions.fold(event)
    assert versions.locate(SERVED) == WeightsPublished(weight_version=2, location=SERVED)


def test_a_model_that_is_asked_for_later_is_served_after_a_promotion_was_published():
    other = msgspec.structs.replace(SERVED, folder="/models/c", checksum="c")
    versions = ServedVersions()
    for event in (
        WeightsPublished(weight_version=0, location=SERVED),
        published(),
        decided("promoted"),
        WeightsPublished(weight_version=1, location=CANDIDATE),
    ):
        versions.fold(event)
    assert versions.locate(SERVED).weight_version == 1
    assert versions.locate(other) == WeightsPublished(weight_version=2, location=other)


def test_the_operator_rolls_back_what_was_promoted():
    log = Sessions()
    log.fold(decided("promoted"))
    assert log.start()[1] == 1
    log.fold(decided_event(log.trial, "rolled back", "by the operator"))
    assert log.start()[1] == 0
    log.fold(decided("promoted"))
    assert log.start()[1] == 0


def test_token_columns_of_a_shadow_are_sent_packed():
    event = ShadowAnswered(session="s", interaction="i", weight_version=1, answer=call(1), served_tokens=1)
    assert isinstance(event.pack().answer.completion, TokenColumns)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(event.pack()), type=ShadowAnswered) == event
