"""Conversation tree of a session: finds the earlier call that a new one continues, and builds its exact prompt tokens.

Two relations are kept apart. The *parent* of a call is the call whose conversation it continues (`lineage.py` finds
it); credit follows it. Its *prefix* is the call whose exact prompt and completion ids its own prompt begins with; only
the new part is then rendered and tokenised. Where the chat template, or the client, rewrites earlier messages, the call
has a parent and no prefix, its prompt is rendered in full, and `prefix_break_reason` names the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from areal_actors.core.errors import PromptTooLong, RequestError
from areal_actors.core.values import pack_ids
from areal_actors.gateway.conversations.continuation import AnsweredConversation, Continuations
from areal_actors.gateway.conversations.kept_messages import pack_json, unpack_json
from areal_actors.gateway.conversations.lineage import find_parent
from areal_actors.gateway.conversations.message_digests import LONG_HISTORY_BYTES, MessageDigests
from areal_actors.gateway.conversations.message_equality import digest, value_digests
from areal_actors.gateway.conversations.prompt_images import IMAGES, has_images, images_in, with_images
from areal_actors.gateway.conversations.session_turns import SessionTurns
from areal_actors.gateway.conversations.template_window import features_of
from areal_actors.gateway.conversations.turns import (
    EMPTY,
    ConversationTurn,
    Prompt,
    completion_text,
    messages_of,
    path_to,
    prompt_text,
    text_of,
    token_ids_of,
)
from areal_actors.messages import ITEM_REFERENCE, ModelRequest
from areal_actors.tokenization.tokenizer import ChatTokenizer

REASONING_MARKS = ("<think>", "</think>", "<|channel|>analysis")
"""Delimiters that a rendered conversation loses when its reasoning is dropped."""
PLAIN = digest(((), {}))
"""Digest of the settings of a call without tools and arguments of the template."""
CHANGED_SETTINGS = "the tools or the template's settings changed"
LONG_CHARACTERS = 8192
"""Length from which the ids of a text are kept by the tokenizer: the prompt may be too long for `FirstPrompts`."""


class PromptLimit(NamedTuple):
    """Length limit of a prompt."""

    max_model_len: int
    """Tokens of prompt and answer together."""
    field: str
    """Request field that the error names."""


def prompt_for(
    turns: SessionTurns,
    request: ModelRequest,
    continuations: Continuations,
    limit: PromptLimit | None = None,
) -> Prompt:
    """Prompt of a call; begins with the tokens of the call that it continues wherever that is exact.

    Raises:
        RequestError: the chat template rejects the messages; PromptTooLong: they exceed `limit`.
    """
    chat = continuations.chat
    if (raw := request.prompt if request.prompt_ids is None else request.prompt_ids) is not None:
        return _raw_prompt(turns, raw, chat, limit, chat.leading_ids if request.adds_bos else ())
    request = continuations.without_unseen_names(request)
    settings = digest((request.tools, request.template_kwargs)) if request.tools or request.template_kwargs else PLAIN
    history = MessageDigests(request.messages, turns.last_digests)
    if request.body_bytes >= LONG_HISTORY_BYTES:
        turns.last_digests = history
    parent, prefix_break_reason, by_id = find_parent(turns, request, history)
    request_digest = history.exact(len(request.messages))
    is_first = parent is None and not prefix_break_reason
    if is_first and (kept := continuations.first_prompts.get(request_digest + settings)) is not None:
        return kept
    text, checked = None, len(request.messages)
    if parent is not None and not prefix_break_reason:
        is_changed = parent.prompt.settings != settings
        text, checked, prefix_break_reason = _text_after(parent, turns, request, continuations, whole=is_changed)
        if is_changed and prefix_break_reason:
            prefix_break_reason = CHANGED_SETTINGS
    if parent is None or text is None:
        text = chat.render(request.messages, request.tools, **request.template_kwargs)
        cached, prefix, earlier, sent, new = 0, "", b"", request.messages, request.messages
        features = features_of(request.messages) | ({"tools"} if request.tools else set())
    else:
        cached, prefix, earlier = parent.token_count, parent.interaction.id, parent.prompt.value_digest
        sent = request.messages[parent.prompt.message_count :]
        new = sent[1:]
        features = parent.prompt.features | features_of([parent.answer]) | (features_of(new) - {"system"})
        if features == parent.prompt.features:
            features = parent.prompt.features  # shared by all turns: a set takes 200 bytes
    ids = encode_within(chat, text, limit, after=cached)
    images = () if parent is None or not prefix else parent.prompt.images
    pictured = continuations.vision is not None and bool(images or has_images(new))
    if continuations.vision is not None and pictured:
        parent_ids = token_ids_of(path_to(prefix, turns)) if prefix else b""
        ids, images = with_images(parent_ids, ids, images, images_in(new), continuations.vision.placeholder)
        features |= IMAGES
    prompt = Prompt(
        parent="" if parent is None else parent.interaction.id,
        parent_by_id=by_id,
        prefix=prefix,
        suffix_ids=ids,
        suffix_text="" if not pictured and chat.is_lossless(text) else text,
        messages=pack_json(new),
        message_count=len(request.messages),
        request_digest=request_digest,
        value_digest=value_digests(earlier, sent)[-1],
        settings=settings if parent is None or parent.prompt.settings != settings else parent.prompt.settings,
        tools=b"" if prefix else pack_json(request.tools),
        features=features,
        checked=checked,
        opens_reasoning=chat.format.opens_reasoning(text),
        cached_tokens=cached,
        earlier=turns if prefix else EMPTY,
        images=images,
        prefix_break_reason=prefix_break_reason,
    )
    if is_first and not pictured:
        continuations.first_prompts.put(request_digest + settings, prompt)
    return prompt


def encode_within(
    chat: ChatTokenizer, text: str, limit: PromptLimit | None, *, after: int = 0, keep: bool = False
) -> bytes:
    """Token ids (u32) of a text that follows `after` tokens.

    A text that is too long is rejected before all of it is tokenised.
    With `keep` the ids of this text are expected to be asked for again.

    Raises:
        PromptTooLong: a part of the text already exceeds the limit.
    """
    if limit is not None and (least := chat.min_token_count(text, limit.max_model_len - after)):
        raise PromptTooLong(after + least, limit.max_model_len, limit.field, at_least=True)
    keep = keep or len(text) >= LONG_CHARACTERS
    return pack_ids(chat.encode(text) if keep else chat.encode_once(text))


def _text_after(
    parent: ConversationTurn,
    turns: SessionTurns,
    request: ModelRequest,
    continuations: Continuations,
    *,
    whole: bool,
) -> tuple[str | None, int, str]:
    """Text after the parent's tokens, number of messages rendered in full at the last check, and the reason.

    The text is None if the tokens cannot be extended. With `whole` all of it is rendered: tools or settings changed,
    and the template may or may not use them.
    """
    sampled = completion_text(parent, continuations.chat)
    due = whole or len(request.messages) >= 4 * parent.prompt.checked
    if not due and continuations.is_local(parent.prompt.features | features_of([parent.answer])):
        new = request.messages[parent.prompt.message_count + 1 :]
        tail = continuations.text_after_window(
            parent.prompt.features, parent.answer, sampled, new, request.template_kwargs
        )
        if tail is not None:
            return tail, parent.prompt.checked, ""
    if (
        not whole
        and (kept := continuations.kept) is not None
        and kept.is_usable(features := parent.prompt.features | features_of([parent.answer]))
    ):
        new = request.messages[parent.prompt.message_count + 1 :]
        tail = kept.after(features, parent.answer, sampled, new, request.template_kwargs)
        if tail is not None:
            return tail, parent.prompt.checked, ""
    path = path_to(parent.interaction.id, turns)
    history = messages_of(path)
    new = request.messages[len(history) :]
    text = continuations.chat.render([*history, *new], request.tools, **request.template_kwargs)
    tail = None
    if (opened := _last_answer_start(path, text, request, continuations)) is not None:
        conversation = AnsweredConversation(history[:-1], history[-1], sampled, request.tools, request.template_kwargs)
        tail = continuations.after(text[:opened], conversation, new)
    return tail, len(request.messages), "" if tail is not None else _rewrite_reason(path, text, continuations)


def _last_answer_start(
    path: Sequence[ConversationTurn], text: str, request: ModelRequest, continuations: Continuations
) -> int | None:
    """Index of the path's last answer in a rendered text; None if the template renders the path differently.

    Prompts must match exactly; answers may differ in form if they parse to the same message.
    """

    def is_answer(written: str, turn: ConversationTurn) -> bool:
        for stop in continuations.stops():
            written = written.removesuffix(stop)
        return continuations.means_same(written, turn.answer, request.tools, in_reasoning=turn.prompt.opens_reasoning)

    end, sampled, before = 0, "", None
    for turn in path:
        prompt = prompt_text(turn, continuations.chat)
        start = end + len(sampled)
        if not text.startswith(sampled + prompt, end):
            # An answer may contain the text of the prompt after it.
            if before is None:
                return None
            start = next((place for place in occurrences(prompt, text, end) if is_answer(text[end:place], before)), -1)
            if start < 0:
                return None
        end = start + len(prompt)
        sampled = completion_text(turn, continuations.chat)
        before = turn
    return end


def occurrences(part: str, text: str, start: int) -> Iterator[int]:
    """Yield the indices of a part in a text, from `start` on."""
    while (start := text.find(part, start)) >= 0:
        yield start
        start += 1


def _rewrite_reason(path: Sequence[ConversationTurn], text: str, continuations: Continuations) -> str:
    chat = continuations.chat
    parent_text = text_of(path, chat)
    if any(
        text.startswith(parent_text.removesuffix(stop)) for stop in continuations.stops() if parent_text.endswith(stop)
    ):
        return "the chat template ends an earlier answer with another token"
    past = text.rstrip()
    for opening, closing in (*chat.format.reasoning, ("<think>", "</think>")):
        past = past.removesuffix(closing).rstrip().removesuffix(opening)
    lost = [
        turn for turn in path if (reasoning := turn.answer.get("reasoning_content")) and reasoning.strip() not in text
    ]
    marks = {*REASONING_MARKS, *[mark for pair in chat.format.reasoning for mark in pair]}
    if (
        lost
        or any(past.count(mark) < parent_text.count(mark) for mark in marks)
        or _reasoning_count(past, chat) < _reasoning_count(parent_text, chat)
    ):
        return "the chat template drops earlier reasoning"
    return "the chat template rewrites earlier messages"


def _reasoning_count(text: str, chat: ChatTokenizer) -> int:
    """Number of passages of reasoning that are not empty."""
    pairs = [(re.escape(opening), re.escape(closing)) for opening, closing in chat.format.reasoning]
    return sum(len(re.findall(rf"{opening}\s*(?=\S)(?!{closing})", text)) for opening, closing in pairs)


def with_history(turns: SessionTurns, request: ModelRequest) -> ModelRequest:
    """Returns the request with the earlier messages that `continues` refers to.

    Raises:
        RequestError: the call named by `continues` is unknown.
    """
    if not request.continues:
        return request
    if request.continues not in turns:
        turn_ids = ", ".join(turns) or "none"
        raise RequestError(
            f"there is no earlier call '{request.continues}' in this session; it has {turn_ids}", "continues"
        )
    path = path_to(request.continues, turns)
    if not path[-1].prompt.message_count:
        raise RequestError(
            f"the earlier call '{request.continues}' continued a text and no messages; send the messages", "continues"
        )
    history, new = messages_of(path), list(request.messages)
    if request.inherits:
        tools = request.tools or tuple(unpack_json(path[0].prompt.tools))
        return msgspec.structs.replace(request, messages=(*history, *new), tools=tools)
    # Instructions are not inherited from call to call: the client sends them again.
    instructions = [new.pop(0)] if new and new[0].get("role") == "system" else []
    past = history[1:] if history[0].get("role") == "system" else history
    return msgspec.structs.replace(request, messages=(*instructions, *past, *new))


def with_references(turns: SessionTurns, request: ModelRequest) -> ModelRequest:
    """Returns the request with the parts of earlier answers that its messages refer to.

    Raises:
        RequestError: the session has no answer with such a part; the error names the field of the client's request.
    """
    if not request.has_references:
        return request
    functions = {
        call["id"]: call["function"] for turn in turns.values() for call in turn.answer.get("tool_calls") or ()
    }

    def resolve_reference(name: str, value: Any) -> Any:
        if not isinstance(value, dict) or ITEM_REFERENCE not in value:
            return value
        identifier = value[ITEM_REFERENCE]
        answer = turns[identifier].answer if identifier in turns else {}
        if (referenced := functions.get(identifier) if name == "function" else answer.get(name)) is None:
            field = value["field"]
            raise RequestError(
                f"'{field}' names an item that no answer of this session has; send the item itself", field
            )
        return referenced

    messages = [
        {name: resolve_reference(name, value) for name, value in message.items()} for message in request.messages
    ]
    for message in messages:
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [
                call | {"function": resolve_reference("function", call["function"])} for call in calls
            ]
    return msgspec.structs.replace(request, messages=tuple(messages), has_references=False)


def _raw_prompt(
    turns: SessionTurns,
    prompt: str | bytes,
    chat: ChatTokenizer,
    limit: PromptLimit | None,
    leading: Sequence[int],
) -> Prompt:
    """Prompt without messages; it continues an earlier one if it begins with its tokens or text.

    A text has the leading tokens before it, unless it begins with them.
    """
    parent_ids, parent, text = b"", "", prompt if isinstance(prompt, str) else ""
    opening = chat.decode(leading, skip_special=False)
    added = opening if isinstance(prompt, str) and opening and not prompt.startswith(opening) else ""
    of_texts = [turn for turn in reversed(turns.values()) if turn.prompt.message_count == 0]
    for turn in sorted(of_texts, key=lambda turn: -turn.token_count):  # the longest first, of equal ones the last
        path = path_to(turn.interaction.id, turns)
        ids = token_ids_of(path)
        if isinstance(prompt, bytes):
            begins = prompt.startswith(ids)
        elif begins := prompt.startswith(earlier := text_of(path, chat).removeprefix(added)):
            text = prompt[len(earlier) :]
        if begins:
            parent_ids, parent = ids, turn.interaction.id
            break
    if isinstance(prompt, bytes):
        suffix = prompt[len(parent_ids) :]
    else:
        first = pack_ids(leading) if added and not parent_ids else b""
        suffix = first + encode_within(chat, text, limit, after=len(parent_ids) // 4, keep=True)
    return Prompt(
        parent=parent,
        prefix=parent,
        suffix_ids=suffix,
        suffix_text="" if chat.is_lossless(text) else text,
        cached_tokens=len(parent_ids) // 4,
        earlier=turns if parent else EMPTY,
    )
