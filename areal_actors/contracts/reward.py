"""Contract of every reward: see `Reward`.

A case takes a reward function, examples of what it scores, and random numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any, NamedTuple

from areal_actors.rewards import Reward
from areal_actors.rewards.scored import score_output

OUTPUTS = 100
LONG_OUTPUT = 200_000
"""Characters of an answer that repeats itself until it is cut."""
PIECES = (
    " ",
    "\n",
    "\t",
    "\0",
    "é",
    "日本語",
    "\u202e",
    "🙂",
    "\\boxed{",
    "}",
    "####",
    "```python\n",
    "```",
    "<think>",
    "</think>",
    "-1/0",
    "1e999",
)

Example = tuple[dict[str, Any], str, float]
"""A task's row, an output, and its reward."""


class RewardHarness(NamedTuple):
    reward: Reward
    examples: Sequence[Example]
    random: Random

    def output(self) -> str:
        """An answer of an example, cut, repeated, or with other text in it."""
        _, output, _ = self.random.choice(self.examples)
        cut = output[: self.random.randint(0, len(output))]
        return cut + "".join(self.random.choice((*PIECES, cut, output)) for _ in range(self.random.randint(0, 6)))

    def score(self, task: dict[str, Any], output: str) -> tuple[float, str]:
        """The reward, and why it failed if it did."""
        score, failure = score_output(self.reward, task, output)
        return float(score), failure


Case = Callable[[RewardHarness], None]


def an_example_has_its_reward(harness: RewardHarness) -> None:
    for task, output, expected in harness.examples:
        reward, failure = harness.score(deepcopy(task), output)
        assert not failure, failure
        assert math.isclose(reward, expected, abs_tol=1e-6), (output, reward, expected)


def any_output_has_a_finite_reward(harness: RewardHarness) -> None:
    for output in ("", " ", "\ud800", "a" * LONG_OUTPUT, *(harness.output() for _ in range(OUTPUTS))):
        task, *_ = harness.random.choice(harness.examples)
        reward, failure = harness.score(deepcopy(task), output)
        assert not failure, (output[:200], failure)
        assert math.isfinite(reward), output[:200]


def an_output_has_the_same_reward_again(harness: RewardHarness) -> None:
    for _ in range(OUTPUTS):
        task, output = harness.random.choice(harness.examples)[0], harness.output()
        first, later = harness.score(deepcopy(task), output), harness.score(deepcopy(task), output)
        assert first == later, output


def the_task_stays_as_it_is(harness: RewardHarness) -> None:
    for task, output, _ in harness.examples:
        given = deepcopy(task)
        harness.score(given, output)
        assert given == task


def a_task_that_was_read_from_a_log_has_the_same_reward(harness: RewardHarness) -> None:
    for task, output, _ in harness.examples:
        assert harness.score(json.loads(json.dumps(task)), output) == harness.score(deepcopy(task), output)


CASES: tuple[Case, ...] = (
    an_example_has_its_reward,
    any_output_has_a_finite_reward,
    an_output_has_the_same_reward_again,
    the_task_stays_as_it_is,
    a_task_that_was_read_from_a_log_has_the_same_reward,
)
