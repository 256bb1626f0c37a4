"""The formulas once more, in python's own doubles and row by row, sharing nothing with what they check."""

import math
import statistics

# ---------------------------------------------------------------- rewards to advantages


def rewards_of(rows):
    """R of every call, a tuple for each row."""
    return [row.rewards for row in rows]


def spread(rows, advantages):
    """The advantage of a call for each of its tokens."""
    return [
        [value for value, size in zip(values, row.sizes, strict=True) for _ in range(size)]
        for row, values in zip(rows, advantages, strict=True)
    ]


def episode_values(rows, rewards):
    """The mean of R over the calls of each episode, by group: {group: {episode: value}}."""
    calls = {}
    for row, values in zip(rows, rewards, strict=True):
        calls.setdefault(row.group, {}).setdefault(row.episode, []).extend(values)
    return {
        group: {episode: statistics.mean(values) for episode, values in members.items()}
        for group, members in calls.items()
    }


def against(rows, rewards, baseline_and_unit):
    """(R - baseline) / unit of each call, of a function of the values of the episode's group and its own episode."""
    values = episode_values(rows, rewards)
    advantages = []
    for row, own in zip(rows, rewards, strict=True):
        group = values[row.group]
        if len(group) == 1:
            advantages.append([0.0] * len(own))
            continue
        baseline, unit = baseline_and_unit(group, row.episode)
        advantages.append([(reward - baseline) / unit if unit else 0.0 for reward in own])
    return advantages


def group_mean(rows, rewards):
    return against(rows, rewards, lambda group, _: (statistics.mean(group.values()), 1.0))


def group_standard(rows, rewards):
    def unit(group):
        return statistics.stdev(group.values()) + 1e-6 if len(set(group.values())) > 1 else 0.0

    return against(rows, rewards, lambda group, _: (statistics.mean(group.values()), unit(group)))


def batch_standard(rows, rewards, around):
    """Lite PPO: the group's mean, and the standard deviation of all episodes around the batch's mean or around those of
    groups."""
    values = episode_values(rows, rewards)
    every = [value for group in values.values() for value in group.values()]
    apart = [value - statistics.mean(every) for value in every]
    if around == "group":
        apart = [value - statistics.mean(group.values()) for group in values.values() for value in group.values()]
    unit = math.sqrt(sum(value**2 for value in apart) / (len(apart) - 1))
    return against(rows, rewards, lambda group, _: (statistics.mean(group.values()), unit + 1e-6 if unit else 0.0))


def others_mean(rows, rewards):
    def baseline(group, own):
        return statistics.mean(value for episode, value in group.items() if episode != own)

    return against(rows, rewards, lambda group, own: (baseline(group, own), 1.0))


def standard(rows, advantages):
    """Normalised over all episodes: a moment is the mean over episodes of the mean over the episode's tokens."""
    tokens = {}
    for row, column in zip(rows, advantages, strict=True):
        if column:
            tokens.setdefault(row.episode, []).extend(column)
    mean = statistics.fmean(statistics.fmean(column) for column in tokens.values())
    variance = statistics.fmean(statistics.fmean((value - mean) ** 2 for value in column) for column in tokens.values())
    std = math.sqrt(variance * len(tokens) / (len(tokens) - 1))
    return [[(value - mean) / (std + 1e-6) for value in column] for column in advantages]


def charged(rows, charges):
    """R of each call less the charges of all tokens of its episode; `charges` are those of the tokens of each row."""
    total = {}
    for row, column in zip(rows, charges, strict=True):
        total[row.episode] = total.get(row.episode, 0.0) + sum(column)
    return [[reward - total[row.episode] for reward in row.rewards] for row in rows]


def was_cut(rows, episode):
    """True if the last call of the episode's last row was stopped by length."""
    return [row for row in rows if row.episode == episode][-1].truncated[-1]


def overlong(rows, episode, longest, buffer):
    """DAPO, equation 13, as a penalty; what the engine cut by length is beyond L_max."""
    sampled = sum(sum(row.sampled) for row in rows if row.episode == episode)
    if was_cut(rows, episode) or sampled > longest:
        return -1.0
    if sampled <= longest - buffer:
        return 0.0
    return ((longest - buffer) - sampled) / buffer


def gae(rows, row, rewards, discount, gae_lambda, bootstrap):
    """Backwards, token by token."""
    last = [other for other in rows if other.episode == row.episode][-1] is row
    advantages, advantage, value = [], 0.0, row.last_value if bootstrap and last and row.truncated[-1] else 0.0
    for reward, here in zip(reversed(rewards), reversed(row.values), strict=True):
        advantage = reward + discount * value - here + discount * gae_lambda * advantage
        value = here
        advantages.insert(0, advantage)
    return advantages


def token_rewards(row, charges):
    """At the last token of each call its R less that of the next one that has tokens; less what each token is
    charged."""
    calls = [(reward, size) for reward, size in zip(row.rewards, row.sizes, strict=True) if size]
    rewards = []
    for (reward, size), (later, _) in zip(calls, [*calls[1:], (0.0, 0)], strict=False):
        rewards += [0.0] * (size - 1) + [reward - later]
    return [reward - charge for reward, charge in zip(rewards, charges, strict=True)]


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


# ---------------------------------------------------------------- losses, each of one row: a list of one number per
# token


def clipped(ratio, advantage, below, above):
    return -min(ratio * advantage, bounded(ratio, 1 - below, 1 + above) * advantage)


def decoupled(row, below=0.2, above=0.2, cap=5.0):
    """Decoupled PPO, token by token."""
    losses = []
    for now, proximal, behaviour, advantage in zip(row.logp, row.proximal, row.behaviour, row.advantages, strict=True):
        losses.append(
            min(math.exp(proximal - behaviour), cap) * clipped(math.exp(now - proximal), advantage, below, above)
        )
    return losses


def plain(row, below=0.2, above=0.2):
    """PPO with the ratio to the weights that sampled the token."""
    columns = zip(row.logp, row.behaviour, row.advantages, strict=True)
    return [clipped(math.exp(now - behaviour), advantage, below, above) for now, behaviour, advantage in columns]


def gspo(row, below, above, cap=5.0):
    if not row.logp:
        return []
    ratio = math.exp(statistics.mean(now - then for now, then in zip(row.logp, row.proximal, strict=True)))
    weight = min(
        math.exp(statistics.mean(then - before for then, before in zip(row.proximal, row.behaviour, strict=True))), cap
    )
    return [weight * clipped(ratio, advantage, below, above) for advantage in row.advantages]


def gmpo(row, bound, cap=5.0):
    """The paper's product over the tokens of a row, each clipped in the direction of its own advantage."""
    if not row.logp:
        return []
    product = 1.0
    for now, then, advantage in zip(row.logp, row.proximal, row.advantages, strict=True):
        ratio, sign = math.exp(now - then), math.copysign(1.0, advantage) if advantage else 0.0
        within = bounded(ratio, math.exp(-bound), math.exp(bound))
        product *= min(ratio**sign, within**sign) ** (sign / len(row.logp))
    weight = min(
        math.exp(statistics.mean(then - before for then, before in zip(row.proximal, row.behaviour, strict=True))), cap
    )
    return [-weight * product * advantage for advantage in row.advantages]


def reinforce(row, cap=5.0):
    columns = zip(row.logp, row.proximal, row.behaviour, row.advantages, strict=True)
    return [
        -min(math.exp(proximal - behaviour), cap) * advantage * now for now, proximal, behaviour, advantage in columns
    ]


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
    for loss, now, proximal, behaviour, teacher in zip(
        policy, row.logp, row.proximal, row.behaviour, row.teacher, strict=True
    ):
        losses.append(
            reward_weight * loss + teacher_weight * min(math.exp(proximal - behaviour), cap) * distance(now - teacher)
        )
    return losses


def critic(row, bound):
    losses = []
    for now, old, target in zip(row.logp, row.values, row.returns, strict=True):
        held = old + bounded(now - old, -bound, bound)
        losses.append(max((now - target) ** 2, (held - target) ** 2) / 2)
    return losses
