"""Judgements of users as rows of data sets: edited answers as demonstrations, preferred calls as pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from areal_actors.core.values import Interaction, unpack_ids
from areal_actors.export.examples import Decode, text_columns
from areal_actors.messages import FeedbackGiven
from areal_actors.reader.feedback import JudgedSession
from areal_actors.sequences.build import token_path

Encode = Callable[[str], list[int]]
"""Returns the token ids of a text."""


def edit_rows(judged: JudgedSession, encode: Encode, decode: Decode) -> Iterator[dict[str, Any]]:
    """Yields a demonstration for each edited answer: the prompt as the model had it, and the answer as it should be.

    The token that ended the model's own answer ends the edited one, too. The others are those of the text: they were
    not sampled, and only `sft` learns from them. An answer that was redacted is left out.
    """
    calls = {call.id: call for call in judged.ended.interactions}
    for given in judged.feedback.given:
        call = calls.get(given.interaction)
        if given.kind != "edit" or call is None or given.redacted:
            continue
        prompt, answer = prompt_ids(call, calls), encode(given.text)
        sampled = call.completion.ids_array().tolist()
        end = sampled[-1:] if call.finish_reason == "stop" else []
        ids = {"prompt": prompt, "completion": answer + end}
        yield {
            "input_ids": [*prompt, *answer, *end],
            "completion_mask": [0] * len(prompt) + [1] * (len(answer) + len(end)),
            **text_columns(ids, decode),
            **_source(judged, given),
        }


def preferred_rows(judged: JudgedSession, decode: Decode) -> Iterator[dict[str, Any]]:
    """Yields a pair for each preferred call, if the other one answers the same prompt tokens."""
    calls = {call.id: call for call in judged.ended.interactions}
    for given in judged.feedback.given:
        better, worse = calls.get(given.interaction), calls.get(given.worse)
        if given.kind != "preference" or better is None or worse is None:
            continue
        prompt = prompt_ids(better, calls)
        if prompt != prompt_ids(worse, calls):
            continue
        ids = {
            "prompt": prompt,
            "chosen": better.completion.ids_array().tolist(),
            "rejected": worse.completion.ids_array().tolist(),
        }
        row = {f"{name}_ids": tokens for name, tokens in ids.items()}
        yield row | text_columns(ids, decode) | _source(judged, given)


def prompt_ids(call: Interaction, calls: dict[str, Interaction]) -> list[int]:
    """Returns the token ids of the whole prompt of a call, with those of the calls that it continues."""
    earlier = token_path(call, calls)[:-1]
    parts = [part for one in earlier for part in (one.prompt_suffix, one.completion.token_ids)]
    return unpack_ids(b"".join([*parts, call.prompt_suffix]))


def _source(judged: JudgedSession, given: FeedbackGiven) -> dict[str, Any]:
    user = {"user": given.user} if given.user else {}
    return {"episode": judged.ended.episode, "task": judged.ended.task_id, "interaction": given.interaction, **user}
