"""Conversation tree of a session: finds the earlier call that a new one continues, and builds its exact prompt tokens.

Two relations are kept apart. The *parent* of a call is the call whose conversation it continues (`lineage.py` finds it); credit
follows it. Its *prefix* is the call whose exact prompt and completion ids its own prompt begins with; only the new part is then
rendered and tokenised. Where the chat template, or the client, rewrites earlier messages, the call has a parent and no prefix,
its prompt is rendered in full, and `split` names the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from areal_actors.core.errors import RequestError
from areal_actors.core.values import unpack_ids
from areal_actors.gateway.conversations.continuation import AnsweredConversation, ChatText, Continuations, features_of, opens_reasoning
from areal_actors.gateway.conversations.lineage import find_parent, missing_parent_reason
from areal_actors.gateway.conversations.message_equality import digest, value_digests
from areal_actors.gateway.conversations.prompt_length import PromptLimit, encode_within
from areal_actors.gateway.conversations.turns import ConversationTurn, Prompt, messages_of, path_to, text_of, token_ids_of
from areal_actors.messages import ModelRequest

REASONING_MARKS = ("<think>", "</think>", "<|channel|>analysis")
"""Delimiters that a rendered conversation loses when its reasoning is dropped."""


def prompt_for(
    turns: dict[str, ConversationTurn],
    request: ModelRequest,
    chat: ChatText,
    continuations: Continuations,
    limit: PromptLimit | None = None,
) -> Prompt:
    """Prompt of a call; begins with the tokens of the call that it continues wherever that is exact.

    Raises:
        RequestError: the chat template rejects the messages; PromptTooLong: they exceed `limit`.
    """
    if (raw := request.prompt if request.prompt_ids is None else request.prompt_ids) is not None:
        return _raw_prompt(turns, raw, chat, limit)
    request_digest, settings = digest(request.messages), digest((request.tools, request.template_kwargs))
    lineage = find_parent(turns, request)
    if lineage is None:
        return _full_prompt(request, request_digest, settings, chat, limit, split=missing_parent_reason(turns, request.messages))
    parent = lineage.turn
    if lineage.differs:
        return _full_prompt(request, request_digest, settings, chat, limit, parent=parent.interaction.id, split=lineage.differs)
    if parent.prompt.settings != settings:
        split = "the tools or the template's settings changed"
        return _full_prompt(request, request_digest, settings, chat, limit, parent=parent.interaction.id, split=split)
    new = request.messages[parent.prompt.message_count + 1 :]
    answered = parent.prompt.features | features_of([parent.answer])
    due = not continuations.is_local(answered) or len(request.messages) >= 4 * parent.prompt.checked
    sampled = chat.decode(parent.interaction.completion.ids_array().tolist(), skip_special=False)
    tail = None if due else continuations.text_after_window(parent.prompt.features, parent.answer, sampled, new, request.template_kwargs)
    checked = parent.prompt.checked
    if tail is None:
        checked = len(request.messages)
        path = path_to(parent.interaction.id, turns)
        tail, reason = _text_after_history(path, request, sampled, chat, continuations)
        if tail is None:
            return _full_prompt(request, request_digest, settings, chat, limit, parent=parent.interaction.id, split=reason)
    return _extended_prompt(turns, parent, request, tail, request_digest, checked, chat, limit)


def _extended_prompt(
    turns: dict[str, ConversationTurn],
    parent: ConversationTurn,
    request: ModelRequest,
    tail: str,
    request_digest: bytes,
    checked: int,
    chat: ChatText,
    limit: PromptLimit | None,
) -> Prompt:
    """Prompt of the parent's tokens and those of the text after them."""
    known = token_ids_of(path_to(parent.interaction.id, turns))
    ids = encode_within(chat, tail, limit, after=len(known) // 4)
    sent = request.messages[parent.prompt.message_count :]
    features = parent.prompt.features | features_of([parent.answer]) | (features_of(sent[1:]) - {"system"})
    return Prompt(
        parent=parent.interaction.id,
        prefix=parent.interaction.id,
        token_ids=known + ids,
        suffix_ids=ids,
        suffix_text="" if chat.is_lossless(tail) else tail,
        messages=msgspec.json.encode(sent[1:]),
        message_count=len(request.messages),
        request_digest=request_digest,
        value_digest=value_digests(parent.prompt.value_digest, sent)[-1],
        settings=parent.prompt.settings,
        features=parent.prompt.features if features == parent.prompt.features else features,  # shared by all turns: a set takes 200 bytes
        checked=checked,
        opens_reasoning=opens_reasoning(tail),
        cached_tokens=len(known) // 4,
    )


def _full_prompt(
    request: ModelRequest,
    request_digest: bytes,
    settings: bytes,
    chat: ChatText,
    limit: PromptLimit | None,
    *,
    parent: str = "",
    split: str = "",
) -> Prompt:
    """Prompt without a prefix: the fully rendered conversation."""
    text = chat.render(request.messages, request.tools, **request.template_kwargs)
    ids = encode_within(chat, text, limit)
    return Prompt(
        parent=parent,
        token_ids=ids,
        suffix_ids=ids,
        suffix_text="" if chat.is_lossless(text) else text,
        messages=msgspec.json.encode(request.messages),
        message_count=len(request.messages),
        request_digest=request_digest,
        value_digest=value_digests(b"", request.messages)[-1],
        settings=settings,
        tools=msgspec.json.encode(request.tools),
        features=features_of(request.messages) | ({"tools"} if request.tools else set()),
        checked=len(request.messages),
        opens_reasoning=opens_reasoning(text),
        split=split,
    )


def _text_after_history(
    path: Sequence[ConversationTurn], request: ModelRequest, sampled: str, chat: ChatText, continuations: Continuations
) -> tuple[str | None, str]:
    """Text after the path's tokens, from the fully rendered conversation; or None and the reason."""
    history = messages_of(path)
    new = request.messages[len(history) :]
    text = chat.render([*history, *new], request.tools, **request.template_kwargs)
    opened = _last_answer_start(path, text, request, chat, continuations)
    if opened is not None:
        conversation = AnsweredConversation(history[:-1], history[-1], sampled, request.tools, request.template_kwargs)
        tail = continuations.after(text[:opened], conversation, new)
        if tail is not None:
            return tail, ""
    return None, _rewrite_reason(path, text, chat)


def _last_answer_start(
    path: Sequence[ConversationTurn], text: str, request: ModelRequest, chat: ChatText, continuations: Continuations
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
        prompt = turn.prompt.suffix_text or chat.decode(unpack_ids(turn.interaction.prompt_suffix), skip_special=False)
        start = end + len(sampled)
        if not text.startswith(sampled + prompt, end):
            # An answer may contain the text of the prompt after it.
            start = (
                -1
                if before is None
                else next((place for place in occurrences(prompt, text, end) if is_answer(text[end:place], before)), -1)
            )
            if start < 0:
                return None
        end = start + len(prompt)
        sampled = chat.decode(turn.interaction.completion.ids_array().tolist(), skip_special=False)
        before = turn
    return end


def occurrences(part: str, text: str, start: int) -> Iterator[int]:
    """Yield the indices of a part in a text, from `start` on."""
    while (start := text.find(part, start)) >= 0:
        yield start
        start += 1


def _rewrite_reason(path: Sequence[ConversationTurn], text: str, chat: ChatText) -> str:
    known = text_of(path, chat)
    past = text.rstrip().removesuffix("</think>").rstrip().removesuffix("<think>")
    lost = [turn for turn in path if (reasoning := turn.answer.get("reasoning_content")) and reasoning.strip() not in text]
    if lost or any(past.count(mark) < known.count(mark) for mark in REASONING_MARKS):
        return "the chat template drops earlier reasoning"
    return "the chat template rewrites earlier messages"


def with_history(turns: dict[str, ConversationTurn], request: ModelRequest) -> ModelRequest:
    """Returns the request with the earlier messages that `continues` refers to.

    Raises:
        RequestError: the call named by `continues` is unknown.
    """
    if not request.continues:
        return request
    if request.continues not in turns:
        known = ", ".join(turns) or "none"
        raise RequestError(f"there is no earlier call '{request.continues}' in this session; it has {known}", "continues")
    path = path_to(request.continues, turns)
    if not path[-1].prompt.message_count:
        raise RequestError(f"the earlier call '{request.continues}' continued a text and no messages; send the messages", "continues")
    history, new = messages_of(path), list(request.messages)
    if request.inherits:
        tools = request.tools or tuple(msgspec.json.decode(path[0].prompt.tools))
        return msgspec.structs.replace(request, messages=(*history, *new), tools=tools)
    # Instructions are not inherited from call to call: the client sends them again.
    instructions = [new.pop(0)] if new and new[0].get("role") == "system" else []
    past = history[1:] if history[0].get("role") == "system" else history
    return msgspec.structs.replace(request, messages=(*instructions, *past, *new))


def _raw_prompt(turns: dict[str, ConversationTurn], prompt: str | bytes, chat: ChatText, limit: PromptLimit | None) -> Prompt:
    """Prompt without messages; it continues an earlier one if it begins with its tokens or text."""
    known, parent, text = b"", "", prompt if isinstance(prompt, str) else ""
    for turn in reversed(turns.values()):
        path = path_to(turn.interaction.id, turns) if turn.prompt.message_count == 0 else []
        ids = token_ids_of(path)
        if len(ids) <= len(known):
            continue
        if isinstance(prompt, bytes):
            begins = prompt.startswith(ids)
        elif begins := prompt.startswith(earlier := text_of(path, chat)):
            text = prompt[len(earlier) :]
        if begins:
            known, parent = ids, turn.interaction.id
    suffix = prompt[len(known) :] if isinstance(prompt, bytes) else encode_within(chat, text, limit, after=len(known) // 4)
    return Prompt(
        parent=parent,
        prefix=parent,
        token_ids=known + suffix,
        suffix_ids=suffix,
        suffix_text="" if chat.is_lossless(text) else text,
        cached_tokens=len(known) // 4,
    )
