"""The end of an episode: a trajectory, an evaluation, or `EpisodeAbandoned` with a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from areal_actors.core.values import Interaction, Trajectory
from areal_actors.gateway.sessions.table import Session
from areal_actors.messages import EpisodeAbandoned, EpisodeEvaluated, TrajectoryExported
from areal_actors.sequences.build import apply_rewards

Ending = TrajectoryExported | EpisodeEvaluated | EpisodeAbandoned
NO_SCORE = "the reward worker is gone, hangs, or is overloaded (raise actors.reward_worker.count)"
NO_REWARD = "the agent returned None and set no reward; return a number or text, or POST /rl/set_reward"
NO_REWARD_EXTERNAL = "the session was ended without a reward, so there is nothing to train; POST /rl/set_reward before /rl/end_session"


def outcome(
    session: Session,
    *,
    reward: float | None = None,
    rewards: Mapping[str, float] | None = None,
    output: str = "",
    metrics: Mapping[str, float] | None = None,
) -> Ending:
    """The final event of a session's episode.

    Args:
        session: its completed calls and the rewards set over HTTP. A call that the engine never answered makes the episode the
            engine's failure, whatever the agent returned.
        reward: reward of the last trained call.
        rewards: further rewards by interaction id; they override those of the session.
        output: text that the agent returned, for an evaluation.
        metrics: further numbers from the reward function.
    """
    work, by_id = session.work, {**session.rewards, **(rewards or {})}
    turns = apply_rewards(session.interactions(), reward, by_id)
    if failure := session.engine_failure():
        return EpisodeAbandoned(work=work, reason="engine", detail=failure)
    unknown = sorted(set(by_id) - {turn.id for turn in turns})
    no_reward = NO_REWARD_EXTERNAL if session.external else NO_REWARD
    if problem := _not_trainable(turns, unknown, no_reward) or (work.purpose == "train" and _nothing_stored(turns)):
        return EpisodeAbandoned(work=work, reason="agent", detail=problem)
    final = next(turn.reward for turn in reversed(turns) if turn.reward is not None)
    if work.purpose == "evaluate":
        tokens = sum(len(turn.completion) for turn in turns)
        return EpisodeEvaluated(
            work=work,
            reward=final,
            output=output,
            completion_tokens=tokens,
            metrics=dict(metrics or {}),
            sampled_by=_sampled_by(turns),
        )
    trajectory = Trajectory(
        episode=work.episode,
        group=work.group,
        attempt=work.attempt,
        task=work.task.id,
        reward=final,
        interactions=turns,
        metrics=dict(metrics or {}),
    )
    return TrajectoryExported(trajectory=trajectory)


def episode_of(ending: Ending) -> str:
    """The episode that an event ends."""
    return ending.trajectory.episode if isinstance(ending, TrajectoryExported) else ending.work.episode


def unused(session: Session) -> EpisodeAbandoned:
    """The end of a session whose lease has expired; the engine's failure if it left a call unanswered."""
    detail = f"session {session.id} was not used for {session.lease_seconds:g} s"
    if failure := session.engine_failure():
        return EpisodeAbandoned(work=session.work, reason="engine", detail=f"{failure}; then {detail}")
    if session.returned:
        return EpisodeAbandoned(
            work=session.work, reason="reward", detail=f"its agent returned, but no score arrived: {NO_SCORE}; {detail}"
        )
    return EpisodeAbandoned(work=session.work, reason="lost", detail=detail)


def _sampled_by(turns: Sequence[Interaction]) -> dict[int, int]:
    """Number of sampled tokens by weight version."""
    counts: Counter[int] = Counter()
    for span in (span for turn in turns for span in turn.completion.versions):
        counts[span.weight_version] += span.end - span.start
    return dict(sorted(counts.items()))


def _nothing_stored(turns: Sequence[Interaction]) -> str:
    """The reason why an episode with calls has nothing to train; empty if it has."""
    if any(turn.trained for turn in turns):
        return ""
    return (
        f"all {len(turns)} calls of the episode were made with `store: false`, which are not trained; leave `store` out, or set "
        'gateway.store_false = "train" for a client that always sends it'
    )


def _not_trainable(turns: Sequence[Interaction], unknown: Sequence[str], no_reward: str) -> str:
    """The reason why an episode cannot become a trajectory; empty if it can."""
    if not turns:
        return "the agent made no model call through its base_url, so there is nothing to train"
    if unknown:
        known = ", ".join(sorted(turn.id for turn in turns))
        return f"the agent rewarded interactions {', '.join(unknown)} that this episode does not have; it has {known}"
    return no_reward if all(turn.reward is None for turn in turns) else ""
