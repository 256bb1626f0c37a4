"""Errors of the session protocol, with their messages."""

from __future__ import annotations

import json

import pytest
from support.sessions_harness import sessions_harness


@pytest.fixture
async def harness():
    """Two groups of two."""
    async with sessions_harness(group_size=2) as harness:
        await harness.grant(2)
        yield harness


@pytest.mark.parametrize(
    ("path", "body", "field", "complaint"),
    [
        ("/rl/start_session", {}, "task_id", "'task_id' is missing"),
        ("/rl/start_session", {"task_id": ""}, "task_id", "length >= 1"),
        ("/rl/start_session", {"task_id": 5}, "task_id", "expected `str`"),
        ("/rl/start_session", {"task_id": "a", "gruop_size": 2}, "gruop_size", "is not a known field"),
        (
            "/rl/start_session",
            {"task_id": "a", "group_size": 3},
            "group_size",
            "this run trains groups of 2: send 2, or leave it out",
        ),
        ("/rl/start_session", {"task_id": "a", "group_size": 0}, "group_size", ">= 1"),
        ("/rl/start_session", {"task_id": "a", "api_key": "with space"}, "api_key", "matching regex"),
        ("/rl/start_session", [1], None, "expected `object`"),
        ("/grant_capacity", {"slots": 3}, "slots", "is not a known field"),
        ("/export_trajectories", {"session_id": "a", "style": "tree"}, "style", "invalid enum value"),
        ("/export_trajectories", {"session_id": "a", "discount": 1.5}, "discount", "<= 1"),
        (
            "/export_trajectories",
            {"session_id": "a", "discount": float("nan")},
            "discount",
            "'discount' is nan; expected a finite number",
        ),
        ("/export_trajectories", {"session_id": "a", "wait_seconds": 1e6}, "wait_seconds", "<= 600"),
    ],
)
async def test_a_wrong_field_is_a_400_that_names_it(harness, path, body, field, complaint):
    status, answer = await harness.post(path, raw=json.dumps(body))
    assert (status, answer["error"]["param"]) == (400, field), answer
    assert complaint in answer["error"]["message"]


@pytest.mark.parametrize("raw", [b"{", b"\xff", b'{"task_id": "a"} x', b"[" * 100_000])
async def test_what_is_no_json_is_a_400(harness, raw):
    status, answer = await harness.post("/rl/start_session", raw=raw)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("value", [1, 0, -1.5, 1e9, -(10**9), True])
async def test_every_finite_number_is_a_reward(harness, value):
    given = await harness.started()
    harness.record(given["session_id"], ("a", "x", ""))
    assert (await harness.post("/rl/set_reward", {"reward": value, "interaction_id": "a"}, given["api_key"]))[0] == 200
    _, state, _ = await harness.call("GET", "/rl/session", key=given["api_key"])
    assert state["rewards"] == {"a": float(value)}


@pytest.mark.parametrize("raw", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400, '"1"', "null", "[1]", "{}"])
async def test_what_is_no_finite_number_is_no_reward(harness, raw):
    given = await harness.started()
    harness.record(given["session_id"], ("a", "x", ""))
    status, answer = await harness.post("/rl/set_reward", raw=f'{{"reward": {raw}}}', key=given["api_key"])
    assert (status, answer["error"]["param"]) == (400, "reward")
    assert "expected a finite number" in answer["error"]["message"]


async def test_a_reward_for_a_call_that_is_not_there_is_a_404(harness):
    given = await harness.started()
    harness.record(given["session_id"], ("a", "x", ""))
    status, answer = await harness.post("/rl/set_reward", {"reward": 1, "interaction_id": "b"}, given["api_key"])
    assert (status, "no completed interaction 'b'; it has a" in answer["error"]["message"]) == (404, True)
