"""The conversation tree of a session: which earlier call a new one continues, and its prompt to the token.

Two relations, kept apart. The *parent* of a call is the call whose conversation it continues (`lineage.py` finds it); credit
follows it. Its *prefix* is the call whose exact prompt and completion ids its own prompt begins with; only what is new is then
rendered and tokenised. Where the chat template, or the client, rewrites what came before, the call has a parent and no prefix,
its prompt is rendered whole, and `split` names the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from areal_actors.conversations.continuation import ChatText, Continuations, Conversation, features_of, opens_reasoning
from areal_actors.conversations.lineage import find_parent, why_no_parent
from areal_actors.conversations.message_equality import digest, value_digests
from areal_actors.conversations.prompt_length import Room, encoded
from areal_actors.conversations.turns import Prompt, Turn, messages_of, path_to, text_of, token_ids_of
from areal_actors.errors import RequestError
from areal_actors.messages import CallModel
from areal_actors.values import unpack_ids

REASONING_MARKS = ("<think>", "</think>", "<|channel|>analysis")
"""A rendered conversation has fewer of them when reasoning was taken out."""


def prompt_for(
    turns: dict[str, Turn], request: CallModel, chat: ChatText, continuations: Continuations, room: Room | None = None
) -> Prompt:
    """Tokens for a call, beginning with those of the call that it continues wherever that is exact.

    Raises:
        RequestError: the chat template refuses the messages; a PromptTooLong if it is plain that there is no `room` for them.
    """
    if (raw := request.prompt if request.prompt_ids is None else request.prompt_ids) is not None:
        return _raw_prompt(turns, raw, chat, room)
    request_digest, settings = digest(request.messages), digest((request.tools, request.template_kwargs))
    lineage = find_parent(turns, request)
    if lineage is None:
        return _whole(request, request_digest, settings, chat, room, split=why_no_parent(turns, request.messages))
    parent = lineage.turn
    if lineage.differs:
        return _whole(request, request_digest, settings, chat, room, parent=parent.interaction.id, split=lineage.differs)
    if parent.prompt.settings != settings:
        split = "the tools or the template's settings changed"
        return _whole(request, request_digest, settings, chat, room, parent=parent.interaction.id, split=split)
    new = request.messages[parent.prompt.message_count + 1 :]
    answered = parent.prompt.features | features_of([parent.answer])
    due = not continuations.is_local(answered) or len(request.messages) >= 4 * parent.prompt.checked
    sampled = chat.decode(parent.interaction.completion.ids_array().tolist(), skip_special=False)
    tail = None if due else continuations.after_window(parent.prompt.features, parent.answer, sampled, new, request.template_kwargs)
    checked = parent.prompt.checked
    if tail is None:
        checked = len(request.messages)
        path = path_to(parent.interaction.id, turns)
        tail, reason = _after_whole(path, request, sampled, chat, continuations)
        if tail is None:
            return _whole(request, request_digest, settings, chat, room, parent=parent.interaction.id, split=reason)
    return _extended(turns, parent, request, tail, request_digest, checked, chat, room)


def _extended(
    turns: dict[str, Turn],
    parent: Turn,
    request: CallModel,
    tail: str,
    request_digest: bytes,
    checked: int,
    chat: ChatText,
    room: Room | None,
) -> Prompt:
    """The parent's tokens, and those of the text after them."""
    known = token_ids_of(path_to(parent.interaction.id, turns))
    ids = encoded(chat, tail, room, after=len(known) // 4)
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
        features=parent.prompt.features if features == parent.prompt.features else features,  # one set for all turns: it takes 200 bytes
        checked=checked,
        opens_reasoning=opens_reasoning(tail),
        cached_tokens=len(known) // 4,
    )


def _whole(
    request: CallModel, request_digest: bytes, settings: bytes, chat: ChatText, room: Room | None, *, parent: str = "", split: str = ""
) -> Prompt:
    """A prompt without a prefix: the whole conversation as the template writes it."""
    text = chat.render(request.messages, request.tools, **request.template_kwargs)
    ids = encoded(chat, text, room)
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


def _after_whole(
    path: Sequence[Turn], request: CallModel, sampled: str, chat: ChatText, continuations: Continuations
) -> tuple[str | None, str]:
    """The text after the path's tokens, from the whole conversation; or None and why there is none."""
    said = messages_of(path)
    new = request.messages[len(said) :]
    text = chat.render([*said, *new], request.tools, **request.template_kwargs)
    opened = _aligned(path, text, request, chat, continuations)
    if opened is not None:
        conversation = Conversation(said[:-1], said[-1], sampled, request.tools, request.template_kwargs)
        tail = continuations.after(text[:opened], conversation, new)
        if tail is not None:
            return tail, ""
    return None, _why_rewritten(path, text, chat)


def _aligned(path: Sequence[Turn], text: str, request: CallModel, chat: ChatText, continuations: Continuations) -> int | None:
    """Where the path's last answer begins in a text that the template wrote; None if the template writes the path otherwise.

    Prompts must stand there word for word; answers in any form that means the same.
    """

    def says(written: str, turn: Turn) -> bool:
        for stop in continuations.stops():
            written = written.removesuffix(stop)
        return continuations.means(written, turn.answer, request.tools, in_reasoning=turn.prompt.opens_reasoning)

    end, sampled, before = 0, "", None
    for turn in path:
        prompt = turn.prompt.suffix_text or chat.decode(unpack_ids(turn.interaction.prompt_suffix), skip_special=False)
        start = end + len(sampled)
        if not text.startswith(sampled + prompt, end):
            # An answer may hold what looks like the prompt after it.
            start = -1 if before is None else next((place for place in places(prompt, text, end) if says(text[end:place], before)), -1)
            if start < 0:
                return None
        end = start + len(prompt)
        sampled = chat.decode(turn.interaction.completion.ids_array().tolist(), skip_special=False)
        before = turn
    return end


def places(part: str, text: str, start: int) -> Iterator[int]:
    """Where a part stands in a text, from this place on."""
    while (start := text.find(part, start)) >= 0:
        yield start
        start += 1


def _why_rewritten(path: Sequence[Turn], text: str, chat: ChatText) -> str:
    known = text_of(path, chat)
    past = text.rstrip().removesuffix("</think>").rstrip().removesuffix("<think>")
    lost = [turn for turn in path if (reasoning := turn.answer.get("reasoning_content")) and reasoning.strip() not in text]
    if lost or any(past.count(mark) < known.count(mark) for mark in REASONING_MARKS):
        return "the chat template drops earlier reasoning"
    return "the chat template rewrites earlier messages"


def whole_request(turns: dict[str, Turn], request: CallModel) -> CallModel:
    """The request with the messages that its client left to us.

    Raises:
        RequestError: the call that they are said to continue is unknown.
    """
    if not request.continues:
        return request
    if request.continues not in turns:
        known = ", ".join(turns) or "none"
        raise RequestError(f"there is no earlier call '{request.continues}' in this session; it has {known}", "continues")
    path = path_to(request.continues, turns)
    if not path[-1].prompt.message_count:
        raise RequestError(f"the earlier call '{request.continues}' continued a text and no messages; send the messages", "continues")
    said, new = messages_of(path), list(request.messages)
    if request.inherits:
        tools = request.tools or tuple(msgspec.json.decode(path[0].prompt.tools))
        return msgspec.structs.replace(request, messages=(*said, *new), tools=tools)
    # Instructions are not carried over from call to call: a client that wants them sends them again.
    instructions = [new.pop(0)] if new and new[0].get("role") == "system" else []
    past = said[1:] if said[0].get("role") == "system" else said
    return msgspec.structs.replace(request, messages=(*instructions, *past, *new))


def _raw_prompt(turns: dict[str, Turn], prompt: str | bytes, chat: ChatText, room: Room | None) -> Prompt:
    """A prompt without messages; it continues an earlier one whose tokens, or text, it begins with."""
    known, parent, text = b"", "", prompt if isinstance(prompt, str) else ""
    for turn in reversed(turns.values()):
        path = path_to(turn.interaction.id, turns) if turn.prompt.message_count == 0 else []
        ids = token_ids_of(path)
        if len(ids) <= len(known):
            continue
        if isinstance(prompt, bytes):
            begins = prompt.startswith(ids)
        elif begins := prompt.startswith(said := text_of(path, chat)):
            text = prompt[len(said) :]
        if begins:
            known, parent = ids, turn.interaction.id
    suffix = prompt[len(known) :] if isinstance(prompt, bytes) else encoded(chat, text, room, after=len(known) // 4)
    return Prompt(
        parent=parent,
        prefix=parent,
        token_ids=known + suffix,
        suffix_ids=suffix,
        suffix_text="" if chat.is_lossless(text) else text,
        cached_tokens=len(known) // 4,
    )
