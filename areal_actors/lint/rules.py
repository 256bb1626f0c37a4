"""Rules about the first episodes of a run: each finds one kind of broken learning signal, or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

from areal_actors.core.values import Value
from areal_actors.lint.first_episodes import FirstEpisodes
from areal_actors.recipe.recipe import Recipe

LEAST_EPISODES = 8
"""Episodes from which rules about shares apply."""
OFTEN = 0.25
"""Share of episodes, or of calls, from which a cause is named."""
SOMETIMES = 0.1
"""The same for tool calls that were lost."""
MOSTLY = 0.5
EPISODES_NAMED = 3
FIELDS_NAMED = 5


class LearningFault(Value):
    """A cause for which a run may not learn what was intended."""

    name: str
    sentence: str
    """Observation and remedy."""
    episodes: tuple[str, ...] = ()
    """Episodes to look at."""
    setting: str = ""
    """Setting to change; empty if the remedy is not in the recipe."""


Rule = Callable[[FirstEpisodes, Recipe], Iterator[LearningFault]]


def find_equal_samples(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:
    """Groups in which all episodes sampled the same tokens."""
    groups = facts.groups()
    equal = [group for group in groups if len({episode.sampled for episode in group}) == 1]
    if not groups or len(equal) < MOSTLY * len(groups) or recipe.sampling.temperature == 0:
        return
    yield LearningFault(
        name="equal samples",
        sentence=f"all episodes of {len(equal)} of {len(groups)} groups sampled the same tokens: nothing to learn from; "
        "raise sampling.temperature, or use harder tasks",
        episodes=tuple(group[0].name for group in equal[:EPISODES_NAMED]),
        setting="sampling.temperature",
    )


def find_constant_rewards(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:
    """All rewards are equal."""
    rewards = {episode.reward for episode in facts.episodes}
    if len(facts.episodes) < LEAST_EPISODES or len(rewards) != 1:
        return
    (reward,) = rewards
    yield LearningFault(
        name="constant rewards",
        sentence=f"all {len(facts.episodes)} episodes have the reward {reward:g}: nothing to learn from; check `task.reward` "
        f"({recipe.task.reward or 'set by the agent'}) on an answer that is right, or use {'harder' if reward > 0.5 else 'easier'} tasks",
        episodes=tuple(episode.name for episode in facts.episodes[:EPISODES_NAMED]),
        setting="task.reward",
    )


def find_right_answers_without_reward(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:
    """Answers that end with the reference, and have the lowest reward."""
    by_name = {episode.name: episode.reward for episode in facts.episodes}
    lowest = min(by_name.values(), default=0.0)
    unrewarded = [name for name, reward in by_name.items() if reward == lowest]
    missed = [name for name in unrewarded if facts.right_by_text.get(name) == lowest and lowest <= 0]
    if len(by_name) < LEAST_EPISODES or len(missed) < max(OFTEN * len(unrewarded), 1):
        return
    yield LearningFault(
        name="right answers without reward",
        sentence=f"{len(missed)} of {len(unrewarded)} answers with reward {lowest:g} end with the task's reference: `task.reward` = "
        f"{recipe.task.reward!r} reads another form than the model writes; change the prompt or the reward",
        episodes=tuple(missed[:EPISODES_NAMED]),
        setting="task.reward",
    )


def find_lost_tool_calls(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:  # noqa: ARG001 - a rule
    """Tool calls that the model wrote and that were not read."""
    lost = sum(map(len, facts.lost_calls.values()))
    if not facts.calls or lost < SOMETIMES * facts.calls:
        return
    cause, episodes = _most_common(facts.lost_calls)
    yield LearningFault(
        name="lost tool calls",
        sentence=f"tool calls in {lost} of {facts.calls} answers were not read; most often: {cause}; the agent saw them as text: choose "
        "the model's format with `gateway.tool_format`, or show the model its form in the prompt",
        episodes=_some(episodes),
        setting="gateway.tool_format",
    )


def find_calls_without_credit(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:
    """Calls that no reward reaches under the recipe's discount."""
    missing = [episode for episode in facts.episodes if episode.uncredited]
    if missing:
        yield LearningFault(
            name="calls without credit",
            sentence=f"{sum(episode.uncredited for episode in missing)} calls of {len(missing)} episodes are trained with reward 0: "
            f"no reward follows them (task.turn_discount = {recipe.task.turn_discount}): reward every conversation that the client names",
            episodes=tuple(episode.name for episode in missing[:EPISODES_NAMED]),
            setting="task.turn_discount",
        )


def find_ignored_fields(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:  # noqa: ARG001
    """Fields of requests that had no effect and would have one elsewhere."""
    names = sorted(facts.ignored_fields, key=lambda name: -len(facts.ignored_fields[name]))
    if names:
        shown = ", ".join(f"`{name}`" for name in names[:FIELDS_NAMED])
        more = f" and {len(names) - FIELDS_NAMED} more" if len(names) > FIELDS_NAMED else ""
        yield LearningFault(
            name="ignored fields",
            sentence=f"clients send {shown}{more}, which {'has' if len(names) == 1 else 'have'} no effect in this run (docs/gateway.md): "
            'leave them out, or refuse what is unknown with gateway.unknown_fields = "refuse"',
            episodes=_some(facts.ignored_fields[names[0]]),
            setting="gateway.unknown_fields",
        )


def find_cut_answers(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:
    """Answers that were cut by the limit of tokens."""
    cut = [episode for episode in facts.episodes if episode.truncated]
    if len(facts.episodes) >= LEAST_EPISODES and len(cut) >= OFTEN * len(facts.episodes):
        yield LearningFault(
            name="cut answers",
            sentence=f"the last answers of {len(cut)} of {len(facts.episodes)} episodes were cut at sampling.max_tokens = "
            f"{recipe.sampling.max_tokens}: raise it, or reward short answers",
            episodes=tuple(episode.name for episode in cut[:EPISODES_NAMED]),
            setting="sampling.max_tokens",
        )


def find_episodes_ended_by_model(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:
    """Episodes that the model itself ended: its context overflowed, or it broke the agent."""
    ended = [episode for episode in facts.episodes if episode.end_cause]
    if len(facts.episodes) >= LEAST_EPISODES and len(ended) >= OFTEN * len(facts.episodes):
        cause = Counter(episode.end_cause for episode in ended).most_common(1)[0][0]
        yield LearningFault(
            name="ended by the model",
            sentence=f"the model itself ended {len(ended)} of {len(facts.episodes)} episodes, which have task.overflow_reward = "
            f"{recipe.task.overflow_reward:g}; most often: {cause:.200}",
            episodes=tuple(episode.name for episode in ended[:EPISODES_NAMED]),
            setting="task.overflow_reward",
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
            sentence=f"roles with different rewards are compared with each other (mean rewards: {named}): the one with the lower scale is "
            'always trained as a failure; set task.baseline_over = "roles"',
            episodes=tuple(episode.name for episode in rewarded[:EPISODES_NAMED]),
            setting="task.baseline_over",
        )


def find_abandoned_episodes(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:  # noqa: ARG001 - a rule
    """Attempts that failed, and were drawn again."""
    failed, ended = sum(map(len, facts.abandoned.values())), len(facts.episodes)
    if failed < LEAST_EPISODES or failed < OFTEN * (failed + ended):
        return
    cause, episodes = _most_common(facts.abandoned)
    yield LearningFault(
        name="failed attempts",
        sentence=f"{failed} of {failed + ended} attempts failed and are not trained; most often: {cause}",
        episodes=_some(episodes),
    )


def find_rewritten_histories(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:  # noqa: ARG001 - a rule
    """Prompts that do not begin with the tokens of the call before."""
    broken = sum(map(len, facts.broken.values()))
    if not facts.calls or broken < OFTEN * facts.calls:
        return
    cause, episodes = _most_common(facts.broken)
    yield LearningFault(
        name="rewritten histories",
        sentence=f"the prompts of {broken} of {facts.calls} calls do not extend the call before, and are computed and trained again; most "
        f"often: {cause}",
        episodes=_some(episodes),
    )


RULES: Sequence[Rule] = (
    find_constant_rewards,
    find_equal_samples,
    find_right_answers_without_reward,
    find_lost_tool_calls,
    find_calls_without_credit,
    find_cut_answers,
    find_episodes_ended_by_model,
    find_roles_with_one_baseline,
    find_abandoned_episodes,
    find_rewritten_histories,
    find_ignored_fields,
)


def findings(facts: FirstEpisodes, recipe: Recipe) -> list[LearningFault]:
    """Returns the findings of all rules, the gravest first."""
    return [finding for rule in RULES for finding in rule(facts, recipe)]


def to_lines(found: Sequence[LearningFault], show: str) -> list[str]:
    """Returns findings as lines: a sentence, and the command that shows an episode, which is `show` and the episode."""
    return [f"attention: {one.sentence}" + (f" ({show} {one.episodes[0]})" if one.episodes else "") for one in found]


def _most_common(causes: Mapping[str, Sequence[str]]) -> tuple[str, Sequence[str]]:
    return max(causes.items(), key=lambda one: len(one[1]))


def _some(episodes: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(episodes))[:EPISODES_NAMED]
