"""The formulas once more, in python's own doubles and row by row, sharing nothing with what they check."""

import math
import statistics

# ---------------------------------------------------------------- rewards to advantages


def members(rows, rewards, place):
    return [reward for row, reward in zip(rows, rewards, strict=True) if row.group == rows[place].group]


def rewards_of(rows):
    return [row.reward for row in rows]


def spread(rows, worth):
    """The same for every token of a row."""
    return [[value] * len(row.behaviour) for row, value in zip(rows, worth, strict=True)]


def group_mean(rows, rewards):
    return [reward - statistics.mean(members(rows, rewards, place)) for place, reward in enumerate(rewards)]


def group_standard(rows, rewards):
    worth = []
    for place, reward in enumerate(rewards):
        group = members(rows, rewards, place)
        if len(set(group)) == 1:
            worth.append(0.0)
        else:
            worth.append((reward - statistics.mean(group)) / (statistics.stdev(group) + 1e-6))
    return worth


def others_mean(rows, rewards):
    worth = []
    for place, reward in enumerate(rewards):
        others = [rewards[other] for other in range(len(rows)) if other != place and rows[other].group == rows[place].group]
        worth.append(reward - statistics.mean(others) if others else 0.0)
    return worth


def standard(advantages):
    """Normalised over all tokens."""
    every = [value for column in advantages for value in column]
    mean, std = statistics.mean(every), statistics.stdev(every)
    return [[(value - mean) / (std + 1e-6) for value in column] for column in advantages]


def overlong(row, longest, buffer):
    """DAPO, equation 13, as a penalty; what the engine cut by length is beyond L_max."""
    if row.truncated or row.sampled > longest:
        return -1.0
    if row.sampled <= longest - buffer:
        return 0.0
    return ((longest - buffer) - row.sampled) / buffer


def gae(row, rewards, discount, gae_lambda, bootstrap):
    """Backwards, token by token."""
    advantages, advantage, value = [], 0.0, row.values[-1] if bootstrap and row.truncated and row.values else 0.0
    for reward, here in zip(reversed(rewards), reversed(row.values), strict=True):
        advantage = reward + discount * value - here + discount * gae_lambda * advantage
        value = here
        advantages.insert(0, advantage)
    return advantages


def token_rewards(row, charges, reward=None):
    reward = row.reward if reward is None else reward
    return [(reward if place == len(charges) - 1 else 0.0) - charge for place, charge in enumerate(charges)]


def to_come(rewards):
    return [sum(rewards[place:]) for place in range(len(rewards))]


def second_moment_kept(squares, threshold):
    """Leave out the largest, one after the other, until the mean of the rest is below the threshold or one is left."""
    left = sorted(range(len(squares)), key=lambda place: squares[place])
    while len(left) > 1 and sum(squares[place] for place in left) / len(left) >= threshold:
        left.pop()
    return [place in left for place in range(len(squares))]


# ---------------------------------------------------------------- distances


def k1(difference):
    return difference


def k2(difference):
    return difference * difference / 2


def k3(difference):
    return math.exp(-difference) - 1 + difference


def bounded(value, low, high):
    return min(max(value, low), high)


# ---------------------------------------------------------------- losses, each of one row: a list of one number per token


def clipped(ratio, advantage, below, above):
    return -min(ratio * advantage, bounded(ratio, 1 - below, 1 + above) * advantage)


def decoupled(row, below=0.2, above=0.2, cap=5.0):
    """Decoupled PPO, token by token."""
    losses = []
    for now, proximal, behaviour, advantage in zip(row.logp, row.proximal, row.behaviour, row.advantages, strict=True):
        losses.append(min(math.exp(proximal - behaviour), cap) * clipped(math.exp(now - proximal), advantage, below, above))
    return losses


def plain(row, below=0.2, above=0.2):
    """PPO with the ratio to the weights that sampled the token."""
    columns = zip(row.logp, row.behaviour, row.advantages, strict=True)
    return [clipped(math.exp(now - behaviour), advantage, below, above) for now, behaviour, advantage in columns]


def gspo(row, below, above, cap=5.0):
    if not row.logp:
        return []
    ratio = math.exp(statistics.mean(now - then for now, then in zip(row.logp, row.proximal, strict=True)))
    weight = min(math.exp(statistics.mean(then - before for then, before in zip(row.proximal, row.behaviour, strict=True))), cap)
    return [weight * clipped(ratio, advantage, below, above) for advantage in row.advantages]


def reinforce(row, cap=5.0):
    columns = zip(row.logp, row.proximal, row.behaviour, row.advantages, strict=True)
    return [-min(math.exp(proximal - behaviour), cap) * advantage * now for now, proximal, behaviour, advantage in columns]


def sapo(row, positive, negative):
    losses = []
    for now, behaviour, advantage in zip(row.logp, row.behaviour, row.advantages, strict=True):
        temperature = positive if advantage > 0 else negative
        gate = 4 / temperature / (1 + math.exp(-temperature * (math.exp(now - behaviour) - 1)))
        losses.append(-gate * advantage)
    return losses


def cispo(row, low, high):
    columns = zip(row.logp, row.behaviour, row.advantages, strict=True)
    return [-bounded(math.exp(now - behaviour), low, high) * advantage * now for now, behaviour, advantage in columns]


def unclipped(row):
    columns = zip(row.logp, row.behaviour, row.advantages, strict=True)
    return [-math.exp(now - behaviour) * advantage for now, behaviour, advantage in columns]


def distillation(row, teacher_weight, reward_weight, distance=k2, cap=5.0):
    policy = decoupled(row, cap=cap)
    losses = []
    for loss, now, proximal, behaviour, teacher in zip(policy, row.logp, row.proximal, row.behaviour, row.teacher, strict=True):
        losses.append(reward_weight * loss + teacher_weight * min(math.exp(proximal - behaviour), cap) * distance(now - teacher))
    return losses


def critic(row, bound):
    losses = []
    for now, old, target in zip(row.logp, row.values, row.returns, strict=True):
        held = old + bounded(now - old, -bound, bound)
        losses.append(max((now - target) ** 2, (held - target) ** 2) / 2)
    return losses
