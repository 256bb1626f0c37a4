"""Forward passes over slots: any causal language model of transformers, or a fused equivalent for Llama architectures."""

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
from areal_actors.core.model_config import has_vision
from areal_actors.core.routes import RouteShape
from areal_actors.embedded.fused_decoder import FusedDecoder
from areal_actors.embedded.kv_cache import DecodeStep, KVCache, SuffixStep
from areal_actors.embedded.route_capture import RouteCapture
from areal_actors.generation.settings import GenerationSettings
from areal_actors.weights.torch_device import torch_device

EXACT = 1e-3
"""Maximum of `sampled_logprob_difference` between slot decoding and the plain forward in float32, in nats."""
NOISE = 2.0
"""The same in bfloat16, in multiples of `rounding_noise`. On 18 random models of 2 to 28 layers, flat and sharp, sound decoding differed
by at most 1.1 times their noise (0.0015 to 0.67 nats), and decoding at positions that are wrong by one by at least 3.9 times."""
BFLOAT16_ROUNDING = 2.0**-8
PROBE_TOKENS = 12


class SlotDecoder(Protocol):
    """Fills slots with prompts and decodes one token for each slot in use."""

    kv_cache: KVCache

    def prefill(self, rows: Sequence[int], token_ids: NDArray[np.int64]) -> None:
        """Write the keys and values of prompts [len(rows), tokens], padded at the end, into these rows."""
        ...

    def extend(self, rows: Sequence[int], token_ids: NDArray[np.int64], starts: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Write the keys and values of tokens that follow cached ones.

        Row rows[i] gets the first counts[i] of token_ids[i] ([len(rows), max(counts)], padded at the end) from position starts[i] on.
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

    def __init__(self, model: Any, slots: int, context: int, *, batch_invariant: bool = False, routes: RouteShape | None = None) -> None:
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
        mask = torch.full((length, length), torch.finfo(self._model.dtype).min, dtype=self._model.dtype, device=self._model.device).triu_(1)
        targets = torch.tensor(rows, device=self._model.device)
        self._set_target(targets)
        positions = torch.arange(length, device=self._model.device)[None].expand(len(rows), -1)
        inputs = self.inputs(rows, token_ids, positions)
        self._model.base_model(**inputs, attention_mask=mask[None, None], use_cache=True, **self._cache)
        self._store_routes(targets)

    def extend(self, rows: Sequence[int], token_ids: NDArray[np.int64], starts: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """See `SlotDecoder.extend`."""
        step = SuffixStep(rows, starts, counts, self._model.device)
        self._set_target(step)
        inputs = self.inputs(rows, token_ids, step.positions)
        self._model.base_model(**inputs, attention_mask=step.mask(self._model.dtype), use_cache=True, **self._cache)
        self._store_routes(step)

    def inputs(self, rows: Sequence[int], token_ids: NDArray[np.int64], positions: Tensor) -> dict[str, Tensor]:  # noqa: ARG002 - see `VisionDecoder`
        """Inputs of the base model for tokens of these rows at these positions, each `[len(rows), tokens]`."""
        return {"input_ids": torch.from_numpy(token_ids).to(self._model.device), "position_ids": positions}

    def rotary_positions(self, positions: Tensor) -> Tensor:
        """Positions of the rotary embedding `[rows]` for tokens at these positions of the KV cache, in the rows from 0 on."""
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
        raise SetupError(f"`{model_folder}` holds no config.json: give the folder of a Hugging Face causal language model")
    device = torch_device(settings.device, "generation.device")
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    kind = AutoModelForImageTextToText if has_vision(model_folder) else AutoModelForCausalLM
    model: Any = kind.from_pretrained(model_folder, dtype=getattr(torch, settings.dtype), local_files_only=True)
    check_context(model.config.get_text_config(), settings.max_model_len)
    return model.to(device).eval().requires_grad_(False)


def check_context(config: Any, context: int) -> None:
    """Refuse a context beyond the model's positions or its attention window, and layers that do not attend to slots."""
    longest = getattr(config, "max_position_embeddings", None) or context
    if context > longest:
        raise SetupError(f"generation.max_model_len is {context} but the model has {longest} positions: lower generation.max_model_len")
    window = getattr(config, "sliding_window", None) or context
    if context > window:
        raise SetupError(
            f"generation.max_model_len is {context} but the model attends to a window of {window}: lower generation.max_model_len"
        )
    unknown = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if unknown:
        raise SetupError(f"the embedded engine cannot decode layers of kind {', '.join(sorted(unknown))}: use an inference server")


def make_decoder(
    model: Any,
    slots: int,
    context: int,
    *,
    batch_invariant: bool = False,
    routes: RouteShape | None = None,
    unfused: type[ModelDecoder] = ModelDecoder,
) -> SlotDecoder:
    """Returns the fastest decoder that supports the model, `unfused` for most, after a comparison with the model's plain forward.

    With `routes`, its mixtures of experts, the KV cache holds the experts of each position, too.

    Raises:
        SetupError: decoding from slots does not reproduce the model.
    """
    decoder: SlotDecoder
    if FusedDecoder.fits(model):
        decoder = FusedDecoder(model, slots, context, batch_invariant=batch_invariant)
    else:
        decoder = unfused(model, slots, context, batch_invariant=batch_invariant, routes=routes)
    difference, bound = sampled_logprob_difference(decoder, model), logprob_bound(model)
    if not difference < bound:
        raise SetupError(
            f"decoding {type(model).__name__} from slots differs from its plain forward by {difference:.2g} nats in the log-probability of "
            f"a sampled token, and {bound:.2g} is allowed: the embedded engine cannot run this model; use an inference server"
        )
    return decoder


def logprob_bound(model: Any) -> float:
    """Largest `sampled_logprob_difference` of sound decoding, in nats."""
    return EXACT if model.dtype == torch.float32 else max(EXACT, NOISE * rounding_noise(model))


def rounding_noise(model: Any, samples: int = 4) -> float:
    """Expected difference in nats of a sampled token's log-probability if every embedding is changed by one rounding of bfloat16.

    Rounding has effects of this size anywhere in the model, so its own noise is the scale of the differences that its precision can show.
    """
    token_ids = torch.from_numpy(_probe_ids(PROBE_TOKENS, model))[None].to(model.device)
    found = []
    with torch.inference_mode():
        embedded = model.get_input_embeddings()(token_ids)
        plain = torch.log_softmax(model(inputs_embeds=embedded).logits[0].float(), -1)
        for sample in range(samples):
            signs = torch.randint(0, 2, embedded.shape, generator=torch.Generator().manual_seed(sample)).to(embedded) * 2 - 1
            changed = torch.log_softmax(model(inputs_embeds=embedded * (1 + signs * BFLOAT16_ROUNDING)).logits[0].float(), -1)
            found.append(_expected_difference(plain, changed).max())
    return float(torch.stack(found).mean())


def sampled_logprob_difference(decoder: SlotDecoder, model: Any) -> float:
    """Expected difference in nats between slot decoding and the plain forward in the log-probability of a sampled token.

    It is the largest of several positions, in rows of unequal length.
    """
    length = min(PROBE_TOKENS, decoder.kv_cache.context)
    begun = length // 4
    token_ids = _probe_ids(length, model)
    starts = np.array([length // 2, begun])[: decoder.kv_cache.slots]
    with torch.inference_mode():
        plain = torch.log_softmax(model(torch.from_numpy(token_ids)[None].to(model.device)).logits[0].float(), -1)
        if begun:
            decoder.prefill(range(len(starts)), np.stack([token_ids[:begun]] * len(starts)))
        if starts[0] > begun:
            decoder.extend([0], token_ids[None, begun : starts[0]], np.array([begun]), starts[:1] - begun)
        differences = []
        for step in range(length - int(starts[0])):
            logits = decoder.decode(token_ids[starts + step], starts + step)
            differences.append(_expected_difference(plain[starts + step], torch.log_softmax(logits, -1)).max())
        return float(torch.stack(differences).max())


def _probe_ids(length: int, model: Any) -> NDArray[np.int64]:
    vocabulary: int = model.config.get_text_config().vocab_size
    return np.arange(3, 3 + length, dtype=np.int64) % vocabulary


def _expected_difference(expected: Tensor, found: Tensor) -> Tensor:
    """Difference of log-probabilities `[positions, vocabulary]` of a token that is sampled from the first: `[positions]`."""
    return (expected.exp() * (found - expected).abs()).sum(-1)
