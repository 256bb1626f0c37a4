"""A worker completes a prompt from what it holds only if that gives exactly the tokens that the request names."""

from __future__ import annotations

import random
from collections import defaultdict

import msgspec
import pytest

from areal_actors.core.token_digest import TokenDigest
from areal_actors.core.values import SamplingParams, TokenColumns, pack_ids
from areal_actors.gateway.conversations.prompt_digests import LEAST_BYTES, MAX_ENDS, PromptDigests
from areal_actors.gateway.conversations.turns import ConversationTurn, Prompt, record_turn
from areal_actors.generation.held_prompts import END_BYTES, ENDS, HeldPrompts, PrefixLost
from areal_actors.messages import Generate
from areal_bus.base import Envelope, Stamp

HOW = SamplingParams(max_tokens=4)


def digest_of(ids):
    return TokenDigest(pack_ids(ids)).value()


def whole(ids):
    return Generate(prompt_ids=pack_ids(ids), sampling=HOW, digest=digest_of(ids))


def suffix(before, ids):
    """A request whose prompt has these ids after a prefix."""
    return Generate(
        prompt_ids=pack_ids(ids),
        sampling=HOW,
        prefix=digest_of(before),
        prefix_tokens=len(before),
        digest=digest_of([*before, *ids]),
    )


def columns(ids):
    return TokenColumns.of(ids, [-1.0] * len(ids), [0] * len(ids))


def problem_of(held, request):
    with pytest.raises(PrefixLost) as caught:
        held.take_prompt(request)
    return caught.value.problem


def test_a_prompt_and_its_answer_are_the_prefix_of_the_next_turn():
    held = HeldPrompts()
    assert held.take_prompt(whole([1, 2, 3])).tolist() == [1, 2, 3]
    held.add_completion(digest_of([1, 2, 3]), pack_ids([4, 5]))
    assert held.take_prompt(suffix([1, 2, 3, 4, 5], [6])).tolist() == [1, 2, 3, 4, 5, 6]
    assert held.saved_tokens == 5


def test_the_same_prompt_is_named_and_not_sent_again():
    held = HeldPrompts()
    held.take_prompt(whole([1, 2, 3]))
    assert held.take_prompt(suffix([1, 2, 3], [])).tolist() == [1, 2, 3]
    held.add_completion(digest_of([1, 2, 3]), pack_ids([4]))
    held.add_completion(digest_of([1, 2, 3]), pack_ids([7]))
    assert held.take_prompt(suffix([1, 2, 3, 4], [5])).tolist() == [1, 2, 3, 4, 5]
    assert held.take_prompt(suffix([1, 2, 3, 7], [8])).tolist() == [1, 2, 3, 7, 8], "siblings diverge after it"


def test_what_the_engine_gets_does_not_change_when_the_conversation_goes_on():
    held = HeldPrompts()
    prompt = held.take_prompt(whole([1, 2]))
    held.add_completion(digest_of([1, 2]), pack_ids([3]))
    held.take_prompt(suffix([1, 2, 3], [4]))
    assert prompt.tolist() == [1, 2]


def test_a_prefix_that_is_not_held_is_asked_for_and_so_is_another_than_its_caller_believes():
    held = HeldPrompts()
    assert problem_of(held, suffix([1, 2], [3])) == "missing"
    held.take_prompt(whole([1, 2]))
    longer = suffix([1, 2], [3])
    assert problem_of(held, msgspec.structs.replace(longer, prefix_tokens=3)) == "mismatch"
    assert problem_of(held, msgspec.structs.replace(longer, prompt_ids=pack_ids([4]))) == "mismatch"
    assert problem_of(held, msgspec.structs.replace(longer, digest=digest_of([1, 2, 4]))) == "mismatch"
    named = msgspec.structs.replace(suffix([1, 2], []), prefix_tokens=1)
    assert problem_of(held, named) == "mismatch"
    assert held.problems == {"missing": 1, "mismatch": 4}
    assert held.counts()["prefixes, mismatch"] == 4
    assert held.take_prompt(longer).tolist() == [1, 2, 3], "nothing of what was refused is held"


def test_a_whole_prompt_under_another_digest_is_answered_and_not_held():
    held = HeldPrompts()
    wrong = msgspec.structs.replace(whole([1, 2]), digest=digest_of([1, 3]))
    assert held.take_prompt(wrong).tolist() == [1, 2]
    assert held.problems == {"mismatch": 1}
    assert problem_of(held, suffix([1, 3], [4])) == "missing"


def test_a_prompt_without_a_digest_is_not_held():
    held = HeldPrompts()
    held.take_prompt(Generate(prompt_ids=pack_ids([1, 2]), sampling=HOW))
    held.add_completion(b"", pack_ids([3]))
    assert held.size == 0
    assert not held.counts()


def test_a_long_conversation_keeps_its_first_end_and_its_last_ones():
    held, ids = HeldPrompts(), [0]
    held.take_prompt(whole(ids))
    lengths = []
    for turn in range(1, 3 * ENDS):
        held.take_prompt(suffix(ids, [turn]))
        ids = [*ids, turn]
        lengths.append(len(ids))
    assert held.take_prompt(suffix([0], [])).tolist() == [0]
    assert problem_of(held, suffix(ids[:5], [])) == "missing"
    assert held.take_prompt(suffix(ids[: lengths[-ENDS + 1]], [])).tolist() == ids[: lengths[-ENDS + 1]]
    assert held.size == 4 * len(ids) + END_BYTES * ENDS


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_calls_gives_exact_prompts_within_the_bound(seed):
    """Two gateways believe anything; groups share prompts, calls branch, and the store is too small for all of them."""
    dice, most = random.Random(seed), 24 * END_BYTES
    held = HeldPrompts(most)
    conversations, outcomes = [[dice.randrange(9) for _ in range(dice.randrange(1, 200))] for _ in range(6)], set()
    for _ in range(600):
        before = dice.choice(conversations)
        new = [dice.randrange(9) for _ in range(dice.randrange(40))]
        prompt = [*before, *new]
        request = suffix(before, new) if dice.random() < 0.8 else whole(prompt)
        try:
            assert held.take_prompt(request).tolist() == prompt
            outcomes.add("held" if request.prefix else "whole")
        except PrefixLost as lost:
            outcomes.add(lost.problem)
            assert held.take_prompt(whole(prompt)).tolist() == prompt
        if dice.random() < 0.8:
            answer = [dice.randrange(9) for _ in range(dice.randrange(1, 20))]
            held.add_completion(digest_of(prompt), pack_ids(answer))
            prompt += answer
        conversations[dice.randrange(len(conversations))] = prompt if dice.random() < 0.9 else [1, 2, 3]
        assert held.size <= most
        assert held.size == sum(each.size() for each in held._recent)
        assert {name for each in held._recent for name in each.ends} == set(held._by_end)
    assert outcomes == {"held", "whole", "missing"}


def test_a_prompt_beyond_the_bound_is_answered_and_leaves_the_store_empty():
    held = HeldPrompts(END_BYTES)
    ids = list(range(400))
    assert held.take_prompt(whole(ids)).tolist() == ids
    held.add_completion(digest_of(ids), pack_ids([1]))
    assert held.size == 0


def test_a_request_with_a_suffix_is_equivalent_to_the_whole_one_of_an_earlier_recording():
    ids = list(range(300))
    recorded = Generate(prompt_ids=pack_ids(ids), sampling=HOW)
    now = suffix(ids[:250], ids[250:])
    assert now != recorded
    assert now.is_equivalent(recorded)
    assert recorded.is_equivalent(now)
    assert whole(ids).is_equivalent(now)
    for other in (whole(ids[:-1]), msgspec.structs.replace(now, stream=True), suffix(ids[:250], [*ids[250:-1], 7])):
        assert not other.is_equivalent(recorded)


def test_a_suffix_is_sent_as_byte_streams_and_read_as_it_was():
    request = suffix([1, 2, 3], [70_000, 4])
    stamp = Stamp(id="i", sender="s", time=0.0)
    assert Envelope.seal(request, stamp, "run").open(Generate) == request
    named = suffix([1, 2, 3], [])
    assert Envelope.seal(named, stamp, "run").open(Generate) == named


@pytest.mark.parametrize("seed", range(4))
def test_digests_of_a_conversation_are_those_of_all_its_tokens(seed):
    """Whatever is remembered of it: parameters change, calls branch, and ends are forgotten."""
    dice, digests = random.Random(seed), PromptDigests()
    turns: dict[str, ConversationTurn] = {}
    known = defaultdict(int)
    for number in range(60):
        before = dice.choice(["", *turns])
        ids = pack_ids([dice.randrange(1000) for _ in range(dice.randrange(1, 900))])
        cached = turns[before].token_count if before else 0
        prompt = Prompt(suffix_ids=ids, prefix=before, cached_tokens=cached, earlier=turns if before else {})
        assert prompt.token_count == len(prompt.token_ids) // 4
        how = dice.choice([b"{}", b'{"top_p":1}'])
        found = digests.of_prompt("s", prompt, how)
        assert found.tokens.value() == TokenDigest(prompt.token_ids).value()
        assert found.call.value() == TokenDigest(how + prompt.token_ids).value(), "seeds are those of earlier versions"
        known[("s", before) in digests._ends] += 1
        assert found.prefix == (TokenDigest(prompt.token_ids[: -len(ids)]).value() if before else b"")
        completion = columns([dice.randrange(1000) for _ in range(5)])
        turns[f"c{number}"] = record_turn(f"c{number}", prompt, completion, "stop", {"role": "assistant"})
        if dice.random() < 0.7:
            digests.record("s", f"c{number}", prompt, found.extended(completion.token_ids))
            assert ("s", before) not in digests._ends or not before or prompt.token_count < LEAST_BYTES // 4
    assert known[True] > 5
    assert known[False] > 5


def test_digests_are_kept_of_the_last_calls_only():
    digests, prompt = PromptDigests(), Prompt(suffix_ids=bytes(LEAST_BYTES))
    end = digests.of_prompt("s", prompt, b"{}")
    for number in range(MAX_ENDS + 5):
        digests.record("s", str(number), prompt, end)
    assert len(digests._ends) == MAX_ENDS
    assert ("s", "4") not in digests._ends
    digests.record("s", "short", Prompt(suffix_ids=bytes(LEAST_BYTES - 4)), end)
    assert ("s", "short") not in digests._ends


def test_a_whole_prompt_is_never_refused():
    """Its sender could only send the same again."""
    held, other = HeldPrompts(), list(range(301))
    held.take_prompt(whole(range(300)))
    request = msgspec.structs.replace(whole(other), digest=digest_of(range(300)))
    assert held.take_prompt(request).tolist() == other
    assert held.problems == {"mismatch": 1}
