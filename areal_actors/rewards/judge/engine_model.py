"""The run's own engines as the model of a judge: its calls are requests of tokens, which no session records."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Callable
from contextvars import ContextVar

from areal_actors.core.values import Constraint, SamplingParams
from areal_actors.messages import Generate
from areal_actors.rewards.judge.judge_client import CallFailed, JudgeModel, JudgeReply
from areal_actors.rewards.judge.settings import ModelJudge
from areal_actors.rewards.judge.verdict_forms import VerdictForm
from areal_actors.runtime.actor import Context
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_bus.errors import BusError

HANDLING: ContextVar[Context | None] = ContextVar("judge_handling", default=None)
"""The score that is being computed, through which engines are asked."""
COMPACT = {"x-guidance": {"whitespace_pattern": " ?"}}
"""Part of a schema by which llguidance allows a space between fields at most: small models repeat them without end."""
OWN_ENGINES = "the run's own engines"


class EngineModel(JudgeModel):
    """The model that is being trained, with the weights that an engine has at the time of a call."""

    def __init__(self, judge: ModelJudge, locate: Callable[[], str], max_model_len: int) -> None:
        """`locate` returns the model's folder, and may block; `max_model_len` is the engines' context in tokens."""
        self.identity = OWN_ENGINES
        self._judge, self._locate, self._max_model_len = judge, locate, max_model_len
        self._chat: ChatTokenizer | None = None
        self._loading = asyncio.Lock()
        self._is_constrained = judge.structured in ("auto", "json_schema")

    async def complete(self, prompt: str, form: VerdictForm, seed: int) -> JudgeReply:
        """Returns the answer of an inference worker; raises CallFailed."""
        if (context := HANDLING.get()) is None:
            raise CallFailed("they answer in a run only; give the judge a `url`", is_final=True)
        chat = await self._load_chat()
        ids = chat.encode(chat.render([{"role": "user", "content": prompt}]))
        room = self._max_model_len - len(ids)
        if room < 1:
            limit = f"generation.max_model_len is {self._max_model_len}"
            raise CallFailed(f"the prompt has {len(ids)} tokens, and {limit}; raise it", is_final=True)
        while True:
            sampled, error, field = await self._sample(context, ids, self._sampling(form, seed, room))
            if error and field == "constraint" and self._judge.structured == "auto" and self._is_constrained:
                self._is_constrained = False
                continue
            if error:
                raise CallFailed(error, is_final=bool(field))
            return JudgeReply(chat.decode(sampled), len(ids), len(sampled))

    async def close(self) -> None:
        """Nothing is open."""

    async def _load_chat(self) -> ChatTokenizer:
        async with self._loading:
            if self._chat is None:
                folder = await asyncio.to_thread(self._locate)
                self._chat = await asyncio.to_thread(ChatTokenizer.load, folder)
            return self._chat

    def _sampling(self, form: VerdictForm, seed: int, room: int) -> SamplingParams:
        judge = self._judge
        compact = {**form.schema, **COMPACT}
        schema = Constraint(kind="json_schema", text=json.dumps(compact)) if self._is_constrained else None
        tokens = min(judge.max_tokens, room)
        return SamplingParams(temperature=judge.temperature, max_tokens=tokens, seed=seed, constraint=schema)

    async def _sample(self, context: Context, ids: list[int], sampling: SamplingParams) -> tuple[list[int], str, str]:
        """Returns the sampled ids, and error and field of a request that was refused."""
        request = Generate(prompt_ids=array("I", ids).tobytes(), sampling=sampling)
        sampled = array("I")
        try:
            async with asyncio.timeout(self._judge.call_seconds):
                async for part in context.stream(request, timeout=self._judge.call_seconds):
                    sampled.frombytes(part.columns.token_ids)
                    if part.error:
                        return [], part.error, part.error_field
        except (BusError, TimeoutError) as error:
            return [], f"an inference worker gave no answer: {error or 'within `call_seconds`'}", ""
        return sampled.tolist(), "", ""
