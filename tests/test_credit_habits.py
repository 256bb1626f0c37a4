"""Credit under a discount, whatever agents do with their history: the calls of an episode are continued by what
followed them."""

from __future__ import annotations

import json

import pytest
from support.credit_play import assistant, play, returns, system, user

Q, SUM = user("solve it"), user("sum up")


async def keep(p):
    """The whole history, as a chat client keeps it."""
    first = await p.ask(Q)
    second = await p.ask(Q, assistant(first), user("go on"))
    await p.ask(Q, assistant(first), user("go on"), assistant(second), user("end"))


async def compact(p):
    """A summary by the model replaces the history."""
    first = await p.ask(Q)
    summary = await p.ask(Q, assistant(first), SUM)
    await p.ask(user(f"summary: {summary}. go on"))


async def compact_alone(p):
    """A summary of another conversation replaces the history."""
    first = await p.ask(Q)
    summary = await p.ask(user(f"sum up: {first}"))
    await p.ask(user(f"summary: {summary}. go on"))


async def slide(p):
    """Only the last messages are sent."""
    first = await p.ask(Q)
    second = await p.ask(assistant(first), user("b"))
    await p.ask(assistant(second), user("c"))


async def forget(p):
    """Every call begins anew with an observation."""
    for observation in "abc":
        await p.ask(user(f"you see {observation}"))


async def change_the_clock(p):
    """A clock in the system prompt."""
    first = await p.ask(system("it is 12:00"), Q)
    second = await p.ask(system("it is 12:01"), Q, assistant(first), user("b"))
    await p.ask(system("it is 12:02"), Q, assistant(first), user("b"), assistant(second), user("c"))


async def plan_and_act(p):
    """A plan in one conversation, two acts in another."""
    await p.ask(user("plan"))
    act = await p.ask(user("act"))
    await p.ask(user("act"), assistant(act), user("again"))


async def drop_empty_answers(p):
    """An empty answer is left out of the history, another message is added."""
    await p.ask(Q)
    second = await p.ask(Q, user("well?"))
    await p.ask(Q, user("well?"), assistant(second), user("end"))


async def ask_again(p):
    """An invalid answer is asked for again without it, at the beginning and in mid-conversation."""
    first = await p.ask(Q)
    await p.ask(Q, assistant(first), user("as JSON"))
    await p.ask(Q, assistant(first), user("as JSON"))


async def omit_observations(p):
    """An old observation is replaced."""
    first = await p.ask(Q)
    second = await p.ask(Q, assistant(first), user("a long page"))
    await p.ask(Q, assistant(first), user("[omitted]"), assistant(second), user("next"))


async def strip_spaces(p):
    """A framework trims user messages of the history."""
    first = await p.ask(user("solve it  "))
    second = await p.ask(user("solve it"), assistant(first), user("b  "))
    await p.ask(user("solve it"), assistant(first), user("b"), assistant(second), user("c"))


async def format_answers(p):
    """Answers are parsed and sent back with other spaces."""
    history = [Q]
    for _ in range(3):
        answer = await p.ask(*history)
        history += [assistant(json.dumps(json.loads(answer), indent=2)), user("next")]


CHAINS = [
    *(keep, compact, compact_alone, slide, forget, change_the_clock, plan_and_act),
    *(drop_empty_answers, ask_again, omit_observations, strip_spaces, format_answers),
]


@pytest.mark.parametrize("discount", [0.9, 1.0])
@pytest.mark.parametrize("agent", CHAINS, ids=lambda agent: agent.__name__)
async def test_three_calls_in_a_row_have_the_discounted_reward_of_the_last(send, agent, discount):
    trajectory, found = await play(send, agent, ['{"a":1}', '{"b":2}', '{"c":3}'])
    assert returns(trajectory, discount) == pytest.approx([discount**2, discount, 1])
    assert returns(trajectory, discount, "sum") == pytest.approx([discount**2, discount, 1])
    assert (found[0], "none" in found[1:]) == ("none", False)


@pytest.mark.parametrize("agent", CHAINS, ids=lambda agent: agent.__name__)
async def test_without_a_discount_every_call_has_the_reward_of_the_episode(send, agent):
    trajectory, _ = await play(send, agent, ['{"a":1}', '{"b":2}', '{"c":3}'], reward=0.7)
    assert returns(trajectory, None) == [0.7, 0.7, 0.7]


async def test_calls_of_a_sub_agent_are_continued_by_the_call_that_used_its_result(send):
    async def delegate(p):
        first = await p.ask(Q)
        part = await p.ask(user("a part"))
        result = await p.ask(user("a part"), assistant(part), user("more"))
        await p.ask(Q, assistant(first), user(f"result: {result}"))

    trajectory, found = await play(send, delegate, list("abcd"))
    assert returns(trajectory, 0.9) == pytest.approx([0.9, 0.81, 0.9, 1])
    assert returns(trajectory, 1.0) == returns(trajectory, 1.0, "sum") == [1, 1, 1, 1]
    assert found == ["none", "time", "value", "value"]


async def test_sub_agents_that_run_at_the_same_time_are_all_continued(send):
    async def delegate(p):
        first = await p.ask(Q)
        results = await p.ask_together(*((user(f"part {part}"),) for part in range(3)))
        await p.ask(Q, assistant(first), user(", ".join(results)))

    trajectory, _ = await play(send, delegate, list("abcde"))
    assert returns(trajectory, 0.9) == pytest.approx([0.9, 0.9, 0.9, 0.9, 1])


@pytest.mark.parametrize("at_once", [True, False])
async def test_candidates_that_were_not_chosen_are_continued_by_the_call_after_the_choice(send, at_once):
    async def choose(p):
        if at_once:
            candidates = await p.ask_together((Q,), (Q,), (Q,))
        else:
            candidates = [await p.ask(Q) for _ in range(3)]
        await p.ask(user(f"which is best: {candidates}"))

    trajectory, _ = await play(send, choose, list("abcd"))
    assert returns(trajectory, 1.0) == returns(trajectory, 1.0, "sum") == [1, 1, 1, 1]
    assert returns(trajectory, 0.9) == pytest.approx([0.9, 0.9, 0.9, 1] if at_once else [0.729, 0.81, 0.9, 1])


async def test_all_choices_of_a_call_are_continued_by_the_next(send):
    async def choose(p):
        await p.ask(Q, choices=3)
        await p.ask(user("which is best?"))

    trajectory, _ = await play(send, choose, ["a"])
    assert returns(trajectory, 0.9) == pytest.approx([0.9, 0.9, 0.9, 1])


async def test_alternatives_with_rewards_of_their_own_do_not_touch_each_other(send):
    async def search(p):
        first = await p.ask(Q)
        await p.ask(Q, assistant(first), user("left"))
        await p.reward(0.0)
        await p.ask(Q, assistant(first), user("right"))
        return 1.0

    trajectory, _ = await play(send, search, list("abc"))
    assert returns(trajectory, 0.9) == pytest.approx([0.45, 0, 1])


async def test_conversations_that_the_client_names_do_not_touch_each_other(send):
    async def two(p):
        await p.ask(user("a"), conversation="one")
        await p.ask(user("b"), conversation="two")

    trajectory, found = await play(send, two)
    assert returns(trajectory, 0.9) == [0, 1]
    assert found == ["none", "none"]


@pytest.mark.parametrize("named", [True, False])
async def test_roles_with_rewards_of_their_own_do_not_touch_each_other(send, named):
    async def solve_and_judge(p):
        solution = await p.ask(system("solve"), Q, conversation="solver" if named else "")
        await p.reward(1.0)
        await p.ask(system("judge"), user(f"is it right? {solution}"), conversation="judge" if named else "")
        return 5.0

    trajectory, _ = await play(send, solve_and_judge, ["a long solution", "5"])
    assert returns(trajectory, 0.9) == returns(trajectory, 0.9, "sum") == [1, 5]


async def test_a_conversation_with_a_name_is_continued_by_a_call_that_has_its_last_answer(send):
    async def delegate(p):
        first = await p.ask(user("a"), conversation="main")
        result = await p.ask(user("b"), conversation="helper")
        await p.ask(user("a"), assistant(first), user(f"the helper says {result}"), conversation="main")

    trajectory, _ = await play(send, delegate, ["one", "42", "three"])
    assert returns(trajectory, 0.9) == pytest.approx([0.9, 0.9, 1])
