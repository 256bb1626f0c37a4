"""The two-player game: turns, roles, opponents in code and by name, and what is rewarded."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from support.framework_harness import ROOT, agent_here, opened_chat_gateway

from areal_actors.core.loading import load_named

AGENT = "agents/two_player_nim.py:TwoPlayerNimAgent"


@pytest.mark.parametrize(
    ("role", "heap", "answers", "result", "score"),
    [
        ("first", 5, ["1", "I take {}."], "won", 1.0),
        ("first", 4, ["1"], "lost", -1.0),
        ("first", 5, ["4"], "illegal", -1.0),
        ("second", 4, ["I take {}."], "won", 1.0),
        ("second", 4, ["none"], "illegal", -1.0),
    ],
)
async def test_the_last_nut_wins_and_an_illegal_move_loses(role, heap, answers, result, score):
    async with opened_chat_gateway() as harness, agent_here(AGENT) as (run, module):
        game = {"question": "a game", "heap": heap, "role": role, "opponent": "optimal"}
        left = 4 - module.choose_move("optimal", 4, random.Random("a game"))
        output, trajectory = await harness.play(run, [answer.format(left) for answer in answers], **game)
        assert output == result
        assert len(trajectory.interactions) == len(answers)
        assert f"{heap if role == 'first' else left} nuts." in harness.prompt_text(0)
        assert module.reward(game, output) == {
            "reward": score,
            "won": float(result == "won"),
            "won_optimal": float(result == "won"),
            "illegal": float(result == "illegal"),
        }


async def test_a_policy_s_calls_are_rewarded_beside_those_of_its_opponent():
    async with opened_chat_gateway() as harness, agent_here(AGENT) as (run, _):
        game = {"question": "a game", "heap": 6, "role": "second", "opponent": "default"}
        output, trajectory = await harness.play(run, ["2", "1", "3"], **game)
        roles = {call.id: call.role for call in trajectory.interactions}
        assert list(roles.values()) == ["first", "second", "first"]
        assert output == {
            "rewards": {call: 1.0 if role == "first" else -1.0 for call, role in roles.items()},
            "metrics": {"won": 0.0},
        }


def test_held_out_games_have_each_role_against_each_fixed_player_and_can_be_won():
    tasks = load_named("agents/two_player_nim.py:tasks", ROOT)
    held_out = tasks()["test"]
    kinds = itertools.product(("first", "second"), ("optimal", "random"))
    assert Counter((game["role"], game["opponent"]) for game in held_out) == dict.fromkeys(kinds, len(held_out) // 4)
    for game in held_out:
        assert game["opponent"] == "random" or (game["heap"] % 4 == 0) == (game["role"] == "second")
