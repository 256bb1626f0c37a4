"""One choice of a model call: the tokens sampled so far, and the answer parts streamed to the client."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import xxhash

from areal_actors.core.errors import RequestError
from areal_actors.core.routes import RouteShape
from areal_actors.core.values import SamplingParams, TokenColumns, joined_columns
from areal_actors.gateway.completion_check import CompletionCheck, PublishedVersions
from areal_actors.gateway.conversations.turns import CANCELLED, ConversationTurn, Prompt, record_turn
from areal_actors.gateway.unread_calls import cause_of, find_unread_call, find_wrong_type
from areal_actors.messages import Generated, ModelResponsePart, TokenLogprob, ToolCallPart
from areal_actors.tokenization.tokenizer import ChatTokenizer, TextStream
from areal_actors.tokenization.tool_parsers.base import Answer, Delta, ToolDefinition

CALL_ID_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
WRITTEN_ID = re.compile(r"[\w.:\-]{1,80}")
CALL_ID_LENGTH = 9
"""Nine letters and digits: some chat templates accept no other tool call ids."""


class Choice:
    """Collects tokens as the engine samples them.

    It emits text, reasoning and tool calls as soon as they are unambiguous.
    """

    def __init__(
        self,
        identifier: str,
        number: int,
        prompt: Prompt,
        sampling: SamplingParams,
        chat: ChatTokenizer,
        tools: Sequence[ToolDefinition],
        *,
        stream: bool,
        logprobs: bool,
        parallel_tool_calls: bool = True,
        withheld: frozenset[str] = frozenset(),
        issued_ids: Container[str] = (),
        published: PublishedVersions,
        vocabulary: int = 0,
        temperature: float | None = None,
        ignored: tuple[str, ...] = (),
        routes: RouteShape | None = None,
    ) -> None:
        """`temperature` is that of training, if it is not the recipe's.

        `ignored` are fields of the request without effect.
        `withheld`: names of declared tools whose calls are text.
        `routes`: mixtures of experts whose choices are recorded.
        """
        self._routes = routes
        self.temperature, self.ignored = temperature, ignored
        self.identifier, self.number, self.prompt, self.sampling = identifier, number, prompt, sampling
        self.chat, self.tools, self.logprobs, self.parallel_tool_calls = chat, tools, logprobs, parallel_tool_calls
        self._issued_ids = issued_ids
        """Ids of the session's earlier tool calls."""
        self.check = CompletionCheck(published, vocabulary, sampling, routes)
        self.parts: list[Generated] = []
        self.workers: set[str] = set()
        """Inference workers that sampled the parts."""
        self.is_sent_whole = False
        """True once a worker did not hold the prefix that it was sent."""
        self.last_worker = ""
        """The one that sampled the last of them."""
        self.sampled = 0
        self.finish_reason = ""
        self.whole = ModelResponsePart()
        """The whole answer in one part, once the choice has ended."""
        self._text = TextStream(chat, sampling.stop, special=chat.shows_special) if stream else None
        self._withheld = withheld
        self._answer = (
            chat.format.stream(tools, in_reasoning=prompt.opens_reasoning, withheld=withheld) if stream else None
        )
        self._calls: list[str] = []
        """Ids of the tool calls begun so far."""
        self._has_emitted = False

    def add_tokens(self, part: Generated, worker: str = "") -> None:
        """Add the next tokens, sampled by `worker`.

        Raises:
            RequestError: the worker refused the request.
            CompletionFault: its engine failed or its answer is invalid; this part is not added.
        """
        if part.error_field:
            raise RequestError(part.error, part.error_field)
        self.check.validate(part, self.sampled)
        self.parts.append(part)
        self.workers.add(worker)
        self.last_worker = worker
        self.sampled += len(part.columns)
        self.finish_reason = part.finish_reason

    def on_worker_lost(self) -> None:
        """The worker is gone: finish with "length" if `max_tokens` are sampled; otherwise another worker continues."""
        if self.sampled >= self.sampling.max_tokens:
            self.finish_reason = "length"

    def routes_from(self) -> int | None:
        """First position whose experts are not recorded yet; None if they are not to be."""
        if self._routes is None:
            return None
        recorded = sum(len(part.routes) for part in self.parts) // self._routes.position_bytes
        return self.prompt.first_position() + recorded

    def _recorded_routes(self) -> bytes:
        """Experts of all positions that this choice added; empty if some are missing.

        A worker may have died before it sent them.
        """
        if self.routes_from() != self.prompt.token_count + self.sampled - 1:
            return b""
        return b"".join([part.routes for part in self.parts])

    def token_ids(self) -> bytes:
        """Token ids sampled so far, as u32 bytes."""
        return b"".join([part.columns.token_ids for part in self.parts])

    def emit(self, part: Generated) -> list[ModelResponsePart]:
        """Answer parts that one more part of tokens adds to the stream."""
        assert self._text is not None
        assert self._answer is not None
        ids = part.columns.ids_array().tolist()
        if part.finish_reason == "stop" and ids and ids[-1] in self.chat.stop_ids:
            ids = ids[:-1]
        text = self._text.push(ids)
        logprobs = self._logprobs(part, len(ids)) if self.logprobs else ()
        return self._deltas(self._answer.push(text) if text else (), logprobs)

    def _deltas(self, pieces: Sequence[Delta], logprobs: tuple[TokenLogprob, ...] = ()) -> list[ModelResponsePart]:
        answered = [
            ModelResponsePart(
                interaction=self.identifier,
                choice=self.number,
                reasoning=piece.reasoning,
                text=piece.text,
                tool_calls=() if piece.call is None else (self._call_part(piece),),
                logprobs=logprobs if place == 0 else (),
            )
            for place, piece in enumerate(pieces)
        ]
        if logprobs and not answered:
            answered.append(ModelResponsePart(interaction=self.identifier, choice=self.number, logprobs=logprobs))
        if answered and not self._has_emitted:
            self._has_emitted = True
            counts = {"prompt_tokens": self.prompt.token_count, "cached_tokens": self.prompt.cached_tokens}
            answered[0] = msgspec.structs.replace(answered[0], **counts, ignored=self.ignored)
        return answered

    def _call_part(self, piece: Delta) -> ToolCallPart:
        assert piece.call is not None
        begins = piece.call == len(self._calls)
        if begins:
            self._calls.append(self._call_id(piece.call, piece.id, self._calls))
        identifier = self._calls[piece.call] if begins else ""
        return ToolCallPart(index=piece.call, id=identifier, name=piece.name, arguments=piece.arguments)

    def _call_id(self, index: int, written: str, before: Sequence[str]) -> str:
        """The id that the model wrote, if it is one and new in the session; else an own one."""
        if (
            self.number == 0
            and WRITTEN_ID.fullmatch(written)
            and written not in self._issued_ids
            and written not in before
        ):
            return written
        number = xxhash.xxh3_64_intdigest(f"{self.identifier} {index}".encode())
        letters = [CALL_ID_CHARACTERS[number // 36**place % 36] for place in range(CALL_ID_LENGTH)]
        return "".join(letters)

    def finish_cancelled(self, *, trained: bool) -> ConversationTurn:
        """The turn sampled before the client disconnected, as recorded in the conversation."""
        self.finish_reason = self.finish_reason or CANCELLED
        return self.finish(last=True, trained=trained)[1]

    def finish(
        self, *, last: bool, trained: bool = True, role: str = ""
    ) -> tuple[list[ModelResponsePart], ConversationTurn]:
        """The last answer parts, and the turn as recorded in the conversation; sets `whole`."""
        columns = joined_columns([part.columns for part in self.parts])
        text, stop = self._text_and_stop(columns)
        answer = self.chat.format.parse(
            text, self.tools, in_reasoning=self.prompt.opens_reasoning, withheld=self._withheld
        )
        finish_reason = "tool_calls" if answer.tool_calls and self.finish_reason == "stop" else self.finish_reason
        problem = answer.tool_call_error or self._call_problem(answer)
        worker = next(iter(self.workers)) if len(self.workers) == 1 else ""
        turn = record_turn(
            self.identifier,
            self.prompt,
            columns,
            finish_reason,
            self._message(answer),
            worker=worker,
            trained=trained,
            temperature=self.temperature,
            streamed=self._text is not None,
            routes=self._recorded_routes(),
            call_problem=cause_of(problem),
            ignored=self.ignored,
            role=role,
        )
        self.whole = ModelResponsePart(
            interaction=self.identifier,
            choice=self.number,
            reasoning=answer.reasoning,
            text=answer.text,
            tool_calls=self._tool_calls(answer),
            logprobs=self._all_logprobs() if self.logprobs else (),
            finish_reason=finish_reason,
            stop_sequence=stop,
            prompt_tokens=self.prompt.token_count,
            cached_tokens=self.prompt.cached_tokens,
            completion_tokens=len(columns),
            reasoning_tokens=len(self.chat.encode(answer.reasoning)) if answer.reasoning else 0,
            tool_call_error=problem,
            ignored=self.ignored,
            last=last,
        )
        if self._answer is None:
            return [self.whole], turn
        rest = msgspec.structs.replace(self.whole, reasoning="", text="", tool_calls=(), logprobs=())
        return [*self._flush(), rest], turn

    def _call_problem(self, answer: Answer) -> str:
        """Reason for which the agent may reject calls that it receives, or receives none; empty if there is none."""
        if not self.tools and not answer.tool_calls:
            return ""
        calls = len(answer.tool_calls)
        if calls > 1 and not self.parallel_tool_calls:
            return f"{calls} tool calls although parallel_tool_calls is false"
        declared = [tool["function"]["name"] for tool in self.tools] if calls else []
        undeclared = [call.name for call in answer.tool_calls if call.name not in declared]
        if undeclared:
            return f"no tool is named {undeclared[0]!r}; declared are {', '.join(declared)}"
        return find_wrong_type(answer.tool_calls, self.tools) or find_unread_call(
            answer, self.tools, self.chat.format.name
        )

    def _flush(self) -> list[ModelResponsePart]:
        assert self._text is not None
        assert self._answer is not None
        text = self._text.finish()
        pieces = self._answer.push(text) if text else ()
        rest, _ = self._answer.finish()
        return self._deltas([*pieces, *rest])

    def _text_and_stop(self, columns: TokenColumns) -> tuple[str, str]:
        """The completion's text without its end marker, and the stop string that matched."""
        ids = columns.ids_array().tolist()
        if self._ends_with_stop_token():
            ids.pop()
        if not self.sampling.stop:
            return self.chat.decode(ids, skip_special=not self.chat.shows_special), ""
        text = TextStream(self.chat, self.sampling.stop, special=self.chat.shows_special)
        text.push(ids)
        text.finish()
        return text.released, text.matched

    def _tool_calls(self, answer: Answer) -> tuple[ToolCallPart, ...]:
        ids: list[str] = []
        for index, call in enumerate(answer.tool_calls):
            ids.append(self._call_id(index, call.id, ids))
        return tuple(
            ToolCallPart(index=index, id=ids[index], name=call.name, arguments=call.arguments)
            for index, call in enumerate(answer.tool_calls)
        )

    def _message(self, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self._tool_calls(answer)
            ]
        return message

    def _all_logprobs(self) -> tuple[TokenLogprob, ...]:
        tokens = tuple(chain.from_iterable(self._logprobs(part, len(part.columns)) for part in self.parts))
        return tokens[:-1] if self._ends_with_stop_token() else tokens

    def _ends_with_stop_token(self) -> bool:
        """True if the last token is a stop token."""
        if self.finish_reason != "stop":
            return False
        last = next(part.columns.token_ids for part in reversed(self.parts) if part.columns.token_ids)
        return int.from_bytes(last[-4:], "little") in self.chat.stop_ids

    def _logprobs(self, part: Generated, count: int) -> tuple[TokenLogprob, ...]:
        ids, logprobs = part.columns.ids_array()[:count].tolist(), part.columns.logprobs_array()[:count].tolist()
        if width := self.sampling.top_logprobs:
            top_ids = np.frombuffer(part.top_ids, dtype="<u4").reshape(-1, width)[:count].tolist()
            top_values = np.frombuffer(part.top_logprobs, dtype="<f4").reshape(-1, width)[:count].tolist()
        else:
            top_ids = top_values = [()] * count
        name = self.chat.token_bytes
        return tuple(
            TokenLogprob(
                token=name(token), logprob=value, top=tuple(zip(map(name, other_ids), other_values, strict=True))
            )
            for token, value, other_ids, other_values in zip(ids, logprobs, top_ids, top_values, strict=True)
        )
