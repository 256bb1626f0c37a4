"""Rules about the rewards of a run's first episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from areal_actors.core.command import COMMAND
from areal_actors.lint.fault import EPISODES_NAMED, LEAST_EPISODES, MOSTLY, LearningFault, some_of
from areal_actors.lint.first_episodes import Episode, FirstEpisodes
from areal_actors.recipe.recipe import Recipe
from areal_actors.rewards.reference_readers import can_read, reference_readers

LEAST_GROUPS = 4
NEARLY_ALL = 0.75
"""Share of right answers without a reward from which they are named: a reward may demand more than the result."""
LEAST_RIGHT = 3
"""Right answers from which their rewards are compared."""
EQUAL = 1e-9
"""Difference of rewards, relative to their size, below which they are equal."""


def find_equal_samples(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:  # noqa: ARG001 - a rule
    """Groups in which all episodes sampled the same tokens."""
    groups = facts.groups()
    equal = [group for group in groups if group[0].sampled and len({episode.sampled for episode in group}) == 1]
    if not groups or len(equal) < MOSTLY * len(groups):
        return
    yield LearningFault(
        name="equal samples",
        sentence=(
            f"all episodes of {len(equal)} of {len(groups)} groups sampled the same tokens: nothing to learn from;"
            " raise sampling.temperature and leave top_p and top_k, of the recipe and of the agent's requests, at"
            " their defaults; or use harder tasks"
        ),
        episodes=tuple(group[0].name for group in equal[:EPISODES_NAMED]),
        setting="sampling.temperature",
    )


def find_constant_rewards(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:
    """All rewards are equal."""
    if len(facts.episodes) < LEAST_EPISODES or not _are_equal(facts.episodes):
        return
    reward = facts.episodes[0].reward
    yield LearningFault(
        name="constant rewards",
        sentence=(
            f"all {len(facts.episodes)} episodes have the reward {reward:g}: nothing to learn from; check `task.reward`"
            f" ({recipe.task.reward or 'set by the agent'}) on an answer that is right, or use"
            f" {'harder' if reward > 0.5 else 'easier'} tasks"
        ),
        episodes=tuple(episode.name for episode in facts.episodes[:EPISODES_NAMED]),
        setting="task.reward",
    )


def find_equal_rewards_in_groups(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:
    """Rewards differ between tasks, and never between the answers to one."""
    groups = facts.groups()
    if len(groups) < LEAST_GROUPS or _are_equal(facts.episodes) or not all(map(_are_equal, groups)):
        return
    yield LearningFault(
        name="equal rewards in groups",
        sentence=(
            f"rewards differ between tasks, but not within any of {len(groups)} groups: nothing to learn from; let"
            f" `task.reward` ({recipe.task.reward or 'set by the agent'}) depend on the answer, or use tasks of"
            " middling difficulty"
        ),
        episodes=tuple(group[0].name for group in groups[:EPISODES_NAMED]),
        setting="task.reward",
    )


def find_right_answers_without_reward(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:
    """Answers that state the reference, most of which have the lowest reward."""
    rewards = {episode.name: episode.reward for episode in facts.episodes}
    right = {name: reward for name, reward in facts.right_by_text.items() if name in rewards}
    lowest = min(rewards.values(), default=0.0)
    missed = [name for name, reward in right.items() if reward - lowest <= EQUAL]
    rewards_all = lowest > 0 and max(rewards.values()) - lowest <= EQUAL
    if len(rewards) < LEAST_EPISODES or len(missed) < max(NEARLY_ALL * len(right), LEAST_RIGHT) or rewards_all:
        return
    yield LearningFault(
        name="right answers without reward",
        sentence=(
            f"{len(missed)} of {len(right)} answers that state the task's reference have the lowest reward, {lowest:g}:"
            f" `task.reward` = {recipe.task.reward!r} reads another form than the model writes; change the prompt or"
            " the reward"
        ),
        episodes=tuple(missed[:EPISODES_NAMED]),
        setting="task.reward",
    )


def find_unreadable_references(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:
    """Tasks whose reference the reward cannot read, so that none of their episodes is trained."""
    readers = [reader for _, reader in reference_readers(recipe.task)] if facts.unscored else []
    episodes = [
        episode for episode, data in facts.unscored.values() if any(not can_read(reader, data) for reader in readers)
    ]
    if episodes:
        yield LearningFault(
            name="unreadable references",
            sentence=(
                f"`task.reward` = {recipe.task.reward!r} cannot read the references of {len(episodes)} tasks that were"
                " drawn, so that no answer to them is right: correct or remove these rows of task.dataset, or name"
                f" their column in task.columns (`{COMMAND} check` lists them)"
            ),
            episodes=some_of(episodes),
            setting="task.dataset",
        )


def find_roles_with_one_baseline(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:
    """Roles with rewards of their own that differ more between roles than within one, and share a baseline."""
    by_role: dict[str, list[float]] = {}
    for episode in facts.episodes:
        for role, rewards in episode.role_rewards.items():
            by_role.setdefault(role, []).extend(rewards)
    rewarded = [episode for episode in facts.episodes if len(episode.role_rewards) > 1]
    if recipe.task.baseline_over == "roles" or len(rewarded) < LEAST_EPISODES or len(by_role) > EPISODES_NAMED * 2:
        return
    means = {role: fmean(rewards) for role, rewards in by_role.items()}
    within = max(max(rewards) - min(rewards) for rewards in by_role.values())
    if max(means.values()) - min(means.values()) > within:
        named = ", ".join(f"{role or 'none'}: {mean:.2g}" for role, mean in sorted(means.items()))
        yield LearningFault(
            name="roles with one baseline",
            sentence=(
                f"roles with different rewards are compared with each other (mean rewards: {named}): the one with the"
                ' lower scale is always trained as a failure; set task.baseline_over = "roles"'
            ),
            episodes=tuple(episode.name for episode in rewarded[:EPISODES_NAMED]),
            setting="task.baseline_over",
        )


def _are_equal(episodes: Sequence[Episode]) -> bool:
    rewards = [episode.reward for episode in episodes]
    return not rewards or max(rewards) - min(rewards) <= EQUAL * max(1.0, *map(abs, rewards))
