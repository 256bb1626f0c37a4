"""Credit links of a call: the earlier calls that it continues.

Its messages name them; where they name none, time does. Agents compact a history, keep a window of it, ask again
without an invalid answer, delegate to another conversation, or send a message back with other spaces. The new call's
messages then do not continue the call before, and with a discount per call no reward would reach it. So a call
continues, besides its parent, every completed call that nothing continues yet when it begins:

- a call without a parent continues the end of the conversation before (compaction, sliding window, plan and act);
- a call whose parent is already continued by another call continues the end of that (a rewritten observation, an answer
  asked for again);
- a call that continues its parent also continues calls that ran beside it meanwhile (sub-agents, candidates that were
  not chosen).

Calls in flight are continued by nothing. A conversation that the client names (a header) is continued by calls of the
same name, and by a call whose new messages have its last answer.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from areal_actors.gateway.conversations.session_turns import SessionTurns
from areal_actors.gateway.conversations.turns import Prompt
from areal_actors.messages import Continues

ROLE_BYTES = 4
"""Bytes of the digest of a system prompt."""


class CreditLinks(NamedTuple):
    """Calls that a call continues for credit, and its role."""

    follows: tuple[str, ...] = ()
    """Their ids, in order of completion; empty if it is only the parent, or none."""
    found: Continues = ""
    """Evidence by which they were found."""
    role: str = ""
    """Name of the conversation at the client, or else a digest of the system prompt; empty without either."""


NO_LINKS = CreditLinks()


def find_credit_links(
    turns: SessionTurns, prompt: Prompt, client_session: str, messages: Sequence[Mapping[str, Any]]
) -> CreditLinks:
    """Find the calls that a call continues.

    Args:
        turns: completed calls of the session when this one begins, by id, in order of completion.
        prompt: the call's prompt, with its parent.
        client_session: name of its conversation at the client; empty if the client sends none.
        messages: those of its request.
    """
    parent = prompt.parent
    new = messages[turns[parent].prompt.message_count :] if parent else messages
    followed = {
        identifier
        for identifier, turn in turns.ends.items()
        if turn.client_session == client_session or _has_text(new, turn.answer.get("content"))
    }
    if parent and (parent not in turns.continued_by_messages or not followed):
        followed.add(parent)
    if parent in followed:
        continues: Continues = "id" if prompt.parent_by_id else "value"
    else:
        continues = "time" if followed else "none"
    only_parent = followed == {parent}
    follows = () if only_parent else tuple(identifier for identifier in turns if identifier in followed)
    return CreditLinks(follows, continues, sys.intern(client_session or _digest_of_system_prompt(messages)))


def _digest_of_system_prompt(messages: Sequence[Mapping[str, Any]]) -> str:
    prompts = list(itertools.takewhile(_is_instruction, messages))
    return _role_of(msgspec.json.encode(prompts)) if prompts else ""


def _is_instruction(message: Mapping[str, Any]) -> bool:
    return message.get("role") in {"system", "developer"}


@lru_cache(maxsize=64)
def _role_of(prompts: bytes) -> str:
    return blake2b(prompts, digest_size=ROLE_BYTES).hexdigest()


def _has_text(messages: Sequence[Mapping[str, Any]], answer: object) -> bool:
    """True if the messages have the text of an answer."""
    text = answer.strip() if isinstance(answer, str) else ""
    return bool(text) and any(text in sent for message in messages for sent in _texts(message.get("content")))


def _texts(content: object) -> Iterator[str]:
    """Texts of a message's content."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
