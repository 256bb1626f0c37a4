"""Expected gradients: every outcome of a group, with its probability, through the code that trains, against the policy
gradient.

The policy is a table of logits by state. An episode is a sequence of calls, a call one token or more, a token the
choice of an arm in a state. All multisets of episodes that a group can draw are enumerated, made into rows, and
trained.
"""

import math
import statistics

import msgspec
import pytest
import torch
from support.bandit import (
    BASELINE,
    EXPECTED_BY_CRITIC,
    POLICY,
    Episode,
    answers,
    arms_allowed,
    dialogues,
    expected_gradient,
    logps_of,
    loss_of,
    one,
    policy_gradient,
    probability,
    sequences_of,
    turns,
    words,
)

from areal_actors.training.algorithms import (
    Cispo,
    Dapo,
    Distillation,
    DrGrpo,
    Gmpo,
    Grpo,
    Gspo,
    GspoToken,
    LitePpo,
    M2po,
    Ppo,
    Rae,
    ReinforcePlusPlus,
    Rloo,
    Sapo,
)
from areal_actors.training.algorithms.correction import Correction, SequenceCorrection
from areal_actors.training.step_data import step_tokens

OLDER = torch.tensor([[-0.4, 0.2, 0.3], [0.5, -0.6, 0.1], [-0.3, 0.8, 0.4]], dtype=torch.float64)
"""Logits of the current weights, and of those that sampled stale tokens."""


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Columns are a few numbers long: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# ---------------------------------------------------------------- episodes to rows


def concat(episode):
    """One row with all calls."""
    return [range(len(episode.calls))]


def individual(episode):
    """A row per call."""
    return [[number] for number in range(len(episode.calls))]


def split(episode):
    """The prefix breaks after the first call."""
    return [rest for rest in ([0], range(1, len(episode.calls))) if rest]


def by_reward(episode):
    """A row per call if it succeeds, else one."""
    return (individual if episode.rewards[-1] > 0 else concat)(episode)


CUTS = (concat, individual, split, by_reward)


# ---------------------------------------------------------------- gradients


# ---------------------------------------------------------------- factors


def centered(group_size, chance):
    """Part of the own reward is in the mean."""
    return (group_size - 1) / group_size


def normalised(group_size, chance):
    """f(1) - f(0), where f(r) is the mean advantage of an episode of reward r over what the others of its group
    draw."""

    def mean_advantage(reward):
        total = 0.0
        for successes in range(group_size):
            rewards = [reward] + [1.0] * successes + [0.0] * (group_size - 1 - successes)
            ways = (
                math.comb(group_size - 1, successes) * chance**successes * (1 - chance) ** (group_size - 1 - successes)
            )
            if len(set(rewards)) > 1:
                total += ways * (reward - statistics.mean(rewards)) / (statistics.stdev(rewards) + 1e-6)
        return total

    return mean_advantage(1.0) - mean_advantage(0.0)


SUM = {"loss_aggregation": "constant", "constant_length": 1}
FREE = {"correction": Correction(highest=0)}
ALGORITHMS = {
    "rloo": (Rloo(**FREE), one),
    "rloo, clipped": (Rloo(clip=0.2, **FREE), one),
    "dr_grpo": (DrGrpo(**SUM, **FREE), centered),
    "grpo": (Grpo(**SUM, **FREE), normalised),
    "grpo, no std": (Grpo(scale_by_std=False, **SUM, **FREE), centered),
    "grpo, whitened": (Grpo(normalize_advantages=True, **SUM, **FREE), normalised),
    "dapo": (Dapo(**SUM, **FREE), normalised),
    "gspo": (Gspo(correction=SequenceCorrection(highest=0), **SUM), normalised),
    "gspo_token": (GspoToken(correction=SequenceCorrection(highest=0), **SUM), normalised),
    "gmpo": (Gmpo(correction=SequenceCorrection(highest=0), **SUM), normalised),
    "sapo": (Sapo(**SUM), normalised),
    "m2po": (M2po(threshold=1e9, **SUM), normalised),
    "cispo": (Cispo(highest=0, **SUM), normalised),
    "lite_ppo": (LitePpo(**SUM, **FREE), normalised),
    "distillation": (Distillation(teacher="big", reward_weight=1.0, **SUM, **FREE), normalised),
    "reinforce_plus_plus": (ReinforcePlusPlus(normalize_advantages=False, **SUM, **FREE), one),
    "reinforce_plus_plus, whitened": (ReinforcePlusPlus(**SUM, **FREE), normalised),
    "reinforce_plus_plus, baseline": (
        ReinforcePlusPlus(baseline="group", normalize_advantages=False, **SUM, **FREE),
        centered,
    ),
    "rae": (Rae(**SUM, **FREE), one),
    "ppo": (Ppo(gae_lambda=1.0, normalize_advantages=False, **SUM, **FREE), one),
}
"""Algorithm, with the sum over an episode's tokens, and the factor by which its mean gradient is the policy
gradient."""
CASES = [pytest.param(*case, id=name) for name, case in ALGORITHMS.items()]
OVER_MASKED = [case for case in CASES if "whitened" not in case.id]
"""Those whose moments do not leave out episodes that are masked as a whole."""
PER_SEQUENCE = {"gspo", "gspo_token", "gmpo"}
"""Those with one ratio for a row."""
WEIGHTED = [case for case in CASES if case.id not in {"sapo", "distillation"}]
"""Those whose weight for staleness is exact: a gate is not one, and a stale token's distance to the teacher is not
0."""


def chance_of_success(episodes, logits=POLICY):
    logps = logps_of(logits, arms_allowed(episodes))
    return sum(probability(episode, logps) for episode in episodes if episode.rewards[-1] == 1.0)


def assert_close(ours, truth):
    assert float((ours - truth).abs().max()) < 1e-6
    assert float(truth.abs().max()) > 1e-3


@pytest.mark.parametrize(("algorithm", "factor"), CASES)
def test_the_mean_gradient_is_the_policy_gradient_times_the_factor_however_many_rows_a_success_becomes(
    algorithm, factor
):
    episodes = turns()
    truth = -factor(3, chance_of_success(episodes)) * policy_gradient(episodes)
    assert_close(expected_gradient(algorithm, episodes, 3, by_reward), truth)


@pytest.mark.parametrize("group_size", [2, 4])
@pytest.mark.parametrize(("algorithm", "factor"), CASES)
def test_so_it_is_for_groups_of_any_size_and_answers_of_several_tokens(algorithm, factor, group_size):
    episodes = words() if group_size == 2 else answers()
    truth = -factor(group_size, chance_of_success(episodes)) * policy_gradient(episodes)
    assert_close(expected_gradient(algorithm, episodes, group_size, concat), truth)


@pytest.mark.parametrize("masked", [{0}, {1, 2}])
@pytest.mark.parametrize(("algorithm", "factor"), OVER_MASKED)
def test_calls_that_are_masked_are_missing_in_the_gradient_but_their_rewards_count(algorithm, factor, masked):
    episodes = turns()
    truth = -factor(2, chance_of_success(episodes)) * policy_gradient(episodes, masked=masked)
    assert_close(expected_gradient(algorithm, episodes, 2, by_reward, masked=masked), truth)


@pytest.mark.parametrize("group_size", [2, 3])
@pytest.mark.parametrize(("algorithm", "factor"), WEIGHTED)
def test_the_unbounded_weight_makes_up_for_older_weights(algorithm, factor, group_size):
    episodes = answers()
    truth = -factor(group_size, chance_of_success(episodes, OLDER)) * policy_gradient(episodes)
    assert_close(expected_gradient(algorithm, episodes, group_size, concat, sampled_by=OLDER), truth)


@pytest.mark.parametrize(
    "algorithm", [pytest.param(case.values[0], id=case.id) for case in CASES if case.values[1] is one]
)
def test_calls_with_rewards_of_their_own_have_the_policy_gradient_of_their_sum(algorithm):
    episodes = dialogues()
    assert_close(expected_gradient(algorithm, episodes, 3, by_reward), -policy_gradient(episodes))


def test_a_groups_mean_takes_a_share_of_the_value_of_the_own_episode_off_each_call():
    episodes = dialogues()
    truth = -policy_gradient(episodes, weight=lambda episode, reward: reward - statistics.mean(episode.rewards) / 3)
    assert_close(expected_gradient(DrGrpo(**SUM), episodes, 3, individual), truth)


@pytest.mark.parametrize("loss_aggregation", ["token_mean", "seq_mean"])
def test_means_over_tokens_of_episodes_of_one_length_divide_by_it(loss_aggregation):
    algorithm = Rloo(loss_aggregation=loss_aggregation)
    assert_close(expected_gradient(algorithm, dialogues(), 3, by_reward), -policy_gradient(dialogues()) / 2)


# ---------------------------------------------------------------- one step


@pytest.mark.parametrize("loss_aggregation", ["token_mean", "seq_mean", "constant"])
@pytest.mark.parametrize(
    "algorithm", [pytest.param(case.values[0], id=case.id) for case in CASES if case.id not in PER_SEQUENCE]
)
def test_the_same_episodes_have_the_same_loss_and_gradient_however_they_are_cut_into_rows(algorithm, loss_aggregation):
    algorithm = msgspec.structs.replace(algorithm, loss_aggregation=loss_aggregation, constant_length=7)
    for episodes in (turns(), dialogues()):
        logits, allowed = POLICY.clone().requires_grad_(), arms_allowed(episodes)
        behaviour = logps_of(POLICY + 0.1 * OLDER, allowed)
        found = []
        for cut in CUTS:
            rows = [
                row
                for name, episode in enumerate(episodes)
                for row in sequences_of(episode, f"e{name}", cut, behaviour, 0)
            ]
            loss = loss_of(algorithm, rows, logps_of(logits, allowed))
            found.append((float(loss.detach()), torch.autograd.grad(loss, logits)[0]))
        for loss, gradient in found[1:]:
            assert loss == pytest.approx(found[0][0], abs=1e-6)
            assert torch.allclose(gradient, found[0][1], atol=1e-6)
        assert float(found[0][1].abs().max()) > 1e-3


ROWS = (4, 1, 2, 32, 8, 1, 16, 3)
"""Rows of each episode of a group; the first episode is the only one that succeeds."""
STD = math.sqrt(1 / 8)
"""Standard deviation of one 1 and seven 0, with n - 1."""
PAPERS = {
    **dict.fromkeys(("rloo", "rloo, clipped"), (1.0, -1 / 7)),
    **dict.fromkeys(("dr_grpo", "grpo, no std", "reinforce_plus_plus, baseline"), (7 / 8, -1 / 8)),
    "reinforce_plus_plus": (1.0, 0.0),
    "rae": (1.0 - BASELINE, -BASELINE),
    "ppo": (1.0 - EXPECTED_BY_CRITIC[0].item(), -EXPECTED_BY_CRITIC[0].item()),
}
"""Advantage of the success and of the others; those that are not here divide by the standard deviation."""


def advantages_of_one_success(algorithm):
    """Advantages of the success and of the failures, in a group of eight rows of one call; all tokens of an episode
    have one advantage."""
    rows = []
    for number, count in enumerate(ROWS):
        episode = Episode(calls=(((0, 0),),) * count, rewards=(float(number == 0),) * count)
        rows += sequences_of(episode, f"e{number}", individual, POLICY.log_softmax(-1), 0)
    tokens = step_tokens(rows, 0)
    values = EXPECTED_BY_CRITIC[:1].expand(len(tokens.sequences))
    same = dict.fromkeys(("proximal", "reference", "teacher"), tokens.behaviour)
    advantages = algorithm.advantages(msgspec.structs.replace(tokens, values=values, **same)).tokens
    success = tokens.samples[tokens.calls] == 0
    assert len(set(advantages[success].tolist())) == len(set(advantages[~success].tolist())) == 1
    return advantages[success][0].item(), advantages[~success][0].item()


@pytest.mark.parametrize(("name", "algorithm"), [(name, algorithm) for name, (algorithm, _) in ALGORITHMS.items()])
def test_one_success_among_eight_has_the_papers_advantage_however_many_rows_each_became(name, algorithm):
    assert advantages_of_one_success(algorithm) == pytest.approx(
        PAPERS.get(name, (7 / 8 / STD, -1 / 8 / STD)), rel=1e-5
    )
