"""Forward passes over slots: any causal language model of transformers, by its own forward."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.utils import logging as transformers_logging

from areal_actors.core.errors import SetupError
from areal_actors.core.model_config import context_of, has_vision
from areal_actors.core.routes import RouteShape
from areal_actors.embedded.kv_cache import DecodeStep, KVCache, SuffixStep
from areal_actors.embedded.route_capture import RouteCapture
from areal_actors.generation.settings import GenerationSettings
from areal_actors.weights.torch_device import torch_device


class SlotDecoder(Protocol):
    """Fills slots with prompts and decodes one token for each slot in use."""

    kv_cache: KVCache

    def prefill(self, rows: Sequence[int], token_ids: NDArray[np.int64]) -> None:
        """Write the keys and values of prompts [len(rows), tokens], padded at the end, into these rows."""
        ...

    def extend(
        self, rows: Sequence[int], token_ids: NDArray[np.int64], starts: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None:
        """Write the keys and values of tokens that follow cached ones.

        Row rows[i] gets the first counts[i] of token_ids[i] ([len(rows), max(counts)], padded at the end) from position
        starts[i] on.
        """
        ...

    def refresh(self) -> None:
        """Apply a change of the model's parameters; the caller prefills the slots again."""
        ...

    def decode(self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        """Feed row i its token at its position; float32 logits [rows, vocabulary] of the next token."""
        ...


class SlotLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """KV cache of one layer with the interface of a transformers cache layer."""

    is_sliding = False

    def __init__(self, kv_cache: KVCache, layer: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_initialized = True
        self.target: DecodeStep | SuffixStep | Tensor = torch.empty(0)
        """The step being decoded, the suffixes being added, or the rows being filled with prompts."""
        self._kv_cache = kv_cache
        self._layer = layer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the KV cache allocates its storage on the first write."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store new keys and values; returns all that attention may read."""
        if isinstance(self.target, DecodeStep):
            return self._kv_cache.write_tokens(self._layer, self.target, key_states, value_states)
        if isinstance(self.target, SuffixStep):
            return self._kv_cache.write_suffixes(self._layer, self.target, key_states, value_states)
        self._kv_cache.write_prompts(self._layer, self.target, key_states, value_states)
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Number of cached tokens; the longest row's where rows differ."""
        if isinstance(self.target, DecodeStep):
            return self.target.longest - 1
        return self.target.longest - self.target.width if isinstance(self.target, SuffixStep) else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that attention reads."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """Longest prompt plus completion."""
        return self._kv_cache.context


class ModelDecoder:
    """Runs the model's own forward on the slots' KV cache, with explicit positions and masks."""

    def __init__(
        self, model: Any, slots: int, context: int, *, batch_invariant: bool = False, routes: RouteShape | None = None
    ) -> None:
        """With `routes` the KV cache holds the experts of each position, too."""
        layers = model.config.get_text_config().num_hidden_layers
        self._capture = None if routes is None else RouteCapture(model.base_model, routes)
        self.kv_cache = KVCache(layers, slots, context, batch_invariant=batch_invariant)
        self._model = model
        self._layers = [SlotLayer(self.kv_cache, layer) for layer in range(layers)]
        # transformers renames the argument in 5.24, and keeps the earlier name, with a warning, until 5.40
        name = "cache" if "cache" in signature(type(model).forward).parameters else "past_key_values"
        self._cache = {name: Cache(layers=list(self._layers))}

    def refresh(self) -> None:
        """Do nothing: the model's own forward is used."""

    def prefill(self, rows: Sequence[int], token_ids: NDArray[np.int64]) -> None:
        """See `SlotDecoder.prefill`."""
        length = token_ids.shape[1]
        mask = torch.full(
            (length, length), torch.finfo(self._model.dtype).min, dtype=self._model.dtype, device=self._model.device
        ).triu_(1)
        targets = torch.tensor(rows, device=self._model.device)
        self._set_target(targets)
        positions = torch.arange(length, device=self._model.device)[None].expand(len(rows), -1)
        inputs = self.inputs(rows, token_ids, positions)
        self._model.base_model(**inputs, attention_mask=mask[None, None], use_cache=True, **self._cache)
        self._store_routes(targets)

    def extend(
        self, rows: Sequence[int], token_ids: NDArray[np.int64], starts: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None:
        """See `SlotDecoder.extend`."""
        step = SuffixStep(rows, starts, counts, self._model.device)
        self._set_target(step)
        inputs = self.inputs(rows, token_ids, step.positions)
        self._model.base_model(**inputs, attention_mask=step.mask(self._model.dtype), use_cache=True, **self._cache)
        self._store_routes(step)

    # See `VisionDecoder`
    def inputs(self, rows: Sequence[int], token_ids: NDArray[np.int64], positions: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        """Inputs of the base model for tokens of these rows at these positions, each `[len(rows), tokens]`."""
        return {"input_ids": torch.from_numpy(token_ids).to(self._model.device), "position_ids": positions}

    def rotary_positions(self, positions: Tensor) -> Tensor:
        """Positions of the rotary embedding `[rows]` for tokens at these positions of the KV cache, from row 0 on."""
        return positions

    def decode(self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        """See `SlotDecoder.decode`."""
        step = DecodeStep(positions, self._model.device, batch_invariant=self.kv_cache.batch_invariant)
        self._set_target(step)
        output = self._model(
            input_ids=torch.from_numpy(token_ids).to(self._model.device)[:, None],
            attention_mask=step.mask(1, self._model.dtype)[:, None],
            position_ids=self.rotary_positions(step.positions)[:, None],
            use_cache=True,
            **self._cache,
        )
        self._store_routes(step)
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def _store_routes(self, target: DecodeStep | SuffixStep | Tensor) -> None:
        if self._capture is not None:
            self.kv_cache.write_routes(target, self._capture.last())

    def _set_target(self, target: DecodeStep | SuffixStep | Tensor) -> None:
        for layer in self._layers:
            layer.target = target


def load_model(model_folder: str, settings: GenerationSettings) -> Any:
    """A transformers causal language model, ready to sample from.

    Raises:
        SetupError: the folder or the device is missing, or the context exceeds the model's.
    """
    if not Path(model_folder, "config.json").is_file():
        raise SetupError(
            f"`{model_folder}` holds no config.json: give the folder of a Hugging Face causal language model"
        )
    device = torch_device(settings.device, "generation.device")
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    kind = AutoModelForImageTextToText if has_vision(model_folder) else AutoModelForCausalLM
    model: Any = kind.from_pretrained(model_folder, dtype=getattr(torch, settings.dtype), local_files_only=True)
    check_context(model.config.get_text_config(), settings.max_model_len, context_of(model_folder))
    return model.to(device).eval().requires_grad_(False)


def check_context(config: Any, context: int, longest: int | None) -> None:
    """Refuse a context beyond the model's positions or attention window, and layers that do not attend to slots.

    `longest`: number of positions, if known.
    """
    if longest is not None and context > longest:
        raise SetupError(
            f"generation.max_model_len is {context} but the model has {longest} positions: lower"
            " generation.max_model_len"
        )
    window = getattr(config, "sliding_window", None) or context
    if context > window:
        raise SetupError(
            f"generation.max_model_len is {context} but the model attends to a window of {window}: lower"
            " generation.max_model_len"
        )
    unknown = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if unknown:
        raise SetupError(
            f"the embedded engine cannot decode layers of kind {', '.join(sorted(unknown))}: use an inference server"
        )
