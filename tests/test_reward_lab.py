"""Another reward over recorded episodes is compared with intervals that hold the truth as often as they state."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from areal_actors import cli
from areal_actors.core.values import Trajectory
from areal_actors.replay.group_bootstrap import Interval, group_intervals
from areal_actors.replay.reward_lab import STEP_KL, compare_rewards
from areal_bus.recorded import FORMAT_VERSION

LOG = Path(__file__).parent / "recordings" / f"log-{FORMAT_VERSION}.xz"
RULES = {"same": "return 1.0 if output.count(str(task['answer'].split()[-1])) else 0.0", "long": "return len(output)"}


def mean(totals):
    return totals[..., 0] / totals[..., 1]


def test_intervals_of_few_groups_hold_the_truth_as_often_as_they_state():
    random = np.random.default_rng(1)
    held = 0
    for number in range(300):
        ability = random.beta(0.6, 1.4, 24)  # tasks differ, and their episodes share them
        sums = np.stack([random.binomial(4, ability), np.full(24, 4)], axis=1).astype(float)
        held += group_intervals(sums, {"mean": mean}, seed=number)["mean"].holds(0.3)
    assert 277 <= held <= 296, held  # 95 % of 300 is 285


def test_an_interval_is_the_same_again_and_a_share_of_zero_has_a_bound():
    sums = np.stack([np.zeros(20), np.ones(20)], axis=1)
    assert group_intervals(sums, {"share": mean})["share"] == Interval(0.0, 0.0, 0.0)
    bounded = group_intervals(sums, {"share": mean}, ranges={"share": (0.0, 1.0)})["share"]
    assert bounded.high == pytest.approx(1 - 0.025 ** (1 / 20))
    sums[:7, 0] = 1.0
    assert group_intervals(sums, {"share": mean}) == group_intervals(sums, {"share": mean})
    assert math.isnan(group_intervals(sums[:1], {"share": mean})["share"].low)


def episode(name, reward):
    return Trajectory(
        episode=name, group=name.partition(".")[0], attempt=1, task="task", reward=reward, interactions=()
    )


def compare(was, now):
    """Compare rewards by group; advantages are the centred rewards."""
    sides, advantages = [], []
    for rewards in (was, now):
        names = [(f"{group}.{member}", value) for group, row in enumerate(rewards) for member, value in enumerate(row)]
        sides.append({place: episode(name, value) for place, (name, value) in enumerate(names)})
        means = {str(group): sum(row) / len(row) for group, row in enumerate(rewards)}
        advantages.append({name: value - means[name.partition(".")[0]] for name, value in names})
    return compare_rewards(*sides, *advantages)


def test_rankings_signals_and_signs_are_counted():
    was = [[0.0, 1.0], [0.0, 1.0], [1.0, 1.0], [0.0, 1.0], [0.0, 0.0]]
    now = [[0.0, 5.0], [1.0, 0.0], [0.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    lab = compare(was, now)
    assert (lab.groups, lab.episodes, lab.trained) == (5, 10, 10)
    shares = {"groups_flipped": 0.2, "groups_with_new_signal": 0.2, "groups_without_old_signal": 0.2}
    assert {name: lab.figures[name].value for name in shares} == pytest.approx(shares)
    assert lab.figures["signs_changed"].value == pytest.approx(0.2)
    assert lab.figures["was"].value == pytest.approx(0.5)
    assert lab.figures["difference"].value == pytest.approx(1.2)


@pytest.mark.parametrize(("was", "now", "flips"), [([0, 0, 1], [1, 0, 0], 1), ([0, 1, 1], [0, 1, 2], 0)])
def test_equal_rewards_are_no_ranking(was, now, flips):
    assert compare([was], [now]).figures["groups_flipped"].value == flips


def test_the_predicted_step_is_that_of_the_exact_policy_near_by():
    """A policy over eight answers to each of 50 tasks, all sampled: the tilted policy at the same divergence."""
    random = np.random.default_rng(3)
    was, now = random.random((50, 8)), random.random((50, 8))
    lab = compare(was.tolist(), now.tolist())
    advantages = was - was.mean(axis=1, keepdims=True)

    def tilted(strength):
        policy = np.exp(strength * advantages)
        return policy / policy.sum(axis=1, keepdims=True)

    def divergence(strength):
        policy = tilted(strength)
        return (policy * np.log(policy * 8)).sum(axis=1).mean()

    strengths = np.linspace(0.0, 2.0, 20001)
    strength = strengths[np.argmin([abs(divergence(one) - STEP_KL) for one in strengths[::20]]) * 20]
    policy = tilted(strength)
    sample_of_eight = math.sqrt(8 / 7)  # the lab takes episodes for a sample of the policy's, not for all of them
    for side, reward in (("was_reward", was), ("now_reward", now)):
        exact = (policy * reward).sum(axis=1).mean() - reward.mean()
        predicted = lab.figures[f"next/was/{side}"].value
        assert predicted == pytest.approx(exact * sample_of_eight, abs=0.002), side


def test_the_command_prints_the_lab_where_the_reward_differs(capsys, tmp_path):
    path = tmp_path / "rules.py"
    path.write_text("".join(f"def {name}(task, output):\n    {body}\n" for name, body in RULES.items()))
    assert cli.main(["what-if", str(LOG), f"reward={path}:long", "--json"]) == 0
    lab = json.loads(capsys.readouterr().out)["lab"]
    assert lab["groups"] == 16
    assert lab["figures"]["was"]["low"] < lab["figures"]["was"]["value"] < lab["figures"]["was"]["high"]
    assert lab["figures"]["next/now/tokens"]["value"] > 0  # longer answers are rewarded
    assert cli.main(["what-if", str(LOG), f"reward={path}:long"]) == 0
    printed = capsys.readouterr().out
    assert "reward lab: 64 episodes of 16 groups, with 95 % intervals" in printed
    assert "groups whose ranking flips" in printed
    assert cli.main(["what-if", str(LOG), "algorithm.name=rloo"]) == 0
    assert "reward lab" not in capsys.readouterr().out
