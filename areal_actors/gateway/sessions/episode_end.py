"""The end of an episode, and the reports of its completed calls.

It is a trajectory, an evaluation, or `EpisodeAbandoned` with a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from areal_actors.core.errors import RewardError
from areal_actors.core.values import Interaction, Trajectory
from areal_actors.gateway.sessions.span_places import apply_spans, rewards_by_id
from areal_actors.gateway.sessions.table import Session
from areal_actors.messages import (
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    InteractionRecorded,
    InteractionsRecorded,
    TrajectoryExported,
)
from areal_actors.messages.episode_ends import NO_CONSENT, REDACTED, UNREWARDED, UNUSED
from areal_actors.sequences.build import apply_rewards
from areal_actors.tokenization.tokenizer import ChatTokenizer

Ending = TrajectoryExported | EpisodeEvaluated | EpisodeAbandoned
EndingEvent = Ending | InteractionsRecorded

REPORTED_TOGETHER = 256
"""Maximum number of calls in one event."""
NO_SCORE = "the reward worker is gone, hangs, or is overloaded (raise actors.reward_worker.count)"
NO_REWARD = "the agent returned None and set no reward; return a number or text, or POST /rl/set_reward"
UNREWARDED_SERVED = "the session ended without a reward; POST /rl/feedback may give it one at any time"
NO_REWARD_EXTERNAL = (
    "the session was ended without a reward, so there is nothing to train; POST /rl/set_reward before /rl/end_session"
)


def outcome(
    session: Session,
    scored: EpisodeScored | None = None,
    chat: ChatTokenizer | None = None,
    *,
    served: bool = False,
) -> Ending:
    """The final event of a session's episode.

    Args:
        session: its completed calls and the rewards set over HTTP. A call that the engine never answered makes the
            episode the engine's failure, whatever the agent returned.
        scored: its score; the rewards by interaction id override those of the session. None for an external agent's
            session.
        chat: tokenizer of the model; None where no rewards of spans can be.
        served: the model is served and not trained: a session needs no reward, since feedback may come later.
    """
    scored = scored or EpisodeScored(work=session.work, session=session.id)
    if abandoned := _abandoned_event(session):
        return abandoned
    calls, by_id = session.interactions(), {**session.rewards, **scored.rewards}
    try:
        if calls and session.work.purpose == "train":  # rewards of parts are only trained
            placed = rewards_by_id(scored.places, calls) if scored.places else {}
            by_id = {**session.rewards, **placed, **scored.rewards}
            if chat is not None and (session.spans or scored.spans):
                calls = list(apply_spans(apply_spans(calls, session.spans, chat), scored.spans, chat, scored.output))
    except RewardError as error:
        detail = f"the rewards of its parts are wrong: {error}"
        return EpisodeAbandoned(work=session.work, reason="reward", detail=detail)
    return _ending(session, scored, apply_rewards(calls, scored.reward, by_id), by_id, served=served)


def _ending(
    session: Session,
    scored: EpisodeScored,
    turns: Sequence[Interaction],
    by_id: Mapping[str, float],
    *,
    served: bool,
) -> Ending:
    """Returns the end of an episode, given its calls with the rewards set for them."""
    work, unknown = session.work, sorted(set(by_id) - {turn.id for turn in turns})
    no_reward = NO_REWARD_EXTERNAL if session.external else NO_REWARD
    if work.purpose == "evaluate" and not turns and not unknown and scored.reward is not None:
        return _evaluated_event(
            scored, scored.reward, turns
        )  # the agent answered without the model: that is its answer
    if not turns and session.calls_policies and scored.reward is not None:
        last = msgspec.structs.replace(work, attempts_left=0)
        return EpisodeAbandoned(work=last, reason=UNUSED, detail="all calls of the episode went to other policies")
    if problem := _not_trainable(turns, unknown, no_reward) or (work.purpose == "train" and _nothing_stored(turns)):
        unrewarded = served and problem == NO_REWARD_EXTERNAL
        reason, detail = (UNREWARDED, UNREWARDED_SERVED) if unrewarded else ("agent", problem)
        return EpisodeAbandoned(work=work, reason=reason, detail=detail)
    final = next(turn.reward for turn in reversed(turns) if turn.reward is not None)
    if work.purpose == "evaluate":
        return _evaluated_event(scored, final, turns)
    trajectory = Trajectory(
        episode=work.episode,
        group=work.group,
        attempt=work.attempt,
        task=work.task.id,
        reward=final,
        interactions=tuple(turns),
        metrics=dict(scored.metrics),
        ended_by=scored.ended_by,
        end_cause=scored.end_cause,
        unanswered_calls=session.running + session.left,
        source=work.task.source,
        role=work.role,
    )
    return TrajectoryExported(trajectory=trajectory)


def _abandoned_event(session: Session) -> EpisodeAbandoned | None:
    """The end of an episode whose session cannot be trained, whatever its reward; None if it can."""
    if not session.is_kept:
        last = msgspec.structs.replace(session.work, attempts_left=0)
        detail = "the session was started with consent = false, or was erased on request"
        return EpisodeAbandoned(work=last, reason=NO_CONSENT, detail=detail)
    if session.matches:
        last = msgspec.structs.replace(session.work, attempts_left=0)
        rules = ", ".join(f"{rule} ({count})" for rule, count in session.matches.items())
        detail = f"rules of log.redaction match in its calls, of which nothing is kept: {rules}"
        return EpisodeAbandoned(work=last, reason=REDACTED, detail=detail)
    if failure := session.engine_failure():
        return EpisodeAbandoned(work=session.work, reason="engine", detail=failure)
    return None


def _evaluated_event(scored: EpisodeScored, reward: float, turns: Sequence[Interaction]) -> EpisodeEvaluated:
    return EpisodeEvaluated(
        work=scored.work,
        reward=reward,
        output=scored.output,
        completion_tokens=sum(len(turn.completion) for turn in turns),
        metrics=dict(scored.metrics),
        sampled_by=_tokens_by_version(turns),
        ended_by=scored.ended_by,
        end_cause=scored.end_cause,
    )


def episode_of(ending: Ending) -> str:
    """The episode that an event ends."""
    return ending.trajectory.episode if isinstance(ending, TrajectoryExported) else ending.work.episode


def expired_event(session: Session) -> EpisodeAbandoned:
    """The end of a session whose lease has expired; the engine's failure if it left a call unanswered."""
    detail = f"session {session.id} was not used for {session.lease_seconds:g} s"
    if failure := session.engine_failure():
        return EpisodeAbandoned(work=session.work, reason="engine", detail=f"{failure}; then {detail}")
    if session.returned:
        return EpisodeAbandoned(
            work=session.work, reason="reward", detail=f"its agent returned, but no score arrived: {NO_SCORE}; {detail}"
        )
    return EpisodeAbandoned(work=session.work, reason="lost", detail=detail)


class UnreportedCalls:
    """Completed calls that no event has.

    An exported trajectory takes its own along, others are reported together, once a second.
    They are for monitors, and hold no tokens: no answer waits until they are durable, and a call costs no message of
    its own.
    """

    def __init__(self) -> None:
        self._calls: dict[str, list[InteractionRecorded]] = {}

    def add(self, call: InteractionRecorded) -> None:
        """Keep a call."""
        self._calls.setdefault(call.session, []).append(call)

    def with_end(self, session: str, ending: Ending) -> Iterator[EndingEvent]:
        """Yields the end of a session's episode with its calls, or after them if it is no trajectory."""
        if isinstance(ending, TrajectoryExported):
            yield msgspec.structs.replace(ending, recorded=tuple(self._calls.pop(session, ())))
            return
        yield from self.of(session)
        yield ending

    def of(self, session: str) -> Iterator[InteractionsRecorded]:
        """Yields the calls of a session."""
        yield from _together(self._calls.pop(session, []))

    def all(self) -> Iterator[InteractionsRecorded]:
        """Yields the calls of all sessions, each session's in their order."""
        calls, self._calls = self._calls, {}
        yield from _together([call for of_session in calls.values() for call in of_session])


def _together(calls: list[InteractionRecorded]) -> Iterator[InteractionsRecorded]:
    for start in range(0, len(calls), REPORTED_TOGETHER):
        yield InteractionsRecorded(recorded=tuple(calls[start : start + REPORTED_TOGETHER]))


def _tokens_by_version(turns: Sequence[Interaction]) -> dict[int, int]:
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
        f"all {len(turns)} calls of the episode were made with `store: false`, which are not trained; leave `store`"
        ' out, or set gateway.store_false = "train" for a client that always sends it'
    )


def _not_trainable(turns: Sequence[Interaction], unknown: Sequence[str], no_reward: str) -> str:
    """The reason why an episode cannot become a trajectory; empty if it can."""
    if not turns:
        return "the agent made no model call through its base_url, so there is nothing to train"
    if unknown:
        turn_ids = ", ".join(sorted(turn.id for turn in turns))
        return (
            f"the agent rewarded interactions {', '.join(unknown)} that this episode does not have; it has {turn_ids}"
        )
    return no_reward if all(turn.reward is None for turn in turns) else ""
