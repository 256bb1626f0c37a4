"""Section `decode`: tokens per second of the embedded engine and of transformers' `generate`, equally concurrent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import torch
from measuring import complete, device_of, make_engine, random_prompts, seconds_of
from options import Options
from report import Figures, Report
from transformers import AutoModelForCausalLM

from areal_actors.embedded.transformers import TransformersEngine

WARM_UP_TOKENS = 4


def measure(report: Report, options: Options) -> None:
    """Measure both at each concurrency; each is made once."""
    decoders = Decoders(options)
    report.case("engine is made", lambda: [{"seconds": seconds_of(device_of(options), lambda: decoders.engine)}])
    report.case("model is loaded", lambda: [{"seconds": seconds_of(device_of(options), lambda: decoders.model)}])
    for together in options.sizes.concurrency:
        for decoder in ("generate", "engine"):
            report.case(f"{together} together", partial(decoders.measure, decoder, together))
    decoders.close()


class Decoders:
    """The engine, with as many slots as the highest concurrency, and the model whose `generate` it is compared with."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._generated: dict[int, float] = {}
        """Tokens per second of `generate` by concurrency."""

    @cached_property
    def engine(self) -> TransformersEngine:
        """The embedded engine."""
        sizes = self._options.sizes
        return make_engine(
            self._options, sizes.dtype, max(sizes.concurrency), sizes.decode_prompt + sizes.decode_completion
        )

    @cached_property
    def model(self) -> Any:
        """The model of transformers, which does not end a completion before the wanted length."""
        dtype = getattr(torch, self._options.sizes.dtype)
        model: Any = AutoModelForCausalLM.from_pretrained(self._options.model, dtype=dtype)
        model.to(device_of(self._options)).eval()
        model.generation_config.eos_token_id = None
        return model

    def measure(self, decoder: str, together: int) -> Iterator[Figures]:
        """Yield the fastest of several runs. The engine ends a completion early where it samples the end token."""
        prompts = random_prompts(self._options, together, self._options.sizes.decode_prompt)
        self._speed(decoder, prompts, WARM_UP_TOKENS)
        runs = range(self._options.sizes.repeats)
        speed = max(self._speed(decoder, prompts, self._options.sizes.decode_completion) for _ in runs)
        if decoder == "generate":
            self._generated[together] = speed
        ratio = {"over_generate": speed / self._generated[together]} if together in self._generated else {}
        yield {"decoder": decoder, "tokens_per_second": speed, **ratio}

    def close(self) -> None:
        """End the engine's thread, if it was made."""
        if "engine" in vars(self):
            asyncio.run(self.engine.close())

    def _speed(self, decoder: str, prompts: list[list[int]], tokens: int) -> float:
        """Return tokens per second, from the first request to the last token."""
        if decoder == "generate":
            return len(prompts) * tokens / seconds_of(device_of(self._options), lambda: self._generate(prompts, tokens))
        began = time.perf_counter()
        completions = asyncio.run(complete(self.engine, prompts, tokens))
        return sum(map(len, completions)) / (time.perf_counter() - began)

    @torch.inference_mode()
    def _generate(self, prompts: list[list[int]], tokens: int) -> None:
        ids = torch.tensor(prompts, device=self.model.device)
        mask = torch.ones_like(ids)
        made = self.model.generate(
            ids, attention_mask=mask, max_new_tokens=tokens, do_sample=True, temperature=1.0, top_k=0
        )
        if made.shape[1] != ids.shape[1] + tokens:
            raise RuntimeError(f"generate returned {made.shape[1] - ids.shape[1]} tokens instead of {tokens}")
