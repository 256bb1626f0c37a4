"""One episode of a run as its log has it.

The tree of its calls, and of every sampled token what the training step made of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.core.span_rewards import TokenSpan
from areal_actors.core.values import Interaction
from areal_actors.reader.records import EndedEpisode
from areal_actors.reader.run import Run
from areal_actors.recipe.recipe import Recipe, recorded_recipe
from areal_actors.replay.call_tree import tree
from areal_actors.replay.trained_columns import TrainedColumns, trained_columns
from areal_actors.sequences.credit import Credit, call_rewards

TOGETHER = """
SELECT episode FROM batch_member WHERE formed IN (SELECT batch FROM attempt WHERE episode = ?)
UNION SELECT episode FROM attempt WHERE purpose = 'train' AND group_ = (SELECT group_ FROM attempt WHERE episode = ?)
"""


class CallTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A model call. Columns have one entry for each sampled token.

    They are empty if the log has no trajectory of the episode.
    """

    interaction: str
    parent: str
    """Id of the call whose conversation this one continues; empty for the first of a conversation."""
    prefix: str
    """Id of the call whose tokens the prompt begins with; empty if there is none."""
    depth: int
    """Number of branches of the conversation before this call."""
    prompt: str | None = None
    """Text of the prompt's tokens after those of `prefix`; None without the model's tokenizer."""
    prompt_tokens: int | None = None
    """Length of the whole prompt; None if the log no longer has it."""
    completion_tokens: int
    finish_reason: str
    worker: str = ""
    set_reward: float | None = None
    """Reward that the agent set for this call."""
    reward: float | None = None
    """Reward that trains this call, after credit assignment."""
    token_ids: list[int] = []
    tokens: list[str | None] = []
    """Texts; None without the model's tokenizer."""
    logprobs: list[float] = []
    """Log-probabilities under the weights that sampled the tokens."""
    weight_versions: list[int] = []
    trained: list[bool] = []
    advantages: list[float | None] = []
    """None for tokens that are not trained, and where only a model can compute them."""
    untrained: str = ""
    """Reasons why some of the tokens, or all, are not trained."""
    spans: list[TokenSpan] = []
    """Rewards of parts of the completion."""


class EpisodeTrace(msgspec.Struct, frozen=True, kw_only=True):
    """An ended attempt at an episode."""

    run: str
    episode: str
    attempt: int
    task: str
    task_data: dict[str, Any]
    purpose: str
    outcome: str
    """As in `areal-actors show`: `trained in step 3`, `dropped: stale`, `abandoned: timeout`, `evaluated` or
    `waiting`."""
    detail: str
    """The message of a failure."""
    reward: float | None
    metrics: dict[str, float]
    """Further numbers from the reward function."""
    output: str
    """Text that the agent returned."""
    group_rewards: dict[str, float]
    """Rewards of the exported episodes of its group, by episode."""
    step: int | None = None
    """Step that trained it, counted from 1."""
    batch_event: int | None = None
    """Position in the log of the event that formed the batch of that step."""
    batch_episodes: int = 0
    oldest_version: int | None = None
    """Tokens that older weights sampled are not trained in that step."""
    without_advantages: str = ""
    """Reason why advantages are not known; empty if they are, or if nothing was trained."""
    calls: list[CallTrace]
    """In the order of the tree: each call is followed by those that continue it."""


def trace_episode(run: Run, episode: str, attempt: int | None = None) -> EpisodeTrace:
    """Returns an ended attempt at an episode; without a number the exported one, else the latest.

    Raises:
        SetupError: the log has no such attempt, or another version wrote the recipe.
    """
    run = run.only(_needed(run, episode))
    ended = _choose_attempt(run, episode, attempt)
    step = ended.step
    batch = run.records.batches.get(step) if step else None
    recipe = recorded_recipe(batch.recipe if batch else run.recipe)
    columns, missing = None, ""
    if batch is not None:
        trajectories = {
            ended_episode.sequence: ended_episode.trajectory
            for ended_episode in run.records.ended.values()
            if ended_episode.trajectory
        }
        gone = sum(member.sequence not in trajectories for group in batch.event.groups for member in group)
        if gone:
            missing = f"the log no longer has {gone} of the {batch.episodes()} episodes of its batch"
        else:
            columns = trained_columns(batch, trajectories, recipe)
    return EpisodeTrace(
        run=run.name,
        episode=ended.episode,
        attempt=ended.attempt,
        task=ended.task_id,
        task_data=ended.work.task.data if ended.work else {},
        purpose=ended.purpose,
        outcome=ended.describe(),
        detail=getattr(ended.event, "detail", ""),
        reward=ended.reward,
        metrics=ended.trajectory.metrics if ended.trajectory else {},
        output=ended.output,
        group_rewards=_group_rewards(run, ended),
        step=step,
        batch_event=batch.sequence if batch else None,
        batch_episodes=batch.episodes() if batch else 0,
        oldest_version=batch.event.oldest_version if batch else None,
        without_advantages=columns.without_advantages if columns else missing,
        calls=list(_calls(run, ended, columns, recipe)),
    )


def _needed(run: Run, episode: str) -> set[str]:
    """Returns the names of the episodes without which an episode is not explained.

    Those of its batches and of its group.
    """
    return {episode, *run.history.query(TOGETHER, episode, episode)}


def _choose_attempt(run: Run, episode: str, attempt: int | None) -> EndedEpisode:
    attempts = list(run.records.attempts(episode))
    matching = [ended for ended in attempts if attempt in (None, ended.attempt)]
    if not matching:
        if attempts:
            numbers = ", ".join(str(ended.attempt) for ended in attempts)
            raise SetupError(
                f"episode '{episode}' of run '{run.name}' has no ended attempt {attempt}; it has {numbers}"
            )
        raise SetupError(f"run '{run.name}' has no ended episode '{episode}'; `{COMMAND} show {run.name}` lists them")
    return next((ended for ended in matching if ended.trajectory), matching[-1])


def _group_rewards(run: Run, ended: EndedEpisode) -> dict[str, float]:
    if ended.purpose != "train":
        return {}
    group = [
        member.trajectory for member in run.records.ended.values() if member.trajectory and member.group == ended.group
    ]
    return dict(sorted((trajectory.episode, trajectory.reward) for trajectory in group))


def _calls(run: Run, ended: EndedEpisode, columns: TrainedColumns | None, recipe: Recipe) -> Iterator[CallTrace]:
    recorded = {recorded_call.interaction: recorded_call for recorded_call in ended.recorded}
    if ended.trajectory is None:
        for name, depth in tree({one.interaction: one.parent for one in ended.recorded}):
            one = recorded[name]
            yield CallTrace(
                interaction=name,
                parent=one.parent,
                prefix=one.prefix,
                depth=depth,
                prompt_tokens=one.prompt_tokens,
                completion_tokens=one.completion_tokens,
                finish_reason=one.finish_reason,
            )
        return
    rewards = call_rewards(ended.trajectory, Credit.of(recipe.task))
    calls = {call.id: call for call in ended.trajectory.interactions}
    for name, depth in tree({call.id: call.parent for call in calls.values()}):
        call, call_columns = calls[name], columns.by_call.get((ended.episode, name)) if columns else None
        ids = call.completion.ids_array().tolist()
        mask, advantages = call_columns or (np.zeros(len(ids), dtype=bool), np.full(len(ids), np.nan))
        yield CallTrace(
            interaction=name,
            parent=call.parent,
            prefix=call.prefix,
            depth=depth,
            prompt=call.prompt_text(run.text),
            prompt_tokens=recorded[name].prompt_tokens if name in recorded else None,
            completion_tokens=len(ids),
            finish_reason=call.finish_reason,
            worker=call.worker,
            set_reward=call.reward,
            reward=rewards[name],
            token_ids=ids,
            tokens=[run.text([number]) for number in ids],
            logprobs=call.completion.logprobs_array().tolist(),
            weight_versions=call.completion.versions_array().tolist(),
            trained=mask.tolist(),
            advantages=[None if np.isnan(value) else value for value in advantages.tolist()],
            untrained=_untrained_reasons(run, ended, call, mask),
            spans=list(call.spans),
        )


def _untrained_reasons(run: Run, ended: EndedEpisode, call: Interaction, mask: NDArray[np.bool_]) -> str:
    """Returns the reasons why tokens of a call are not trained; empty if all are."""
    if mask.all():
        return ""
    if ended.step is None:
        return ended.describe()
    if not call.trained:
        return "context only: the agent asked for it with `store: false`"
    oldest = run.records.batches[ended.step].event.oldest_version
    stale = call.completion.versions_array() < oldest
    reasons = [f"weights older than version {oldest}"] if (stale & ~mask).any() else []
    if (~stale & ~mask).any():
        refused = run.records.batches[ended.step].refused
        causes = (
            {left_out.cause for left_out in refused.sequences if left_out.episode == ended.episode}
            if refused
            else set()
        )
        reasons.append(f"refused by the trainer: {'; '.join(sorted(causes))}" if causes else "masked by the algorithm")
    return ", ".join(reasons)
