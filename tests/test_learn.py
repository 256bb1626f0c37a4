"""Learning from recorded sessions: rows, baselines without groups, the offline loss, support, erasures."""

from __future__ import annotations

import math
import random
import types

import msgspec
import numpy as np
import pytest
import torch
from test_feedback_exports import CALLS, feedback, judged, rewarded, unrewarded

from areal_actors.cli.learn import read_seconds
from areal_actors.core.errors import SetupError
from areal_actors.core.values import SequenceCall, TrainingSequence, Trajectory
from areal_actors.learn import rehearsal
from areal_actors.learn.baselines import LEAST_CALLS, _candidates, _number_keys, choose_baseline
from areal_actors.learn.recorded_calls import RecordedCall, RecordedSessions, RowWriter
from areal_actors.learn.reward_rule import apply_rule, drop_empty
from areal_actors.learn.support import refuse_weak_support, support_of
from areal_actors.messages import TrajectoryExported
from areal_actors.sequences.credit import Credit
from areal_actors.sequences.step_metrics import example_metrics
from areal_actors.supervised.recorded_session import read_recorded_row
from areal_actors.training.algorithms.offline import Offline
from areal_actors.training.packing.tensors import make_micro_batches
from areal_actors.training.step import loss_batch
from areal_actors.training.step_data import step_tokens

LETTERS = [ord(letter) for letter in "ab"]


def rows_of(*judgements, ended=None):
    read = RecordedSessions()
    writer = RowWriter(read, "/runs/talks", Credit(), 0.7, lambda text: [ord(letter) for letter in text])
    for session in judged([ended or unrewarded(0)], *judgements).sessions:
        writer.write_session(session, "s0")
    return read


def test_a_judged_session_is_a_row_with_the_tokens_and_log_probabilities_that_were_sampled():
    read = rows_of(feedback("s0", reward=0.5))
    first = read.rows[0]
    (call,) = (call for call in first.calls if call.reward == 0.5 and call.start == 1)
    assert first.input_ids[: call.end] == [63, 120, 121]
    logprobs = CALLS[0].completion.logprobs_array()
    assert np.array_equal(np.array(first.logprobs[1:3], np.float32), logprobs)
    assert (first.log, first.session, first.temperature) == ("/runs/talks", "s0", 0.7)
    (sequence,) = first.sequences(3)
    assert (sequence.group, sequence.calls[0].reward, sequence.calls[0].temperature) == (3, 0.5, 0.7)
    assert sequence.versions[0] == -1


def test_calls_that_no_judgement_reaches_are_no_rows():
    read = rows_of(feedback("s0", interaction="s-1", reward=0.25))
    trained = [(row.input_ids, call.reward) for row in read.rows for call in row.calls]
    assert [reward for _, reward in trained] == [0.25]
    assert sum(sum(row.completion_mask) for row in read.rows) == 2
    whole = rows_of(feedback("s0", reward=1.0))
    assert sum(sum(row.completion_mask) for row in whole.rows) == 5


def test_edits_and_preferences_are_rows_of_their_own_kinds():
    edit = feedback("s0", kind="edit", interaction="s-1", text="ab")
    pair = feedback("s0", kind="preference", interaction="s-1", worse="s-3")
    other = feedback("s0", kind="preference", interaction="s-1", worse="s-2")
    read = rows_of(edit, pair, other)
    assert read.counts() == {"rewarded": 0, "edited": 1, "preferred": 1}
    assert read.left_out == {"a preferred call whose prompt is not that of the other": 1}
    (demonstration, preference) = read.rows
    assert demonstration.input_ids[1:3] == LETTERS
    chosen, rejected = preference.sequences(0)
    assert (chosen.token_ids.tolist(), rejected.token_ids.tolist()) == ([63, 120, 121], [63, 120, 119])
    assert (chosen.group, rejected.group, chosen.reward, rejected.reward) == (0, 0, 1.0, 0.0)


def test_every_call_has_the_temperature_of_its_own_log_probabilities():
    cold = msgspec.structs.replace(CALLS[0], reward=1.0, temperature=0.2)
    trajectory = Trajectory(
        episode="0.0", group="0", attempt=1, task="chat", reward=1.0, interactions=(cold, *CALLS[1:2])
    )
    ended = msgspec.structs.replace(rewarded(0, 1.0), event=TrajectoryExported(trajectory=trajectory))
    read = rows_of(ended=ended)
    calls = [call for row in read.rows for sequence in row.sequences(0) for call in sequence.calls]
    assert [call.temperature for call in calls] == [0.2, 0.7]


def test_an_unjudged_session_is_left_out():
    read = rows_of()
    assert (read.rows, dict(read.left_out)) == ([], {"no judgement": 1})
    assert len(rows_of(ended=rewarded(0, 1.0)).rows) == 1


def test_a_row_is_read_as_it_was_written_and_a_broken_one_is_refused_by_name():
    (row,) = rows_of(feedback("s0", interaction="s-1", reward=0.1)).rows
    data = msgspec.json.decode(msgspec.json.encode(row))
    assert read_recorded_row(data, "row 1") == row
    for change, name in (
        ({"logprobs": [0.0]}, "logprobs"),
        ({"versions": []}, "versions"),
        ({"completion_mask": [0] * len(row.input_ids)}, "no sampled token"),
        ({"calls": 3}, "calls"),
    ):
        with pytest.raises(SetupError, match=name):
            read_recorded_row(data | change, "row 1")


class Texts:
    """The tokenizer of a run whose tokens are letters."""

    def text(self, ids):
        return "".join(map(chr, ids))


def test_a_rule_changes_rewards_and_leaves_calls_out():
    read = rows_of(feedback("s0", interaction="s-1", reward=1.0), feedback("s0", interaction="s-3", reward=1.0))
    seen = []

    def rule(given, prompt, answer):
        seen.append((given, prompt, answer))
        return None if answer == "xw" else given - 0.5

    sentence = apply_rule(read, rule, "mine.py:rule", Texts())
    drop_empty(read)
    assert sentence.startswith(
        "reward: mine.py:rule changed 2 of 2 rewards, and left 1 calls out; mean of the feedback"
    )
    assert "of the rule 0.500 (" in sentence
    assert seen == [(1.0, "?", "xy"), (1.0, "?", "xw")]
    (row,) = read.rows
    assert [call.reward for call in row.calls] == [0.5]
    assert [(call.row, call.reward) for call in read.calls] == [(0, 0.5)]
    assert read.left_out == {"no reward by the rule": 1}


@pytest.mark.parametrize(("rule", "message"), [(lambda *_: 1 / 0, "raised"), (lambda *_: math.nan, "nan")])
def test_a_rule_that_fails_is_named_with_its_session(rule, message):
    read = rows_of(feedback("s0", reward=1.0))
    with pytest.raises(SetupError, match=f"{message}.*session s0"):
        apply_rule(read, rule, "mine.py:rule", Texts())


# ---------------------------------------------------------------- baselines


def calls_with(rewards, **fields):
    return [
        RecordedCall(
            row=number,
            call=0,
            session=fields.get("sessions", range(len(rewards)))[number],
            user=fields.get("users", [""] * len(rewards))[number],
            task="chat",
            prompt=fields.get("prompts", [(number,) for number in range(len(rewards))])[number],
            reward=reward,
        )
        for number, reward in enumerate(rewards)
    ]


def random_calls(count, seed=0):
    draw = random.Random(seed)
    return {
        "users": [draw.choice("abcd") for _ in range(count)],
        "prompts": [tuple(draw.choices(range(20), k=8)) for _ in range(count)],
        "sessions": [str(draw.randrange(count // 2)) for _ in range(count)],
    }


def test_no_baseline_depends_on_the_reward_of_its_own_session():
    fields = random_calls(2 * LEAST_CALLS)
    rewards = np.array([random.Random(1).random() for _ in range(2 * LEAST_CALLS)])
    calls = calls_with(rewards.tolist(), **fields)
    sessions = _number_keys(fields["sessions"])
    before = dict(_candidates(calls, rewards, sessions))
    own = sessions == sessions[0]
    after = dict(_candidates(calls, np.where(own, rewards + 5.0, rewards), sessions))
    assert set(before) == {"all sessions", "user", "prompt", "similar prompts", "regression"}
    for name, values in before.items():
        if name != "regression":  # its penalty is chosen by all residuals
            np.testing.assert_allclose(after[name][own], values[own], atol=1e-9, err_msg=name)
        assert not np.allclose(after[name][~own], values[~own]), name


def test_the_baseline_that_leaves_the_least_is_chosen():
    draw, count = random.Random(2), 400
    fields = random_calls(count, 3)
    fields["sessions"] = range(count)
    by_user = {user: number / 4 for number, user in enumerate("abcd")}
    noise = [draw.gauss(0.0, 0.05) for _ in range(count)]
    users = choose_baseline(
        calls_with([by_user[user] + error for user, error in zip(fields["users"], noise, strict=True)], **fields)
    )
    assert users.name == "user"
    assert users.variances["user"] < 0.01 < users.variances["all sessions"]
    words = choose_baseline(
        calls_with(
            [float(7 in prompt) + error for prompt, error in zip(fields["prompts"], noise, strict=True)], **fields
        )
    )
    assert words.name == "regression"
    nothing = choose_baseline(calls_with(noise, **fields))
    assert nothing.name == "all sessions"


def test_a_single_call_has_a_baseline():
    assert choose_baseline(calls_with([1.0])).values == (0.0,)


# ---------------------------------------------------------------- the loss


def sequence(group, answer, *, reward=0.0, baseline=0.0, sampled=True):
    ids = [1, *answer]
    return TrainingSequence(
        token_ids=np.array(ids),
        loss_mask=np.array([False] + [True] * len(answer)),
        logprobs=np.array([0.0] + [-1.0 if sampled else 0.0] * len(answer), np.float32),
        versions=np.array([-1] + [3 if sampled else -1] * len(answer), np.int32),
        group=group,
        reward=reward,
        truncated=False,
        calls=(SequenceCall(start=1, end=len(ids), reward=reward, baseline=baseline),),
    )


def losses_of(algorithm, sequences, logp):
    tokens = step_tokens(sequences, 0)
    advantages = algorithm.advantages(tokens)
    (packed,) = make_micro_batches(
        sequences, list(range(len(sequences))), 10**9, torch.device("cpu"), whole_groups=algorithm.whole_groups
    )
    current = torch.full_like(tokens.behaviour, logp)[packed.token_index].requires_grad_()
    batch = loss_batch(packed, tokens, advantages, current.detach(), exact=True)
    losses = algorithm.loss(batch, current).losses
    shares = algorithm.shares(torch.bincount(tokens.calls).double(), tokens.samples)[tokens.calls][packed.token_index]
    total = (losses * shares).sum()
    (gradient,) = torch.autograd.grad(total, current)
    order = packed.token_index.argsort()
    return total.item(), gradient[order], advantages


def test_rewards_edits_and_preferences_have_their_losses_in_one_step():
    algorithm = Offline(preference_beta=0.5)
    sequences = [
        sequence(0, [5, 6, 7], reward=1.0, baseline=0.25),
        sequence(1, [5, 6], reward=0.0, baseline=0.25),
        sequence(2, [8, 9, 9, 9], sampled=False),
        sequence(3, [5, 5], reward=1.0),
        sequence(3, [6], reward=0.0),
    ]
    logp = -0.9
    total, gradient, advantages = losses_of(algorithm, sequences, logp)
    unit = math.sqrt((0.75**2 + 0.25**2) / 2)
    ratio = math.exp(0.1)
    tokens, answers = 12, 5
    policy = [-0.75 / unit * ratio] * 3 + [0.25 / unit * ratio] * 2
    edit = [-logp * tokens / (4 * answers)] * 4
    margin = 0.5 * (2 * 0.1 - 0.1)
    pair = math.log1p(math.exp(-margin))
    pairs = [pair * tokens / (2 * answers)] * 2 + [pair * tokens / answers]
    assert total == pytest.approx(sum([*policy, *edit, *pairs]) / tokens, rel=1e-5)
    assert gradient[:3].lt(0).all()
    assert gradient[3:5].gt(0).all()
    assert gradient[5:9].lt(0).all()
    assert gradient[9:11].lt(0).all()
    assert gradient[11].gt(0)
    assert advantages.metrics["baseline_residual"] == pytest.approx(unit, rel=1e-4)


def test_a_token_beyond_its_bounds_has_no_gradient_in_that_direction():
    good, bad = sequence(0, [5], reward=1.0, baseline=0.0), sequence(1, [6], reward=0.0, baseline=1.0)
    _, far, _ = losses_of(Offline(), [good, bad], -1.0 + math.log(5.5))
    assert far[0] == 0.0
    assert far[1] > 0
    _, near, _ = losses_of(Offline(), [good, bad], -1.0 + math.log(0.05))
    assert near[0] < 0
    assert near[1] == 0.0


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"group_size": 4}, "group_size"),
        ({"minibatches": 2}, "minibatches"),
        ({"correction": {"decoupled": True, "proximal": "loglinear"}}, "proximal"),
        ({"correction": {"decoupled": True, "mismatch": {"importance_sampling": "mask"}}}, "importance_sampling"),
    ],
)
def test_settings_that_need_groups_or_older_weights_are_refused(fields, key):
    algorithm = msgspec.convert({"name": "offline", **fields}, Offline)
    assert key in [name[-1] for name, _ in algorithm.problems()]


# ---------------------------------------------------------------- support


def test_support_is_whole_for_the_weights_that_sampled_and_refused_for_others():
    sequences = [sequence(number, [5, 6, 7]) for number in range(40)]
    same = support_of(sequences, np.full(120, -1.0), Offline())
    assert (same.effective, same.within_clip, same.kl) == (pytest.approx(1.0), 1.0, 0.0)
    refuse_weak_support(same, 0.1)
    draw = np.random.default_rng(0)
    other = support_of(sequences, -1.0 + draw.normal(0.0, 3.0, 120), Offline())
    assert other.effective < 0.1
    assert other.within_clip < 0.7
    with pytest.raises(SetupError, match="effective sample size"):
        refuse_weak_support(other, 0.1)


def test_rehearsal_takes_the_newest_whole_sessions_up_to_its_share(monkeypatch):
    rows = [rows_of(feedback("s0", reward=float(number))).rows[0] for number in range(8)]
    rows = [msgspec.structs.replace(row, session=f"s{number // 2}") for number, row in enumerate(rows)]
    calls = [RecordedCall(number, 0, f"s{number // 2}", "", "t", (1,), float(number)) for number in range(8)]
    whole = RecordedSessions(rows=rows, calls=calls)
    monkeypatch.setattr(rehearsal, "read_sessions", lambda run, since: whole)
    run = types.SimpleNamespace(name="old")
    taken = rehearsal.read_rehearsal(run, rows=9, share=0.25)
    assert [row.session for row in taken.read.rows] == ["s2", "s2", "s3", "s3"]
    assert {row.source for row in taken.read.rows} == {"old"}
    assert [(call.row, call.reward) for call in taken.read.calls] == [(0, 4.0), (1, 5.0), (2, 6.0), (3, 7.0)]
    assert "4 rows of old, 30.8%" in taken.sentence
    assert "48 would be a share of 0.75" in rehearsal.read_rehearsal(run, rows=16, share=0.75).sentence
    sequences = [sequence for row in taken.read.rows for sequence in row.sequences(0)]
    assert example_metrics({}, sequences)["source/old"] == pytest.approx(
        np.mean([row.reward for row in taken.read.rows])
    )
    monkeypatch.setattr(rehearsal, "read_sessions", lambda run, since: RecordedSessions())
    with pytest.raises(SetupError, match="--rehearse: 'old' has no rewarded episodes"):
        rehearsal.read_rehearsal(run, rows=9, share=0.25)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90.0), ("1.5h", 5400.0), ("7d", 604_800.0)])
def test_times_have_units(text, seconds):
    assert read_seconds("--since", text) == seconds


@pytest.mark.parametrize("text", ["90", "0m", "-3h", "h", "2w"])
def test_a_time_without_a_unit_is_refused_by_its_option(text):
    with pytest.raises(SetupError, match="--seconds: found '"):
        read_seconds("--seconds", text)
