"""Rewards of spans and of calls by place, as they were stated, assigned to calls of a session and to their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from areal_actors.core.errors import RewardError
from areal_actors.core.span_rewards import SpanReward, TokenSpan
from areal_actors.core.values import Interaction
from areal_actors.tokenization.token_characters import TokenCharacters
from areal_actors.tokenization.tokenizer import ChatTokenizer


def rewards_by_id(places: Mapping[str, float], calls: Sequence[Interaction]) -> dict[str, float]:
    """Returns rewards of calls by interaction id.

    Raises:
        RewardError: there is no such call.
    """
    return {_call_of(place, calls).id: reward for place, reward in places.items()}


def apply_spans(
    calls: Sequence[Interaction], spans: Sequence[SpanReward], chat: ChatTokenizer, output: str = ""
) -> tuple[Interaction, ...]:
    """Returns the calls with the rewards of their tokens, by the texts of the tokens that were sampled.

    Args:
        calls: completed calls of the episode.
        spans: as stated.
        chat: tokenizer of the model.
        output: text that ranges are counted in, which the completion of their call must have; empty for the text of the
            completion itself.

    Raises:
        RewardError: there is no such call, or its completion has no such text or range.
    """
    by_call: dict[str, list[TokenSpan]] = {}
    characters: dict[str, TokenCharacters] = {}
    for number, span in enumerate(spans):
        try:
            call = _call_of(span.call, calls)
            if call.id not in characters:
                characters[call.id] = TokenCharacters.of(chat, call.completion.ids_array().tolist())
            by_call.setdefault(call.id, []).extend(_token_spans(span, characters[call.id], output))
        except RewardError as error:
            raise RewardError(f"span {number} ({span.name}): {error}") from error
    return tuple(
        msgspec.structs.replace(call, spans=(*call.spans, *by_call[call.id])) if call.id in by_call else call
        for call in calls
    )


def _call_of(place: str, calls: Sequence[Interaction]) -> Interaction:
    """Returns the call of an id, or of a place among the trained calls; the last trained one for an empty place."""
    for call in calls:
        if call.id == place:
            return call
    trained = [call for call in calls if call.trained] or list(calls)
    try:
        return trained[int(place or -1)]
    except (ValueError, IndexError) as error:
        names = ", ".join(call.id for call in calls) or "none"
        raise RewardError(
            f"there is no call '{place or -1}'; the episode has {len(trained)} trained calls, and the ids {names}"
        ) from error


def _token_spans(span: SpanReward, characters: TokenCharacters, output: str) -> Iterator[TokenSpan]:
    ranges = list(characters.ranges_of(span.text)) if span.text else [_range_of(span, characters, output)]
    if not ranges:
        raise RewardError(f"the completion does not have the text {span.text!r:.80}; it is {characters.text!r:.80}")
    for start, end in ranges:
        tokens = characters.tokens_of(start, end)
        if tokens is None:
            raise RewardError(f"no sampled token writes characters {start} to {end} of the completion")
        yield TokenSpan(start=tokens[0], end=tokens[1], reward=span.reward, name=span.name)


def _range_of(span: SpanReward, characters: TokenCharacters, output: str) -> tuple[int, int]:
    """Returns the range in the completion of a range that may be one of the output."""
    start = characters.text.rfind(output) if output else 0
    if start < 0:
        raise RewardError(
            f"the output, in which its characters are counted, is no part of the completion: {output!r:.60} is not in"
            f" {characters.text!r:.60}; give a `text` instead of a range"
        )
    length = len(output or characters.text)
    if not 0 <= span.start < span.end <= length:
        raise RewardError(f"characters {span.start} to {span.end} are outside of a text of {length} characters")
    return start + span.start, start + span.end
