"""The model of a frozen policy as that of a judge where no run serves it: for calibration, and for `what-if`.

The engine of the policy's recipe is started with the first question that has no known answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from areal_actors.core.errors import ArealError, RequestError
from areal_actors.core.policy_settings import PolicySettings
from areal_actors.core.values import Constraint, SamplingParams
from areal_actors.generation.engine import EnginePlace, GenerationEngine, TokenChunk, refuse_unable
from areal_actors.generation.named import engine_factory
from areal_actors.generation.settings import GenerationSettings
from areal_actors.policies.policy_judge import policy_identity
from areal_actors.rewards.judge.engine_model import COMPACT
from areal_actors.rewards.judge.judge_client import CallFailed, JudgeModel, JudgeReply
from areal_actors.rewards.judge.settings import ModelJudge
from areal_actors.rewards.judge.verdict_forms import VerdictForm
from areal_actors.tokenization.tokenizer import ChatTokenizer


class CheckpointModel(JudgeModel):
    """An engine in this process, with the weights of a folder."""

    def __init__(
        self,
        judge: ModelJudge,
        settings: PolicySettings,
        generation: GenerationSettings,
        locate: Callable[[], str],
    ) -> None:
        """`generation` is that of the policy's recipe; `locate` returns its folder, and may block."""
        self.identity = policy_identity(judge, settings)
        self._judge, self._generation, self._locate = judge, generation, locate
        self._loading = asyncio.Lock()
        self._loaded: tuple[GenerationEngine, ChatTokenizer] | None = None
        self._is_constrained = judge.structured in ("auto", "json_schema")
        self._asked = 0

    async def complete(self, prompt: str, form: VerdictForm, seed: int) -> JudgeReply:
        """Returns the engine's answer; raises CallFailed."""
        engine, chat = await self._load()
        ids = chat.encode(chat.render([{"role": "user", "content": prompt}]))
        room = self._generation.max_model_len - len(ids)
        if room < 1:
            limit = f"generation.max_model_len of policy '{self._judge.policy}' is {self._generation.max_model_len}"
            raise CallFailed(f"the prompt has {len(ids)} tokens, and {limit}; raise it", is_final=True)
        while True:
            sampling = self._sampling(form, seed, room)
            try:
                refuse_unable(engine, sampling)
                sampled = await self._sample(engine, ids, sampling)
            except RequestError as error:
                if error.field == "constraint" and self._judge.structured == "auto" and self._is_constrained:
                    self._is_constrained = False
                    continue
                raise CallFailed(str(error), is_final=True) from error
            except (ArealError, TimeoutError) as error:
                raise CallFailed(str(error) or "no answer within `call_seconds`") from error
            return JudgeReply(chat.decode(sampled), len(ids), len(sampled))

    async def close(self) -> None:
        """End the engine."""
        if self._loaded is not None:
            await self._loaded[0].close()

    async def _load(self) -> tuple[GenerationEngine, ChatTokenizer]:
        async with self._loading:
            if self._loaded is None:
                self._loaded = await asyncio.to_thread(self._start)
            return self._loaded

    def _start(self) -> tuple[GenerationEngine, ChatTokenizer]:
        folder = self._locate()
        try:
            engine = engine_factory(self._generation, Path.cwd(), EnginePlace(temperature=None))(folder)
        except ArealError as error:
            raise CallFailed(f"its engine does not start: {error}", is_final=True) from error
        return engine, ChatTokenizer.load(folder)

    def _sampling(self, form: VerdictForm, seed: int, room: int) -> SamplingParams:
        text = json.dumps({**form.schema, **COMPACT})
        schema = Constraint(kind="json_schema", text=text) if self._is_constrained else None
        tokens = min(self._judge.max_tokens, room)
        return SamplingParams(temperature=self._judge.temperature, max_tokens=tokens, seed=seed, constraint=schema)

    async def _sample(self, engine: GenerationEngine, ids: list[int], sampling: SamplingParams) -> list[int]:
        self._asked += 1
        chunks: AsyncGenerator[TokenChunk, Any] = engine.generate(f"judge-{self._asked}", ids, sampling)
        sampled: list[int] = []
        async with asyncio.timeout(self._judge.call_seconds), aclosing(chunks):
            async for chunk in chunks:
                sampled += chunk.columns.ids_array().tolist()
        return sampled
