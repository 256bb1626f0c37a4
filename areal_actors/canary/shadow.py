"""Answers of a candidate beside the served version: unseen by users, and no calls of the session."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import aclosing
from typing import NamedTuple

import msgspec
import structlog

from areal_actors.canary.version_routing import SHADOW
from areal_actors.core.errors import ArealError
from areal_actors.gateway.completion import ModelCall, complete
from areal_actors.gateway.conversations.session_turns import SessionTurns
from areal_actors.gateway.model_calls import ModelCalls
from areal_actors.gateway.sessions.table import Session
from areal_actors.gateway.worker_pool import InFlightCall, QueuedTime
from areal_actors.messages import AnswerInShadow, ModelRequest, ShadowAnswered, ShadowEnded
from areal_actors.runtime.actor import Context, Submit

MOST_WAITING = 64
"""Answers beside that may be asked for at once; more are left out, so that users never wait for them."""
logger = structlog.get_logger(__name__)


class ShadowedCall(NamedTuple):
    """A call as it arrived, with the session as it was then."""

    session: Session
    request: ModelRequest


class ShadowCalls:
    """Calls that the candidate has still to answer, by the id of the served version's answer."""

    def __init__(self, calls: ModelCalls) -> None:
        self.calls = calls
        self.waiting: OrderedDict[str, ShadowedCall] = OrderedDict()
        self.left_out = 0
        """Calls without an answer of the candidate, since too many waited or it failed."""
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, submit: Submit, session: Session, request: ModelRequest, interaction: str) -> None:
        """Have a completed call answered beside, later, by the actor that `submit` belongs to."""
        if interaction in self.waiting:
            return
        if len(self.waiting) >= MOST_WAITING:
            self.left_out += 1
            return
        beside = msgspec.structs.replace(request, session=SHADOW + session.id, stream=False, choices=1)
        self.waiting[interaction] = ShadowedCall(session, beside)
        question = AnswerInShadow(session=session.id, interaction=interaction)
        self._tasks.add(task := asyncio.create_task(self._submit(submit, question)))
        task.add_done_callback(self._tasks.discard)

    async def _submit(self, submit: Submit, question: AnswerInShadow) -> None:
        async with aclosing(submit(question)) as replies:
            async for ended in replies:
                if isinstance(ended, ShadowEnded) and ended.error:
                    self.left_out += 1
                    logger.info("the candidate has not answered beside", call=question.interaction, error=ended.error)

    async def answer(self, question: AnswerInShadow, version: int, context: Context) -> ShadowAnswered | ShadowEnded:
        """Returns the candidate's answer as an event, or the reason why there is none."""
        shadowed, served = self.waiting.pop(question.interaction, None), self.calls.served
        if shadowed is None or served is None:
            return ShadowEnded(error="the call is not known here")
        own = self.calls.registry.find(question.session)
        turns = own.turns if own is not None else ()
        answered = next((turn.interaction for turn in turns if turn.interaction.id == question.interaction), None)
        if answered is None:
            return ShadowEnded(error="the session has ended")
        seconds = self.calls.config.completion_seconds
        try:
            earlier = SessionTurns(shadowed.session.turns)
            in_flight = InFlightCall(context.now, QueuedTime())
            call = ModelCall(shadowed.session, earlier, shadowed.request, served, in_flight)
            async for _ in complete(call, self.calls.pool, context, seconds, context.random.getrandbits(31)):
                pass
            turn = call.choices[0].finish(last=True, trained=False)[1]
            screen, chat = self.calls.screen, served.continuations.chat
            if screen is not None and screen(shadowed.session, turn, chat).matches:
                return ShadowEnded(error="a rule of log.redaction matches in the session")
        except ArealError as error:
            return ShadowEnded(error=str(error))
        return ShadowAnswered(
            session=question.session,
            interaction=question.interaction,
            weight_version=version,
            answer=msgspec.structs.replace(turn.interaction, id=f"{question.interaction}-shadow"),
            served_tokens=len(answered.completion),
            served_truncated=answered.finish_reason == "length",
            served_tool_error=bool(answered.call_problem),
        )

    async def close(self) -> None:
        """Ask for no more."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
