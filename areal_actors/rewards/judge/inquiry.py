"""Asks the model of a judge until its answer can be read, within the judge's limits of calls, time and rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from random import Random
from typing import NamedTuple

from areal_actors.core.errors import RewardError
from areal_actors.messages import JudgeAnswer
from areal_actors.rewards.judge.answer_store import AnswerStore, question_key
from areal_actors.rewards.judge.judge_client import CallFailed, JudgeModel, JudgeReply
from areal_actors.rewards.judge.settings import ModelJudge
from areal_actors.rewards.judge.verdict_forms import UnreadableAnswer, VerdictForm

FIRST_PAUSE_SECONDS = 0.5
"""Pause before the second call, doubled with each further one, and shortened at random by up to a half."""
LONGEST_PAUSE_SECONDS = 20.0
SHOWN_CHARACTERS = 200


class JudgeUnavailable(RewardError):
    """Raised for a judge whose model gives no answer, after all retries."""


class JudgeUnreadable(RewardError):
    """Raised for a judge whose answers have no verdict, after all retries."""


class Verdict(NamedTuple):
    """Scores that were read from an answer."""

    scores: Mapping[str, float]
    answer: JudgeAnswer


class Inquiry:
    """The questions of one judge: each is asked once, `concurrency` at the same time."""

    def __init__(self, judge: ModelJudge, model: JudgeModel, store: AnswerStore, seed: int) -> None:
        """`seed` is that of the run; seeds and pauses of calls are drawn from it."""
        self.judge, self.store, self.seed = judge, store, seed
        self._model = model
        self._slots = asyncio.Semaphore(judge.concurrency)
        self._resumes = 0.0
        """Time, of the event loop, before which the server takes no further calls."""

    async def ask(self, prompt: str, form: VerdictForm, number: int = 0) -> Verdict:
        """Returns the verdict of the model about a prompt; `number` counts repetitions of the same prompt.

        Raises:
            JudgeUnavailable: it gives no answer.
            JudgeUnreadable: its answers have no verdict.
        """
        judge = self.judge
        parts = (self._model.identity, prompt, judge.structured, judge.temperature, judge.max_tokens)
        key = question_key(*parts, form.schema, self._seed_of(prompt, number) if judge.temperature else 0)
        answer = await self.store.get(key, lambda: self._ask_model(key, prompt, form, number))
        return Verdict(form.read(answer.text), answer)

    async def close(self) -> None:
        """Close the connections of the model."""
        await self._model.close()

    def _seed_of(self, prompt: str, number: int) -> int:
        return Random(f"{self.seed} {number} {prompt}").getrandbits(31)

    async def _ask_model(self, key: str, prompt: str, form: VerdictForm, number: int) -> JudgeAnswer:
        seed, began, loop = self._seed_of(prompt, number), time.monotonic(), asyncio.get_running_loop()
        pauses, calls, prompts, answers = Random(seed), 0, 0, 0
        judge = self.judge
        patience = loop.time() + judge.patience_seconds
        while True:
            calls += 1
            try:
                reply = await self._call(prompt, form, seed + calls - 1)
                prompts, answers = prompts + reply.prompt_tokens, answers + reply.completion_tokens
                form.read(reply.text)
            except CallFailed as error:
                if error.wait_seconds is not None:
                    calls -= 1
                    self._resumes = max(self._resumes, loop.time() + error.wait_seconds)
                    if self._resumes > patience:
                        raise self._unavailable(error, f"{judge.patience_seconds:g} s at its rate limit") from error
                    await asyncio.sleep(pauses.uniform(0.0, error.wait_seconds))  # not all at once
                    continue
                if error.is_final or calls > judge.retries:
                    raise self._unavailable(error, _count(calls)) from error
                await asyncio.sleep(_pause(calls, pauses))
                continue
            except UnreadableAnswer as error:
                if calls > judge.retries:
                    raise JudgeUnreadable(
                        f"judge {judge.name}: unreadable after {_count(calls)}: {error}; the last answer is"
                        f" {reply.text!r:.{SHOWN_CHARACTERS}}; see its prompt, `max_tokens` and `structured`"
                        f"{'; a small model may need `explains = false`' if judge.explains else ''}"
                    ) from error
                continue
            cost = (prompts * judge.input_price + answers * judge.output_price) / 1e6
            seconds = time.monotonic() - began
            return JudgeAnswer(
                key=key,
                judge=judge.name,
                text=reply.text,
                calls=calls,
                tokens=prompts + answers,
                cost=cost,
                seconds=seconds,
            )

    async def _call(self, prompt: str, form: VerdictForm, seed: int) -> JudgeReply:
        """Call the model, once the server takes calls."""
        async with self._slots:
            await asyncio.sleep(max(self._resumes - asyncio.get_running_loop().time(), 0.0))
            return await self._model.complete(prompt, form, seed)

    def _unavailable(self, error: CallFailed, after: str) -> JudgeUnavailable:
        return JudgeUnavailable(f"judge {self.judge.name}: no answer of {self.judge.place()} after {after}: {error}")


def _count(calls: int) -> str:
    return f"{calls} call{'' if calls == 1 else 's'}"


def _pause(calls: int, pauses: Random) -> float:
    return min(FIRST_PAUSE_SECONDS * 2.0 ** (calls - 1), LONGEST_PAUSE_SECONDS) * pauses.uniform(0.5, 1.0)
