"""All rules about the first episodes of a run: each finds one kind of broken learning signal, or nothing."""

from __future__ import annotations

from collections.abc import Sequence

from areal_actors.lint.call_rules import (
    find_abandoned_episodes,
    find_calls_without_credit,
    find_cut_answers,
    find_empty_answers,
    find_episodes_ended_by_model,
    find_equal_prompts,
    find_forged_marks,
    find_ignored_fields,
    find_lost_tool_calls,
    find_rewritten_histories,
)
from areal_actors.lint.fault import LearningFault, Rule
from areal_actors.lint.first_episodes import FirstEpisodes
from areal_actors.lint.reward_rules import (
    find_constant_rewards,
    find_equal_rewards_in_groups,
    find_equal_samples,
    find_right_answers_without_reward,
    find_roles_with_one_baseline,
    find_unreadable_references,
)
from areal_actors.recipe.recipe import Recipe

RULES: Sequence[Rule] = (
    find_constant_rewards,
    find_equal_rewards_in_groups,
    find_equal_samples,
    find_right_answers_without_reward,
    find_unreadable_references,
    find_equal_prompts,
    find_empty_answers,
    find_lost_tool_calls,
    find_calls_without_credit,
    find_cut_answers,
    find_episodes_ended_by_model,
    find_roles_with_one_baseline,
    find_forged_marks,
    find_abandoned_episodes,
    find_rewritten_histories,
    find_ignored_fields,
)


def findings(facts: FirstEpisodes, recipe: Recipe) -> list[LearningFault]:
    """Returns the findings of all rules, the gravest first."""
    return [finding for rule in RULES for finding in rule(facts, recipe)]


def to_lines(faults: Sequence[LearningFault], show: str) -> list[str]:
    """Returns findings as lines: a sentence, and the command that shows an episode, which is `show` and the episode."""
    return [
        f"attention: {fault.sentence}" + (f" ({show} {fault.episodes[0]})" if fault.episodes else "")
        for fault in faults
    ]
