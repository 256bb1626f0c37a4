"""Rules about the calls and the ends of a run's first episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from areal_actors.lint.fault import (
    EPISODES_NAMED,
    LEAST_EPISODES,
    MOSTLY,
    OFTEN,
    SOMETIMES,
    LearningFault,
    most_common,
    some_of,
)
from areal_actors.lint.first_episodes import FirstEpisodes
from areal_actors.recipe.recipe import Recipe

FIELDS_NAMED = 5
LEAST_TASKS = 3
"""Tasks from which equal prompts are no coincidence."""


def find_lost_tool_calls(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:  # noqa: ARG001 - a rule
    """Tool calls that the model wrote and that were not read."""
    lost = sum(map(len, facts.lost_calls.values()))
    if not facts.calls or lost < SOMETIMES * facts.calls:
        return
    cause, episodes = most_common(facts.lost_calls)
    yield LearningFault(
        name="lost tool calls",
        sentence=(
            f"tool calls in {lost} of {facts.calls} answers were not read; most often: {cause}; the agent saw them as"
            " text: choose the model's format with `gateway.tool_format`, or show the model its form in the prompt"
        ),
        episodes=some_of(episodes),
        setting="gateway.tool_format",
    )


def find_calls_without_credit(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:
    """Calls that no reward reaches under the recipe's discount."""
    missing = [episode for episode in facts.episodes if episode.uncredited]
    if missing:
        yield LearningFault(
            name="calls without credit",
            sentence=(
                f"{sum(episode.uncredited for episode in missing)} calls of {len(missing)} episodes are trained with"
                f" reward 0: no reward follows them (task.turn_discount = {recipe.task.turn_discount}): reward every"
                " conversation that the client names"
            ),
            episodes=tuple(episode.name for episode in missing[:EPISODES_NAMED]),
            setting="task.turn_discount",
        )


def find_ignored_fields(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:  # noqa: ARG001 - a rule
    """Fields of requests that had no effect and would have one elsewhere."""
    names = sorted(facts.ignored_fields, key=lambda name: -len(facts.ignored_fields[name]))
    if names:
        shown = ", ".join(f"`{name}`" for name in names[:FIELDS_NAMED])
        more = f" and {len(names) - FIELDS_NAMED} more" if len(names) > FIELDS_NAMED else ""
        yield LearningFault(
            name="ignored fields",
            sentence=(
                f"clients send {shown}{more}, which {'has' if len(names) == 1 else 'have'} no effect in this run"
                " (docs/gateway.md): leave them out, or refuse what is unknown with gateway.unknown_fields ="
                ' "refuse"'
            ),
            episodes=some_of(facts.ignored_fields[names[0]]),
            setting="gateway.unknown_fields",
        )


def find_cut_answers(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:
    """Answers that were cut by the limit of tokens."""
    cut = [episode for episode in facts.episodes if episode.truncated]
    if len(facts.episodes) >= LEAST_EPISODES and len(cut) >= OFTEN * len(facts.episodes):
        yield LearningFault(
            name="cut answers",
            sentence=(
                f"the last answers of {len(cut)} of {len(facts.episodes)} episodes were cut at sampling.max_tokens = "
                f"{recipe.sampling.max_tokens}: raise it, or reward short answers"
            ),
            episodes=tuple(episode.name for episode in cut[:EPISODES_NAMED]),
            setting="sampling.max_tokens",
        )


def find_empty_answers(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:  # noqa: ARG001 - a rule
    """Last answers that end at once."""
    empty = [episode for episode in facts.episodes if episode.is_empty]
    if len(facts.episodes) >= LEAST_EPISODES and len(empty) >= MOSTLY * len(facts.episodes):
        yield LearningFault(
            name="empty answers",
            sentence=(
                f"the last answers of {len(empty)} of {len(facts.episodes)} episodes end at once, with one token at"
                " most: look for `stop` in the agent's requests that an answer begins with, and for a chat template"
                " that is not the model's"
            ),
            episodes=tuple(episode.name for episode in empty[:EPISODES_NAMED]),
        )


def find_equal_prompts(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:
    """Different tasks with the same prompt, of agents that make one call."""
    single = [episode for episode in facts.episodes if episode.calls == 1]
    tasks, prompts = {episode.task for episode in single}, {episode.prompts for episode in single}
    if len(single) < max(LEAST_EPISODES, len(facts.episodes)) or len(tasks) < LEAST_TASKS or len(prompts) > 1:
        return
    yield LearningFault(
        name="equal prompts",
        sentence=(
            f"the prompts of {len(tasks)} different tasks are the same, so that the model does not know what it is"
            " asked: look for a column that the agent does not find in its task (task.dataset ="
            f" {recipe.task.dataset!r}, task.columns)"
        ),
        episodes=tuple(episode.name for episode in single[:EPISODES_NAMED]),
        setting="task.columns",
    )


def find_forged_marks(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:
    """Marks of a chat template in texts that are read as control tokens."""
    if facts.marked and recipe.gateway.marks_in_text == "control":
        yield LearningFault(
            name="forged marks",
            sentence=(
                f"{len(facts.marked)} episodes have marks of a chat template in the text of their task or output, and"
                ' gateway.marks_in_text = "control" reads them as control tokens, which end a turn or speak as the'
                ' system: set it to "text"'
            ),
            episodes=some_of(facts.marked),
            setting="gateway.marks_in_text",
        )


def find_episodes_ended_by_model(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:
    """Episodes that the model itself ended: its context overflowed, or it broke the agent."""
    ended = [episode for episode in facts.episodes if episode.end_cause]
    if len(facts.episodes) >= LEAST_EPISODES and len(ended) >= OFTEN * len(facts.episodes):
        cause = Counter(episode.end_cause for episode in ended).most_common(1)[0][0]
        yield LearningFault(
            name="ended by the model",
            sentence=(
                f"the model itself ended {len(ended)} of {len(facts.episodes)} episodes, which have"
                f" task.overflow_reward = {recipe.task.overflow_reward:g}; most often: {cause:.200}"
            ),
            episodes=tuple(episode.name for episode in ended[:EPISODES_NAMED]),
            setting="task.overflow_reward",
        )


def find_abandoned_episodes(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:  # noqa: ARG001 - a rule
    """Attempts that failed, and were drawn again."""
    failed, ended = sum(map(len, facts.abandoned.values())), len(facts.episodes)
    if failed < LEAST_EPISODES or failed < OFTEN * (failed + ended):
        return
    cause, episodes = most_common(facts.abandoned)
    yield LearningFault(
        name="failed attempts",
        sentence=f"{failed} of {failed + ended} attempts failed and are not trained; most often: {cause}",
        episodes=some_of(episodes),
    )


def find_rewritten_histories(facts: FirstEpisodes, recipe: Recipe) -> Iterator[LearningFault]:  # noqa: ARG001 - a rule
    """Prompts that do not begin with the tokens of the call before."""
    broken = sum(map(len, facts.broken.values()))
    if not facts.calls or broken < OFTEN * facts.calls:
        return
    cause, episodes = most_common(facts.broken)
    yield LearningFault(
        name="rewritten histories",
        sentence=(
            f"the prompts of {broken} of {facts.calls} calls do not extend the call before, and are computed and"
            f" trained again; most often: {cause}"
        ),
        episodes=some_of(episodes),
    )
