"""The episodes of a group begin with the same messages: their prompt is made once."""

from __future__ import annotations

from support.samples import LETTERS_TEMPLATE, letters
from test_conversation import Talk, user

from areal_actors.gateway.conversations.continuation import KEPT_PROMPTS, LONGEST_KEPT_BYTES


def test_siblings_share_the_prompt_of_equal_messages_and_settings():
    talk = Talk()
    first = talk.prompt([user("hi")])
    assert talk.prompt([user("hi")]) is first
    for other in (talk.prompt([user("ho")]), talk.prompt([user("hi")], template_kwargs={"enable_thinking": True})):
        assert other is not first


def test_a_call_that_continues_another_has_its_own_prompt():
    talk = Talk()
    turn = talk.call([user("hi")], "yes")
    later = [user("hi"), turn.answer, user("and?")]
    assert talk.prompt(later).prefix == turn.interaction.id
    assert talk.prompt(later) is not talk.prompt(later)


def test_the_prompts_used_last_are_kept_and_no_long_ones():
    talk = Talk()
    first, second = talk.prompt([user("0")]), talk.prompt([user("1")])
    for number in range(2, KEPT_PROMPTS):
        talk.prompt([user(str(number))])
    assert talk.prompt([user("0")]) is first
    talk.prompt([user("one more")])
    assert talk.prompt([user("0")]) is first
    assert talk.prompt([user("1")]) is not second
    long = [user("a" * LONGEST_KEPT_BYTES)]
    assert talk.prompt(long) is not talk.prompt(long)


def test_prompts_of_a_template_that_writes_the_date_are_not_kept():
    talk = Talk(letters(template="{{ strftime_now('%Y') }}" + LETTERS_TEMPLATE))
    assert talk.prompt([user("hi")]) is not talk.prompt([user("hi")])
