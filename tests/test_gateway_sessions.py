"""The session protocol as agents outside the run meet it."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.sessions_harness import ADMIN, SessionsHarness, sessions_harness

from areal_actors.gateway.settings import GatewaySettings
from areal_actors.messages import EpisodeAbandoned, SessionStarted, TrajectoryExported
from areal_actors.sequences.export import from_msgpack, sequences

MSGPACK = {"Accept": "application/msgpack"}


@pytest.fixture
async def harness():
    """Two groups of two."""
    async with sessions_harness(group_size=2) as harness:
        await harness.grant(2)
        yield harness


async def ended(harness, session, key, reward=1.0):
    if reward is not None:
        assert await harness.post("/rl/set_reward", {"reward": reward}, key) == (200, {"status": "ok"})
    return await harness.post("/rl/end_session", key=key)


# ---------------------------------------------------------------- a session from its start to its rows


async def test_a_session_from_its_start_to_its_rows(harness):
    given = await harness.started("sum")
    session, key = given["session_id"], given["api_key"]
    assert session == "sum-0"
    assert given["base_url"] == f"{harness.root}/sum-0/v1"
    assert (key[:3], len(key)) == ("sk-", 67)
    harness.record(session, ("a", "xy", ""), ("b", "z", "a"))
    status, answer = await ended(harness, session, key)
    assert (status, answer) == (200, {"session_id": session, "interaction_count": 2, "state": "exported"})
    (event,) = harness.log(TrajectoryExported)
    assert (event.trajectory.episode, event.trajectory.group, event.trajectory.task, event.trajectory.reward) == (
        "0.0",
        "0",
        "sum",
        1.0,
    )
    assert [turn.reward for turn in event.trajectory.interactions] == [None, 1.0]
    status, answer = await harness.post(
        "/export_trajectories", {"session_id": session, "discount": 0.5, "style": "individual"}
    )
    assert status == 200
    assert [
        (row["interaction_id"], row["rewards"], row["input_ids"], row["loss_mask"]) for row in answer["sequences"]
    ] == [
        ("a", [0.5], [63, 120, 121], [0, 1, 1]),
        ("b", [1.0], [63, 120, 121, 63, 122], [0, 0, 0, 0, 1]),
    ]
    assert answer["sequences"][0]["versions"] == [-1, 0, 0]
    assert answer["sequences"][0]["logprobs"] == [0.0, -0.5, -0.625]
    assert answer["sequences"][0]["attention_mask"] == [True, True, True]


@pytest.mark.parametrize("letter", ["a", "é", "漢"])
async def test_the_longest_task_id_is_exported(harness, letter):
    task = letter * 256
    given = await harness.started(task)
    assert given["session_id"] == f"{task}-0"
    harness.record(given["session_id"], ("a", "xy", ""))
    status, _ = await ended(harness, given["session_id"], given["api_key"])
    assert status == 200
    status, answer = await harness.post("/export_trajectories", {"session_id": given["session_id"]})
    assert (status, len(answer["sequences"])) == (200, 1)
    status, answer = await harness.post("/rl/start_session", {"task_id": task + letter})
    assert (status, answer["error"]["param"]) == (400, "task_id")


async def test_exports_in_msgpack_and_json_are_equal(harness):
    given = await harness.started()
    harness.record(given["session_id"], ("a", "xy", ""), ("b", "z", "a"), ("c", "w", "a"))
    await ended(harness, given["session_id"], given["api_key"])
    for style in ("individual", "concat"):
        asked = {"session_id": given["session_id"], "discount": 0.9, "style": style}
        _, readable = await harness.post("/export_trajectories", asked)
        status, compact, headers = await harness.call("POST", "/export_trajectories", asked, headers=MSGPACK)
        assert (status, headers["Content-Type"]) == (200, "application/msgpack")
        for row, state in zip(sequences(compact), readable["sequences"], strict=True):
            assert {name: column.tolist() for name, column in row.items()} == {name: state[name] for name in row}
        again = await harness.call("POST", "/export_trajectories", asked, headers=MSGPACK)
        assert again[1] == compact
    assert from_msgpack(compact).task_id == "sum"


async def test_sessions_of_one_task_are_the_members_of_its_group(harness):
    names = [(await harness.started(task))["session_id"] for task in ("a", "b", "a", "b")]
    assert names == ["a-0", "b-0", "a-1", "b-1"]
    assert [event.work.episode for event in harness.log(SessionStarted)] == ["0.0", "1.0", "0.1", "1.1"]
    status, answer, headers = await harness.call("POST", "/rl/start_session", {"task_id": "a"})
    assert (status, headers["Retry-After"]) == (429, "5")
    assert "no group is left for task 'a'" in answer["error"]["message"]
    await harness.grant(1, first_group=2)
    assert (await harness.started("a"))["session_id"] == "a-2"


@pytest.mark.parametrize("task", ["maths/17", "aufgabe ü", "a?b#c", "50%", "..", "v1"])
async def test_any_text_names_a_task_and_its_base_url_leads_to_the_session(harness, task):
    given = await harness.started(task)
    path = given["base_url"].removeprefix(harness.root).removesuffix("/v1")
    status, answer, _ = await harness.call("GET", f"{path}/rl/session", key=given["api_key"])
    assert (status, answer.get("session_id")) == (200, f"{task}-0")


async def test_ending_twice_is_ending_once(harness):
    given = await harness.started()
    harness.record(given["session_id"], ("a", "x", ""))
    first = await ended(harness, given["session_id"], given["api_key"])
    assert await harness.post("/rl/end_session", key=given["api_key"]) == first
    assert len(harness.log(TrajectoryExported)) == 1


async def test_two_ends_at_the_same_time_export_once(harness):
    given = await harness.started()
    harness.record(given["session_id"], ("a", "x", ""))
    await harness.post("/rl/set_reward", {"reward": 1}, given["api_key"])
    answers = await asyncio.gather(*(harness.post("/rl/end_session", key=given["api_key"]) for _ in range(5)))
    assert {status for status, _ in answers} == {200}
    assert len(harness.log(TrajectoryExported)) == 1


# ---------------------------------------------------------------- what is over


@pytest.mark.parametrize(("calls", "reason"), [(1, "ended without a reward"), (0, "no model call")])
async def test_what_cannot_be_trained_is_abandoned_by_name_and_exports_nothing(harness, calls, reason):
    given = await harness.started()
    harness.record(given["session_id"], *[("a", "x", "")][:calls])
    status, answer = await harness.post("/rl/end_session", key=given["api_key"])
    assert (status, answer["state"], reason in answer["reason"]) == (200, "abandoned", True)
    (gone,) = harness.log(EpisodeAbandoned)
    assert (gone.reason, gone.work.episode, gone.work.attempts_left) == ("agent", "0.0", 0)
    status, answer = await harness.post("/export_trajectories", {"session_id": given["session_id"]})
    assert (status, "was abandoned" in answer["error"]["message"]) == (410, True)


async def test_after_its_end_a_session_takes_no_call_and_no_reward(harness):
    given = await harness.started()
    harness.record(given["session_id"], ("a", "x", ""))
    await ended(harness, given["session_id"], given["api_key"])
    for path, body in (
        ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "?"}]}),
        ("/rl/set_reward", {"reward": 1.0}),
        (f"/{given['session_id']}/rl/set_reward", {"reward": 1.0, "interaction_id": "a"}),
    ):
        status, answer = await harness.post(path, body, given["api_key"])
        assert (status, answer["error"]["type"]) == (410, "session_over"), answer


async def test_an_unfinished_session_is_exported_only_to_a_waiting_caller(harness):
    given = await harness.started()
    asked = {"session_id": given["session_id"]}
    status, answer = await harness.post("/export_trajectories", asked)
    assert (status, "end it first" in answer["error"]["message"]) == (409, True)
    assert (await harness.post("/export_trajectories", {**asked, "wait_seconds": 0.01}))[0] == 409
    harness.record(given["session_id"], ("a", "x", ""))
    waiting = asyncio.create_task(harness.post("/export_trajectories", {**asked, "wait_seconds": 5}))
    await asyncio.sleep(0.02)
    await ended(harness, given["session_id"], given["api_key"])
    status, answer = await waiting
    assert (status, len(answer["sequences"])) == (200, 1)


async def test_what_is_not_kept_any_more_is_gone_and_what_never_was_is_not_found():
    async with sessions_harness(GatewaySettings(finished_sessions_cached=1), slots=2) as harness:
        for task in ("a", "b"):
            given = await harness.started(task)
            harness.record(given["session_id"], (f"{task}1", "x", ""))
            await ended(harness, given["session_id"], given["api_key"])
        assert [
            (await harness.post("/export_trajectories", {"session_id": name}))[0] for name in ("a-0", "b-0", "c-0")
        ] == [410, 200, 404]


# ---------------------------------------------------------------- keys


async def test_the_endpoints_of_the_admin_take_no_other_key(harness):
    given = await harness.started()
    for path in ("/grant_capacity", "/rl/start_session", "/export_trajectories"):
        assert [(await harness.post(path, {}, key))[0] for key in ("", given["api_key"], "sk-other", ADMIN + "x")] == [
            401,
            403,
            403,
            403,
        ]
    assert (await harness.post("/grant_capacity", headers={"x-api-key": ADMIN}, key=""))[0] == 200


async def test_the_admin_key_is_no_session_s_key(harness):
    status, answer = await harness.post("/rl/start_session", {"task_id": "a", "api_key": ADMIN})
    assert (status, answer["error"]["param"]) == (400, "api_key")
    assert (await harness.post("/rl/end_session", key=ADMIN))[0] == 401


async def test_an_agent_with_one_key_runs_session_after_session(harness):
    first = await harness.started("a", api_key="sk-mine")
    assert first["api_key"] == "sk-mine"
    harness.record(first["session_id"], ("a", "x", ""))
    status, answer = await harness.post("/rl/start_session", {"task_id": "a", "api_key": "sk-mine"})
    assert (status, answer["error"]["param"], "a-0, which is unfinished" in answer["error"]["message"]) == (
        409,
        "api_key",
        True,
    )
    await ended(harness, first["session_id"], "sk-mine")
    second = await harness.started("a", api_key="sk-mine")
    assert second["session_id"] == "a-1"
    assert (await harness.call("GET", "/rl/session", key="sk-mine"))[1]["session_id"] == "a-1"


async def test_replacing_a_session_ends_and_exports_it_first(harness):
    first = await harness.started("a", api_key="sk-mine")
    harness.record(first["session_id"], ("a", "x", ""))
    await harness.post("/rl/set_reward", {"reward": 0.5}, "sk-mine")
    second = await harness.started("a", api_key="sk-mine", replace=True)
    assert second["session_id"] == "a-1"
    assert [event.trajectory.episode for event in harness.log(TrajectoryExported)] == ["0.0"]


# ---------------------------------------------------------------- capacity and leases


# ---------------------------------------------------------------- how it stands


async def test_a_session_reports_its_state_to_its_own_key_and_to_the_admin(harness):
    given = await harness.started()
    session, key = given["session_id"], given["api_key"]
    harness.record(session, ("a", "xy", ""), ("b", "z", "a"))
    await harness.post("/rl/set_reward", {"reward": 0.5, "interaction_id": "a"}, key)
    _, state, _ = await harness.call("GET", "/rl/session", key=key)
    assert (state["state"], state["interaction_count"], state["rewards"], state["calls_in_hand"]) == (
        "active",
        2,
        {"a": 0.5},
        0,
    )
    assert state["tokens"] == {"sampled": 3, "longest": 5}
    assert state["interactions"][1] == {
        "id": "b",
        "parent": "a",
        "prompt_tokens": 4,
        "completion_tokens": 1,
        "finish_reason": "stop",
        "reward": None,
        "client_session": "",
        "follows": [],
    }
    for path in (f"/{session}/rl/session", f"/rl/session?session_id={session}"):
        assert (await harness.call("GET", path))[1]["session_id"] == session
    assert (await harness.call("GET", "/rl/session"))[0] == 400
    assert (await harness.call("GET", "/nothing-0/rl/session"))[0] == 404


async def test_the_gateway_reports_readiness_and_prometheus_counters(harness):
    status, answer, _ = await harness.call("GET", "/ready", key="")
    assert (status, answer) == (503, {"status": "waiting", "for": "weights, an inference worker"})
    await harness.started()
    harness.manager.calls.refused["inference_worker-0"] = 1_234_567
    status, text, headers = await harness.call("GET", "/metrics", key="")
    assert (status, headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    lines = text.decode().splitlines()
    assert 'areal_sessions{state="opened"} 1' in lines
    assert "areal_session_slots_free 3" in lines
    assert 'areal_sessions_ended_total{outcome="exported"} 0' in lines
    assert 'areal_completions_refused_total{worker="inference_worker-0"} 1234567' in lines
    assert "areal_ready 0" in lines


# ---------------------------------------------------------------- after a restart


async def test_a_restarted_gateway_continues_with_names_and_capacity_and_abandons_what_it_lost():
    async with sessions_harness(group_size=2) as before:
        await before.grant(2)
        done, open_one = await before.started("a"), await before.started("b")
        before.record(done["session_id"], ("a", "xy", ""))
        await ended(before, done["session_id"], done["api_key"])
        asked = {"session_id": done["session_id"]}
        exported = (await before.call("POST", "/export_trajectories", asked, headers=MSGPACK))[1]
        await before.stop()
        after = SessionsHarness(group_size=2, bus=before.bus)
        after.now = before.now + 1
        await after.start()
        try:
            await after.until(lambda: after.log(EpisodeAbandoned))
            (gone,) = after.log(EpisodeAbandoned)
            assert (gone.work.episode, gone.reason) == ("1.0", "session")
            assert gone.detail == "the gateway was lost, and the tokens of session b-0 with it"
            assert (await after.call("POST", "/export_trajectories", asked, headers=MSGPACK))[1] == exported
            assert (await after.post("/rl/set_reward", {"reward": 1}, open_one["api_key"]))[0] == 410
            assert [(await after.started(task))["session_id"] for task in ("a", "b")] == ["a-1", "b-1"]
            works = [event.work for event in after.log(SessionStarted)]
            assert [(work.episode, work.attempt) for work in works] == [("0.0", 1), ("1.0", 1), ("0.1", 1), ("1.0", 2)]
            assert [(await after.post("/grant_capacity"))[0] for _ in range(2)] == [200, 429]
        finally:
            await after.stop()


async def test_rows_are_arrays_of_the_promised_types(harness):
    given = await harness.started()
    harness.record(given["session_id"], ("a", "xy", ""))
    await ended(harness, given["session_id"], given["api_key"])
    _, payload, _ = await harness.call(
        "POST", "/export_trajectories", {"session_id": given["session_id"]}, headers=MSGPACK
    )
    (row,) = sequences(payload)
    assert {name: (column.dtype, column.shape) for name, column in row.items()} == {
        "input_ids": (np.int32, (3,)),
        "loss_mask": (np.int32, (3,)),
        "logprobs": (np.float32, (3,)),
        "versions": (np.int32, (3,)),
        "attention_mask": (np.bool_, (3,)),
        "token_rewards": (np.float32, (3,)),
        "rewards": (np.float32, (1,)),
    }


async def test_a_gateway_that_still_reads_the_log_has_a_session_asked_for_again(harness):
    given = await harness.started("sum")
    harness.record(given["session_id"], ("a", "x", ""))
    await ended(harness, given["session_id"], given["api_key"])
    harness.manager.external.caught_up = False
    question = {"session_id": "of-another-life-0"}
    assert (await harness.post("/export_trajectories", question))[0] == 503
    assert (await harness.post("/export_trajectories", {"session_id": given["session_id"]}))[0] == 200
    harness.manager.external.caught_up = True
    assert (await harness.post("/export_trajectories", question))[0] == 404
