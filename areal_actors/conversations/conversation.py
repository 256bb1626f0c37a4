"""The conversation tree of a session: which earlier call a new one continues, and its prompt to the token.

A call whose messages continue an earlier one starts with that one's exact prompt and completion ids; only what is new is
rendered and tokenised. Where the chat template rewrites what was said, the call becomes a root and says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from areal_actors.conversations.continuation import ChatText, Continuations, Conversation, features_of, opens_reasoning
from areal_actors.conversations.same_messages import differs_at, digest, same_answer, value_digests
from areal_actors.errors import RequestError
from areal_actors.messages import CallModel
from areal_actors.values import Interaction, TokenColumns, pack_ids, unpack_ids
from bus.message import FrozenMeta

REASONING_MARKS = ("<think>", "</think>", "<|channel|>analysis")
"""A rendered conversation has fewer of them when reasoning was taken out."""


class Prompt(msgspec.Struct, metaclass=FrozenMeta):
    """The tokens to continue, and what is needed to recognise a call that continues them."""

    token_ids: bytes
    """u32, all of them."""
    suffix_ids: bytes
    """u32, those after the parent's prompt and completion; all at a root."""
    parent: str = ""
    """Id of the interaction whose tokens these begin with."""
    suffix_text: str = ""
    """The text of `suffix_ids`, where decoding them would not give it."""
    messages: bytes = b""
    """JSON of the request's messages that the parent does not hold; all at a root."""
    message_count: int = 0
    request_digest: bytes = b""
    """Stands for the request's messages as they were sent."""
    value_digest: bytes = b""
    """Stands for them by value."""
    settings: bytes = b""
    """Stands for tools and template settings."""
    tools: bytes = b""
    """JSON of the tools; at a root."""
    features: frozenset[str] = frozenset()
    checked: int = 0
    """How many messages there were when the conversation was last rendered whole."""
    opens_reasoning: bool = False
    """The prompt ends where the model's reasoning begins."""
    cached_tokens: int = 0
    """Tokens taken over from the parent."""
    split: str = ""
    """Why these are not an earlier call's tokens although the messages are."""


class Turn(msgspec.Struct, metaclass=FrozenMeta):
    """One completed model call, with what is needed to continue it."""

    interaction: Interaction
    answer: dict[str, Any]
    """What the model said, as a message."""
    prompt: Prompt
    """Without `token_ids`: they are those of the path that leads here."""


def prompt_for(turns: dict[str, Turn], request: CallModel, chat: ChatText, continuations: Continuations) -> Prompt:
    """Tokens for a call, continuing the longest earlier call that it continues by value.

    Raises:
        RequestError: the chat template refuses the messages.
    """
    if (raw := request.prompt if request.prompt_ids is None else request.prompt_ids) is not None:
        return _raw_prompt(turns, raw, chat)
    request_digest, settings = digest(request.messages), digest((request.tools, request.template_kwargs))
    parent = _named(turns, request) or _parent(turns, request.messages)
    if parent is None:
        return _root(request, request_digest, settings, chat, split=_why_no_parent(turns, request.messages))
    if parent.prompt.settings != settings:
        return _root(request, request_digest, settings, chat, split="the tools or the template's settings changed")
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
            return _root(request, request_digest, settings, chat, split=reason)
    ids = pack_ids(chat.encode(tail))
    known = token_ids_of(path_to(parent.interaction.id, turns))
    sent = request.messages[parent.prompt.message_count :]
    features = answered | (features_of(new) - {"system"})
    return Prompt(
        parent=parent.interaction.id,
        token_ids=known + ids,
        suffix_ids=ids,
        suffix_text="" if chat.is_lossless(tail) else tail,
        messages=msgspec.json.encode(new),
        message_count=len(request.messages),
        request_digest=request_digest,
        value_digest=value_digests(parent.prompt.value_digest, sent)[-1],
        settings=parent.prompt.settings,
        features=parent.prompt.features if features == parent.prompt.features else features,  # one set for all turns: it takes 200 bytes
        checked=checked,
        opens_reasoning=opens_reasoning(tail),
        cached_tokens=len(known) // 4,
    )


def recorded(
    identifier: str, prompt: Prompt, completion: TokenColumns, finish_reason: str, answer: dict[str, Any], worker: str = ""
) -> Turn:
    """A completed call as the tree keeps it."""
    interaction = Interaction(
        id=identifier,
        parent=prompt.parent,
        prompt_suffix=prompt.suffix_ids,
        completion=completion,
        finish_reason=finish_reason,
        worker=worker,
    )
    return Turn(interaction=interaction, answer=answer, prompt=msgspec.structs.replace(prompt, token_ids=b""))


def path_to(identifier: str, turns: dict[str, Turn]) -> list[Turn]:
    """The turns from a root to this one."""
    path = [turns[identifier]]
    while path[-1].interaction.parent:
        path.append(turns[path[-1].interaction.parent])
    return path[::-1]


def token_ids_of(path: Sequence[Turn]) -> bytes:
    """Prompt and completion ids along a path, u32."""
    return b"".join([part for turn in path for part in (turn.interaction.prompt_suffix, turn.interaction.completion.token_ids)])


def text_of(path: Sequence[Turn], chat: ChatText) -> str:
    """Prompts and completions along a path as text, special tokens included."""
    return "".join(
        (turn.prompt.suffix_text or chat.decode(unpack_ids(turn.interaction.prompt_suffix), skip_special=False))
        + chat.decode(turn.interaction.completion.ids_array().tolist(), skip_special=False)
        for turn in path
    )


def messages_of(path: Sequence[Turn]) -> list[dict[str, Any]]:
    """What was said along a path, the last answer included."""
    return [message for turn in path for message in (*msgspec.json.decode(turn.prompt.messages or b"[]"), turn.answer)]


def _root(request: CallModel, request_digest: bytes, settings: bytes, chat: ChatText, *, split: str = "") -> Prompt:
    text = chat.render(request.messages, request.tools, **request.template_kwargs)
    ids = pack_ids(chat.encode(text))
    return Prompt(
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


def _named(turns: dict[str, Turn], request: CallModel) -> Turn | None:
    """The call that the client says these messages continue, if they do: of several with the same messages it means this one."""
    if not request.continues:
        return None
    said = messages_of(path_to(request.continues, turns))
    return turns[request.continues] if differs_at(said, request.messages) == len(said) else None


def _parent(turns: dict[str, Turn], messages: Sequence[dict[str, Any]]) -> Turn | None:
    """The longest call that these messages continue; of several, the latest."""
    digests: dict[int, bytes] = {}
    values: list[bytes] = []
    best: Turn | None = None
    for turn in reversed(turns.values()):
        count = turn.prompt.message_count
        if not 0 < count < len(messages) or (best is not None and count <= best.prompt.message_count):
            continue
        if not same_answer(turn.answer, messages[count]):
            continue
        if count not in digests:
            digests[count] = digest(messages[:count])
        if digests[count] != turn.prompt.request_digest:
            values = values or value_digests(b"", messages)
            if values[count - 1] != turn.prompt.value_digest:
                continue
        best = turn
    return best


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


def _why_no_parent(turns: dict[str, Turn], messages: Sequence[dict[str, Any]]) -> str:
    """Why a call that looks like a later one of a conversation continues none; empty for one that looks like a first."""
    if not turns or not any(message.get("role") == "assistant" for message in messages):
        return ""
    last = next(reversed(turns.values()))
    if last.prompt.message_count == 0:
        return ""
    place = differs_at(messages_of(path_to(last.interaction.id, turns)), messages)
    if place >= len(messages):
        return "these messages are the beginning of an earlier call's"
    return f"message {place} ({messages[place].get('role')}) is not what it was in the call before"


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


def _raw_prompt(turns: dict[str, Turn], prompt: str | bytes, chat: ChatText) -> Prompt:
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
    suffix = prompt[len(known) :] if isinstance(prompt, bytes) else pack_ids(chat.encode(text))
    return Prompt(
        parent=parent,
        token_ids=known + suffix,
        suffix_ids=suffix,
        suffix_text="" if chat.is_lossless(text) else text,
        cached_tokens=len(known) // 4,
    )
