"""A policy that is a table, every outcome of a group under it, and the gradient that is expected."""

import itertools
import math

import msgspec
import numpy as np
import pytest
import torch

from areal_actors.core.values import SequenceCall, TrainingSequence
from areal_actors.training.packing.tensors import make_micro_batches
from areal_actors.training.step import loss_batch, token_weights
from areal_actors.training.step_data import drop_masked_tokens, step_tokens

ARMS = 3


STATES = 3


POLICY = torch.tensor([[0.3, -0.5, 0.1], [-0.2, 0.6, -0.4], [0.9, -0.1, 0.2]], dtype=torch.float64)


EXPECTED_BY_CRITIC = torch.tensor([0.7, -0.3, 0.2])


BASELINE = 0.25
"""Role-wise baseline of every episode."""


PROMPT = 1 + STATES * ARMS


class Episode(msgspec.Struct, frozen=True):
    """Calls, each a tuple of (state, arm), and R of each call."""

    calls: tuple
    rewards: tuple


def answers():
    """One call of one token."""
    return [Episode(calls=(((0, arm),),), rewards=(float(arm == 1),)) for arm in range(ARMS)]


def words():
    """One call of two tokens, the second in a state that the first has chosen."""
    pairs = itertools.product(range(ARMS), range(2))
    return [
        Episode(calls=(((0, first), (1 + first % 2, second)),), rewards=(float(first == second),))
        for first, second in pairs
    ]


def turns():
    """One to three calls, of one or two tokens, as the arms decide."""
    return [
        Episode(calls=(((0, 0),),), rewards=(0.0,)),
        Episode(calls=(((0, 1),), ((1, 0), (2, 2))), rewards=(1.0,) * 2),
        Episode(calls=(((0, 1),), ((1, 0), (2, 1))), rewards=(0.0,) * 2),
        Episode(calls=(((0, 1),), ((1, 1),), ((2, 2),)), rewards=(0.0,) * 3),
        Episode(calls=(((0, 1),), ((1, 1),), ((2, 1),)), rewards=(1.0,) * 3),
    ]


def dialogues():
    """Two calls, each with a reward of its own: R is what is still to come."""
    found = []
    for first, second in itertools.product(range(2), repeat=2):
        own = (0.25 * first, 1.0 if first != second else -0.5)
        found.append(Episode(calls=(((0, first),), ((1 + first, second),)), rewards=(sum(own), own[1])))
    return found


def arms_allowed(episodes):
    """Arms that these episodes choose, by state: the policy has no others there."""
    allowed = torch.zeros(STATES, ARMS, dtype=torch.bool)
    for episode in episodes:
        for state, arm in itertools.chain(*episode.calls):
            allowed[state, arm] = True
    return allowed


def logps_of(logits, allowed):
    return logits.masked_fill(~allowed, -math.inf).log_softmax(-1).masked_fill(~allowed, 0.0)


def sequences_of(episode, name, cut, behaviour, version, masked=()):
    """Rows of an episode whose tokens encode state and arm; calls before those of a row are its context."""
    rows = []
    for own in cut(episode):
        ids, mask, logprobs, versions, calls = [], [], [], [], []
        for number in range(own[-1] + 1):
            ids.append(PROMPT)
            start = len(ids)
            ids += [1 + state * ARMS + arm for state, arm in episode.calls[number]]
            trained = number in own and number not in masked
            mask += [False] + [trained] * (len(ids) - start)
            logprobs += [0.0] + [float(behaviour[place]) for place in episode.calls[number]]
            versions += [-1] + [version] * (len(ids) - start)
            if number in own:
                reward = episode.rewards[number]
                calls.append(SequenceCall(start=start, end=len(ids), reward=reward, baseline=BASELINE))
        columns = (
            np.array(ids, np.int64),
            np.array(mask),
            np.array(logprobs, np.float32),
            np.array(versions, np.int32),
        )
        rows.append(
            TrainingSequence(*columns, 0, episode.rewards[-1], truncated=False, episode=name, calls=tuple(calls))
        )
    return rows


def loss_of(algorithm, rows, table):
    """Loss of one step on these rows, by the code that the trainer runs; log-probabilities are the table's,
    `[states, arms]`."""
    tokens = step_tokens(rows, 1)
    labels = torch.tensor([label - 1 for row in rows for label in row.token_ids[row.loss_mask].tolist()])
    current = table.flatten()[labels].detach()
    values = EXPECTED_BY_CRITIC[labels // ARMS]
    tokens = msgspec.structs.replace(
        tokens, proximal=current, reference=tokens.behaviour, teacher=tokens.behaviour, values=values
    )
    advantages = algorithm.advantages(tokens)
    if advantages.kept is not None:
        rows, tokens, advantages = drop_masked_tokens(rows, tokens, advantages)
    shares = token_weights(algorithm, tokens, range(len(rows)))
    loss = torch.zeros((), dtype=torch.float64)
    for batch in make_micro_batches(rows, range(len(rows)), 40, torch.device("cpu")):
        logp = table.flatten()[batch.labels - 1]
        seen = loss_batch(batch, tokens, advantages, logp.detach(), exact=True)
        loss = loss + (algorithm.loss(seen, logp).losses * shares[batch.token_index]).sum()
    return loss


def probability(episode, logps):
    return math.exp(sum(float(logps[place]) for place in itertools.chain(*episode.calls)))


def expected_gradient(algorithm, episodes, group_size, cut, *, masked=(), sampled_by=POLICY):
    """Expected gradient of the loss over all groups that the behaviour policy can draw."""
    logits, allowed = POLICY.clone().requires_grad_(), arms_allowed(episodes)
    behaviour = logps_of(sampled_by, allowed)
    table = logps_of(logits, allowed)
    total, whole = table.sum() * 0.0, 0.0
    for members in itertools.combinations_with_replacement(range(len(episodes)), group_size):
        orders = math.factorial(group_size) / math.prod(math.factorial(members.count(one)) for one in set(members))
        chance = orders * math.prod(probability(episodes[one], behaviour) for one in members)
        rows = [
            row
            for name, one in enumerate(members)
            for row in sequences_of(episodes[one], f"e{name}", cut, behaviour, 0, masked)
        ]
        whole += chance
        if any(row.loss_mask.any() for row in rows):
            total = total + chance * loss_of(algorithm, rows, table)
    assert whole == pytest.approx(1.0)
    return torch.autograd.grad(total, logits)[0]


def policy_gradient(episodes, *, masked=(), weight=lambda episode, reward: reward):
    """Σ over episodes of probability × Σ over trained calls of R × ∇ log π, under the current policy."""
    logits, allowed = POLICY.clone().requires_grad_(), arms_allowed(episodes)
    logps = logps_of(logits, allowed)
    total = torch.zeros((), dtype=torch.float64)
    for episode in episodes:
        for number, (call, reward) in enumerate(zip(episode.calls, episode.rewards, strict=True)):
            if number not in masked:
                score = sum(logps[place] for place in call)
                total = total + probability(episode, logps.detach()) * weight(episode, reward) * score
    (gradient,) = torch.autograd.grad(total, logits)
    return gradient


def one(group_size, chance):
    return 1.0
