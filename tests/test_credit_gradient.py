"""The policy gradient that R(call) gives, by enumeration of all answers, is the true one, whatever agents do with their
history.

Every call answers `0` or `1`; its probability depends on a parameter of its own. The estimate is the mean over all
episodes of Σ R(call) ∇ log π(answer of the call); the truth, without a discount and with 1, is the derivative of the
expected reward, and with a discount γ the same with γ^d for a call that d calls separate from the end.
"""

from __future__ import annotations

import itertools
import math

import pytest
from support.credit_play import assistant, play, returns, system, user

Q = user("solve it")
THETA = (0.3, -0.5, 0.8, 0.1)
"""Logits of answer `1` in the calls of an episode, in order."""


async def chain(p):
    history = [Q]
    for turn in range(4):
        history += [assistant(await p.ask(*history)), user(f"go on {turn}")]


async def compaction(p):
    first = await p.ask(Q)
    summary = await p.ask(Q, assistant(first), user("sum up"))
    third = await p.ask(user(f"so far {summary}"))
    await p.ask(user(f"so far {summary} and {third}"))


async def sliding_window(p):
    for turn in range(4):
        await p.ask(system(f"turn {turn}"), user("next"))


async def sub_agent(p):
    first = await p.ask(Q)
    part = await p.ask(user("a part"))
    result = await p.ask(user("a part"), assistant(part), user("more"))
    await p.ask(Q, assistant(first), user(f"result {result}"))


async def best_of_n(p):
    candidates = await p.ask_together((Q,), (Q,), (Q,))
    await p.ask(user(f"which is best: {candidates}"))


DISTANCES = {
    chain: (3, 2, 1, 0),
    compaction: (3, 2, 1, 0),
    sliding_window: (3, 2, 1, 0),
    sub_agent: (1, 2, 1, 0),
    best_of_n: (1, 1, 1, 0),
}
"""Calls between each call and the end."""


def reward(answers):
    """A reward in which all answers matter, alone and together."""
    a, b, c, d = map(int, answers)
    return 0.5 * a + 0.3 * b * d - 0.7 * c + a * b * c * d + 0.1


def probability(answer, theta):
    one = 1 / (1 + math.exp(-theta))
    return one if answer == "1" else 1 - one


def likelihood(answers, thetas):
    return math.prod(map(probability, answers, thetas))


def score(answer, theta):
    """Derivative of log π(answer)."""
    return (answer == "1") - probability("1", theta)


EPISODES = ["".join(answers) for answers in itertools.product("01", repeat=4)]


def expected_reward(thetas):
    return sum(likelihood(answers, thetas) * reward(answers) for answers in EPISODES)


def derivative(place, step=1e-5):
    up, down = ([theta + sign * step * (place == at) for at, theta in enumerate(THETA)] for sign in (1, -1))
    return (expected_reward(up) - expected_reward(down)) / (2 * step)


@pytest.mark.parametrize("agent", DISTANCES, ids=lambda agent: agent.__name__)
async def test_the_expected_gradient_is_the_true_gradient(send, agent):
    episodes = {answers: (await play(send, agent, list(answers), reward=reward(answers)))[0] for answers in EPISODES}
    for discount, branch in itertools.product((None, 0.9, 1.0), ("mean", "sum")):
        estimate = [0.0] * 4
        for answers, trajectory in episodes.items():
            for place, received in enumerate(returns(trajectory, discount, branch)):
                estimate[place] += likelihood(answers, THETA) * received * score(answers[place], THETA[place])
        true = [derivative(place) * (discount or 1.0) ** DISTANCES[agent][place] for place in range(4)]
        assert estimate == pytest.approx(true, abs=1e-3), (discount, branch)
        assert all(abs(value) > 0.01 for value in true)
