"""The reason why the log has no texts of an ended attempt at an episode, or not of all of its calls."""

from __future__ import annotations

from typing import Any

from areal_actors.display.sentences import count_of
from areal_actors.history.database import History
from areal_actors.history.run_events import notice_events
from areal_actors.messages import ConversationKept, ConversationsLimited
from areal_actors.messages.episode_ends import NO_CONSENT, REDACTED

LOST = "session"
"""Reason of an attempt that was abandoned because its gateway's process ended."""


def reason_without_texts(history: History, recipe: dict[str, Any], attempt_id: int) -> str:
    """Returns why the log has no conversation of an attempt, as a sentence.

    `recipe` is the resolved one of the run; `attempt_id` is `attempt.id` of its history.
    """
    statement = "SELECT purpose, outcome, reason, calls FROM attempt WHERE id = ?"
    purpose, outcome, reason, calls = history.query(statement, attempt_id)[0]
    if outcome == "exported":
        return "The log no longer has the tokens of this episode."
    if reason == REDACTED:
        return "Neither texts nor tokens of it are kept, since rules of log.redaction match in its calls."
    if reason == NO_CONSENT:
        return "Neither texts nor tokens of it are kept, since its user has not consented."
    if not calls:
        return "The episode ended without a completed call."
    if reason == LOST:
        return "Texts of its calls were lost with the process of their gateway, which had them in memory."
    return _reason_by_settings(history, recipe, "held_out" if purpose == "evaluate" else "", outcome)


def _reason_by_settings(history: History, recipe: dict[str, Any], held_out: str, outcome: str) -> str:
    if (settings := recipe.get("log", {}).get("conversations")) is None:
        return f"The release that wrote this log kept texts of exported episodes only; this one was {outcome}."
    kinds = [kind for kind in (held_out, outcome) if kind not in ("", "evaluated")]
    if not set(kinds) & set(settings["keep"]):
        names = " or ".join(f'"{kind}"' for kind in kinds)
        return f"Texts of its calls are not in the log, since log.conversations.keep does not have {names}."
    if limits := [event for _, _, event in notice_events(history, ConversationsLimited)]:
        return f"Texts of its calls are not in the log: {limits[-1].sentence()}."
    return "Texts of its calls are not in the log: another session, or a new process of the gateway, took its place."


def describe_gaps(conversation: ConversationKept) -> str:
    """Returns what a conversation does not have, as sentences; empty if it is whole."""
    sentences = []
    if omitted := conversation.omitted_calls:
        sentences.append(
            f"{count_of(omitted, 'earlier call')} without texts: the conversation is larger than"
            " log.conversations.max_episode_kb."
        )
    if unanswered := conversation.unanswered_calls:
        sentences.append(f"At the end {count_of(unanswered, 'call')} had no answer; nothing of that is in the log.")
    return " ".join(sentences)
