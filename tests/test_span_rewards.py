"""Rewards of spans: from characters to the sampled tokens, by the tree to sequences, and to advantages of tokens."""

import math

import msgspec
import numpy as np
import pytest
from support.framework_harness import chat_tokenizer
from support.samples import interaction, trajectory, work

from areal_actors.batching.assembler import BatcherConfig, TrajectoryInfo, has_signal
from areal_actors.batching.batcher import Batcher
from areal_actors.core.errors import EngineError, RewardError
from areal_actors.core.span_rewards import SpanReward, TokenSpan
from areal_actors.core.values import TokenColumns
from areal_actors.gateway.conversations.turns import ConversationTurn, Prompt
from areal_actors.gateway.sessions.episode_end import outcome
from areal_actors.gateway.sessions.span_places import apply_spans, rewards_by_id
from areal_actors.gateway.sessions.table import Session
from areal_actors.messages import BatchFormed, EpisodeAbandoned, EpisodeScored, TrajectoryExported
from areal_actors.rewards.checks import check_score
from areal_actors.rewards.composition import weighted_reward
from areal_actors.rewards.spans import read_spans
from areal_actors.rollout.agent_runner import parse_result
from areal_actors.sequences.build import sequences_of
from areal_actors.sequences.credit import Credit
from areal_actors.tokenization.token_characters import TokenCharacters
from areal_actors.training.algorithms import DrGrpo, Grpo, Sft
from areal_actors.training.algorithms.base import refuse_unused_spans
from areal_actors.training.algorithms.spans import Spans
from areal_actors.training.step_columns import ArrayColumn, step_columns
from areal_actors.training.step_data import step_tokens

CHAT = chat_tokenizer()


def call(identifier="a", text="answer tools", **fields):
    """A call that samples the tokens of a text."""
    ids = CHAT.encode(text)
    return msgspec.structs.replace(
        interaction(identifier, "x", 0, **fields), completion=TokenColumns.of(ids, [-1.0] * len(ids), [0] * len(ids))
    )


def token_span(start, end, reward, name):
    return TokenSpan(start=start, end=end, reward=reward, name=name)


def spanned(identifier, text, *spans, reward=None, **fields):
    one = interaction(identifier, text, 0, **fields)
    return msgspec.structs.replace(one, reward=reward, spans=tuple(token_span(*span) for span in spans))


def advantages(episodes, credit=None, algorithm=None):
    rows = [row for number, group in enumerate(episodes) for one in group for row in rows_of(one, number, credit)]
    made = (algorithm or Grpo()).advantages(step_tokens(rows, 1))
    of_reader = (algorithm or Grpo()).advantages(step_columns(rows, 1, ArrayColumn.of))
    np.testing.assert_allclose(np.asarray(of_reader.tokens), made.tokens.numpy(), atol=1e-6)
    assert of_reader.metrics == pytest.approx(made.metrics)
    sizes = np.cumsum([row.loss_mask.sum() for row in rows])[:-1]
    return np.split(made.tokens.numpy(), sizes), made.metrics


def rows_of(one, number, credit):
    return sequences_of(one, number, 0, credit or Credit())


# ------------------------------------------------------------------------------------------- characters to tokens


@pytest.mark.parametrize("text", ["answer tools answer", "naïve 🙂🙂 ☃ tools", "a\n\n  b\t日本語", "🙂"])
def test_every_range_has_exactly_the_tokens_that_write_it(text):
    ids = CHAT.encode(text)
    characters = TokenCharacters.of(CHAT, ids)
    assert characters.text == text == CHAT.decode(ids)
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            first, last = characters.tokens_of(start, end)
            # the tokens write the range, and without the first or the last of them a part of it is missing
            written = CHAT.decode(ids[first:last])
            assert text[start:end] in written
            assert len(CHAT.decode(ids[:first]).rstrip("�")) <= start
            assert len(CHAT.decode(ids[: last - 1]).rstrip("�")) < end
            assert len(CHAT.decode(ids[: first + 1]).rstrip("�")) > start or "�" in CHAT.decode(ids[first : first + 1])


def test_a_span_that_splits_a_token_takes_all_of_it():
    one = call(text="answer tools")
    whole = TokenCharacters.of(CHAT, one.completion.ids_array().tolist())
    place = max(range(len(whole.starts)), key=lambda place: whole.ends[place] - whole.starts[place])
    assert whole.ends[place] - whole.starts[place] > 1
    middle = SpanReward(reward=1.0, start=whole.ends[place] - 1, end=whole.ends[place])
    (credited,) = apply_spans([one], [middle], CHAT)
    assert credited.spans == (token_span(place, place + 1, 1.0, "span"),)


def test_special_tokens_write_nothing_and_are_in_no_span():
    ids = [*CHAT.encode("answer"), *CHAT.stop_ids]
    one = msgspec.structs.replace(call(), completion=TokenColumns.of(ids, [-1.0] * len(ids), [0] * len(ids)))
    (credited,) = apply_spans([one], [SpanReward(reward=1.0, start=0, end=6)], CHAT)
    assert (credited.spans[0].start, credited.spans[0].end) == (0, len(ids) - 1)


def test_a_text_is_every_place_that_has_it_and_ranges_are_of_the_output():
    one = call(text="answer tools answer")
    (twice,) = apply_spans([one], [SpanReward(reward=-1.0, text="answer", name="word")], CHAT)
    assert [
        CHAT.decode(one.completion.ids_array()[span.start : span.end].tolist()).strip() for span in twice.spans
    ] == [
        "answer",
        "answer",
    ]
    (later,) = apply_spans([one], [SpanReward(reward=1.0, start=0, end=5)], CHAT, "tools answer")
    assert "tools" in CHAT.decode(one.completion.ids_array()[later.spans[0].start : later.spans[0].end].tolist())


@pytest.mark.parametrize(
    ("span", "output", "message"),
    [
        (SpanReward(reward=1.0, text="never"), "", "does not have the text 'never'"),
        (SpanReward(reward=1.0, start=3, end=99), "", "outside of a text of 12 characters"),
        (SpanReward(reward=1.0, start=0, end=3), "changed by the agent", "is no part of the completion"),
        (SpanReward(reward=1.0, text="answer", call="9"), "", "no call '9'"),
        (SpanReward(reward=1.0, text="answer", call="gone"), "", "no call 'gone'"),
    ],
)
def test_a_wrong_span_is_named(span, output, message):
    with pytest.raises(RewardError, match="span 0") as caught:
        apply_spans([call()], [span], CHAT, output)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"text": "a", "reward": math.nan}, "finite"),
        ({"text": "a", "reward": math.inf}, "finite"),
        ({"text": "a", "reward": "1"}, "real number"),
        ({"text": "", "reward": 1.0}, "not empty"),
        ({"start": 4, "end": 4, "reward": 1.0}, "0 <= `start` < `end`"),
        ({"start": -1, "end": 4, "reward": 1.0}, "0 <= `start` < `end`"),
        ({"text": "a", "start": 0, "end": 1, "reward": 1.0}, "either"),
        ({"text": "a"}, "must be"),
        ({"text": "a", "reward": 1.0, "nmae": "x"}, "must be"),
        ({"text": "a", "reward": 1.0, "name": ""}, "`name`"),
        ("a", "must be"),
    ],
)
def test_a_span_that_is_none_is_refused_by_its_number(stated, message):
    with pytest.raises(RewardError, match="span 1") as caught:
        read_spans([{"text": "a", "reward": 1}, stated])
    assert message in str(caught.value)


def test_calls_are_named_by_place_or_id():
    calls = [call("a"), msgspec.structs.replace(call("b"), trained=False), call("c")]
    assert rewards_by_id({"0": 0.5, "-1": 1.0, "b": 2.0}, calls) == {"a": 0.5, "c": 1.0, "b": 2.0}


# ------------------------------------------------------------------------------------ from functions and agents


def test_reward_functions_and_agents_return_them_beside_a_reward():
    score = check_score({"reward": 1, "form": 0.5, "spans": [{"text": "x", "reward": -1}], "calls": {0: 0.25}})
    assert (float(score), score.metrics, score.places) == (1.0, {"form": 0.5}, {"0": 0.25})
    assert score.spans == (SpanReward(reward=-1.0, text="x"),)
    assert check_score({"reward": 1, "spans": 3, "calls": 2}).metrics == {"spans": 3.0, "calls": 2.0}
    result = parse_result("agent", {"rewards": {"id": 1.0}, "spans": [{"text": "x", "reward": 1, "call": "id"}]})
    assert (result.rewards, result.spans[0].call) == ({"id": 1.0}, "id")


def test_a_closed_gate_closes_the_spans_of_its_reward():
    def marks(task, output):
        return {"reward": 1.0, "spans": [{"text": output, "reward": 1.0, "name": "mark"}]}

    rules = {"right": lambda task, output: float(output == "yes"), "marks": marks}
    options = {"right": {"weight": 1.0}, "marks": {"weight": 0.5, "only_if": "right"}}
    weigh = weighted_reward(options, lambda name, table: rules[name], "model:")
    assert [span.text for span in check_score(weigh({}, "yes")).spans] == ["yes"]
    assert check_score(weigh({}, "no")).spans == ()


def session(*calls):
    turns = tuple(
        ConversationTurn(interaction=one, answer={"content": ""}, prompt=Prompt(suffix_ids=b"")) for one in calls
    )
    return Session(id="s", api_key="k", work=work(), lease_seconds=9.0, expires=9.0, state="scored", turns=turns)


def test_the_trajectory_has_the_spans_and_a_wrong_one_fails_the_reward():
    scored = EpisodeScored(
        work=work(), session="s", reward=1.0, output="tools", spans=(SpanReward(reward=2.0, text="tools"),)
    )
    ending = outcome(session(call("a"), call("b")), scored, CHAT)
    assert isinstance(ending, TrajectoryExported)
    assert [[span.reward for span in turn.spans] for turn in ending.trajectory.interactions] == [[], [2.0]]
    wrong = msgspec.structs.replace(scored, spans=(SpanReward(reward=2.0, text="absent"),))
    ending = outcome(session(call("a")), wrong, CHAT)
    assert isinstance(ending, EpisodeAbandoned)
    assert (ending.reason, "does not have the text 'absent'" in ending.detail) == ("reward", True)


def test_spans_over_http_are_those_of_the_call_and_replaced_by_later_ones():
    opened = msgspec.structs.replace(session(call("a"), call("b")), state="active")
    opened = opened.set_reward("a", 0.0, 1.0, spans=[SpanReward(reward=1.0, text="answer")])
    opened = opened.set_reward("a", 1.0, 1.0, spans=[SpanReward(reward=-1.0, text="tools")])
    ending = outcome(msgspec.structs.replace(opened, state="scored"), None, CHAT)
    assert [[span.reward for span in turn.spans] for turn in ending.trajectory.interactions] == [[-1.0], []]


# ------------------------------------------------------------------------------------------------------ advantages


def test_process_supervision_of_the_paper():
    """arXiv:2402.03300, section 4.1.3: rewards of steps over the group, and sums from each step on."""
    steps = [
        [(0, 2, 1.0, "step"), (2, 4, 0.0, "step")],
        [(0, 2, 0.0, "step"), (2, 4, 1.0, "step"), (4, 6, 1.0, "step")],
    ]
    group = [trajectory(f"0.{n}", spanned("a", "x" * (4 + 2 * n), *spans), reward=0.5) for n, spans in enumerate(steps)]
    (first, second), metrics = advantages([group], algorithm=Grpo(spans=Spans(reach="before")))
    rewards = np.array([1.0, 0.0, 0.0, 1.0, 1.0])
    relative = (rewards - rewards.mean()) / rewards.std(ddof=1)
    np.testing.assert_allclose(first, np.repeat([relative[0] + relative[1], relative[1]], 2), atol=1e-5)
    sums = [relative[2:].sum(), relative[3:].sum(), relative[4]]
    np.testing.assert_allclose(second, np.repeat(sums, 2), atol=1e-5)
    assert metrics["spans/step"] == 2.5
    assert metrics["span_reward/step"] == pytest.approx(0.6)
    assert metrics["span_constant/step"] == 0.0


def test_credit_of_its_own_tokens_is_added_to_that_of_the_episode():
    group = [
        trajectory("0.0", spanned("a", "abcd", (1, 2, 1.0, "good")), reward=1.0),
        trajectory("0.1", spanned("a", "abcd", (1, 3, 0.0, "good"), (3, 4, -1.0, "bad")), reward=0.0),
    ]
    (first, second), metrics = advantages([group], algorithm=DrGrpo())
    np.testing.assert_allclose(first, [0.5, 1.0, 0.5, 0.5])
    np.testing.assert_allclose(second, [-0.5, -1.0, -1.0, -0.5])  # `bad` has none to be compared with
    assert metrics["span_constant/bad"] == 1.0
    weighted = Spans(baseline="none", weights={"bad": 0.5})
    (first, second), _ = advantages([group], algorithm=DrGrpo(spans=weighted))
    np.testing.assert_allclose(first, [0.5, 1.5, 0.5, 0.5])
    np.testing.assert_allclose(second, [-0.5, -0.5, -0.5, -1.0])


def test_names_and_groups_are_compared_apart():
    groups = [
        [trajectory(f"{n}.{m}", spanned("a", "ab", (0, 1, 10.0 * n + m, f"kind{n}")), reward=0.0) for m in range(2)]
        for n in range(2)
    ]
    values, _ = advantages(groups, algorithm=DrGrpo())
    np.testing.assert_allclose(values, [[-0.5, 0], [0.5, 0], [-0.5, 0], [0.5, 0]])


def test_a_discount_carries_spans_to_the_calls_before_by_the_tree():
    def episode(number, reward):
        chain = [
            spanned("a", "xy"),
            spanned("b", "xy", parent="a"),
            spanned("c", "xyz", (1, 2, reward, "step"), parent="b", reward=0.0),
        ]
        return trajectory(f"0.{number}", *chain, reward=0.0)

    group = [episode(0, 1.0), episode(1, 0.0)]
    before = DrGrpo(spans=Spans(reach="before"))
    (first, second), metrics = advantages([group], Credit(discount=0.5), before)
    np.testing.assert_allclose(first, np.array([0.25, 0.25, 0.5, 0.5, 1.0, 1.0, 0.0]) / 2)
    np.testing.assert_allclose(second, -first)
    assert metrics["spans/step"] == 1.0
    (first, _), _ = advantages([group], Credit(discount=0.5), DrGrpo())
    np.testing.assert_allclose(first, [0, 0, 0, 0, 0, 0.5, 0])
    (first, _), _ = advantages([group], Credit(), before)
    np.testing.assert_allclose(first, [0, 0, 0, 0, 0.5, 0.5, 0])


def test_stale_tokens_of_a_span_are_not_trained_and_the_rest_is():
    turn = msgspec.structs.replace(interaction("a", "abcd", 0, 0, 1, 1), spans=(token_span(1, 3, 1.0, "s"),))
    rows = [
        row
        for number, reward in enumerate((1.0, 0.0))
        for row in sequences_of(
            trajectory(
                f"0.{number}", msgspec.structs.replace(turn, spans=(token_span(1, 3, reward, "s"),)), reward=0.0
            ),
            0,
            1,
        )
    ]
    np.testing.assert_allclose(DrGrpo().advantages(step_tokens(rows, 1)).tokens.numpy(), [0.5, 0.0, -0.5, 0.0])


def test_an_algorithm_that_would_ignore_them_refuses():
    rows = sequences_of(trajectory("0.0", spanned("a", "ab", (0, 1, 1.0, "step"))), 0, 0)
    with pytest.raises(EngineError, match=r"rewards of spans \(step\), which Sft does not use"):
        refuse_unused_spans(Sft(), step_tokens(rows, 1))


def test_a_recorded_span_outside_of_its_call_is_refused():
    rows = sequences_of(trajectory("0.0", spanned("a", "ab", (0, 7, 1.0, "step"))), 0, 0)
    with pytest.raises(EngineError, match="is none of its call"):
        step_tokens(rows, 1)


async def test_a_group_with_spans_has_a_signal(send):
    plain = [TrajectoryExported(trajectory=trajectory(f"0.{n}", spanned("a", "ab"), reward=1.0)) for n in range(2)]
    spans = [
        TrajectoryExported(trajectory=trajectory(f"1.{n}", spanned("a", "ab", (0, 1, float(n), "s")), reward=1.0))
        for n in range(2)
    ]
    assert TrajectoryInfo.of(spans[0].trajectory, 1).spans == 1
    batcher = Batcher(
        BatcherConfig(dynamic_sampling=True), group_size=2, batch_size=1, max_staleness=1, steps=9, keeps=has_signal
    )
    batcher.assembler.weights_published(0)
    emitted = await send(batcher, *plain, *spans)
    (formed,) = [event for event in emitted if isinstance(event, BatchFormed)]
    assert formed.group_numbers() == (1,)
