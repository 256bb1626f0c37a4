"""Choice of the decoder for a model, and its check at the start.

Decoding from slots has to reproduce the model's plain forward.
The difference is measured on text of the model's own chat template, since a trained model may have activations of a
thousand times the usual size on token ids that no text contains. What is allowed follows from the model's own rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_actors.core.errors import SetupError
from areal_actors.core.routes import RouteShape
from areal_actors.embedded.decoders import ModelDecoder, SlotDecoder
from areal_actors.embedded.fused_decoder import FusedDecoder
from areal_actors.generation.engines import server_engines
from areal_actors.generation.settings import StartCheck
from areal_actors.tokenization.tokenizer import ChatTokenizer

EXACT = 1e-3
"""Largest difference in nats that is always allowed."""
NOISE = 2.0
"""Allowed difference in multiples of `rounding_noise`. On 18 random models of 2 to 28 layers in bfloat16, flat and
sharp, sound decoding differed by at most 1.1 times their noise (0.0015 to 0.67 nats), and decoding at positions that
are wrong by one by at least 3.9 times."""
WRONG = 3.0
"""Multiple of the noise of bfloat16 from which decoding is wrong, rather than rounded in another order."""
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
PROBE_TOKENS = 12
CONVERSATION = (
    {"role": "user", "content": "What is the capital of France? Then count from one to five."},
    {"role": "assistant", "content": "The capital of France is Paris. One, two, three, four, five."},
)

logger = structlog.get_logger(__name__)


class DecodeCheck(NamedTuple):
    """Result of the check, each in nats of a sampled token's log-probability."""

    difference: float
    """Difference between decoding from slots and the plain forward."""
    allowed: float
    """Larger ones are reported."""
    refused: float
    """Larger ones refuse the model, unless `generation.start_check` is `warn`."""


def probe_ids(tokenizer: ChatTokenizer, vocabulary: int) -> NDArray[np.int64]:
    """Token ids of a short conversation in the model's own template.

    int64, at most `PROBE_TOKENS`; plain text without a template.
    A model with fewer token ids than its tokenizer gets its ids in order instead.
    """
    text = " ".join(message["content"] for message in CONVERSATION)
    ids = tokenizer.encode(tokenizer.render(list(CONVERSATION)) if tokenizer.template.source else text)
    probe = [token for token in ids if token < vocabulary][-PROBE_TOKENS:]
    return np.array(probe if len(probe) > 1 else [token % vocabulary for token in range(PROBE_TOKENS)], dtype=np.int64)


def make_decoder(
    model: Any,
    slots: int,
    context: int,
    probe: NDArray[np.int64],
    *,
    start_check: StartCheck = "refuse",
    batch_invariant: bool = False,
    routes: RouteShape | None = None,
    unfused: type[ModelDecoder] = ModelDecoder,
) -> tuple[SlotDecoder, str]:
    """Choose the fastest decoder that supports the model, and compare it with the model's plain forward.

    For most models that is `unfused`.

    Args:
        model: a causal language model of transformers.
        slots: rows of the KV cache.
        context: tokens of a row.
        probe: token ids of a text, as `probe_ids` gives them.
        start_check: `refuse` a model that is not reproduced, or `warn` only.
        batch_invariant: see `GenerationSettings`.
        routes: the model's mixtures of experts; the KV cache then holds the experts of each position, too.
        unfused: decoder of models without a fused forward.

    Returns:
        The decoder, and a sentence about a difference that was accepted with a warning; empty if there is none.

    Raises:
        SetupError: decoding from slots does not reproduce the model.
    """
    decoder: SlotDecoder
    if FusedDecoder.fits(model):
        decoder = FusedDecoder(model, slots, context, batch_invariant=batch_invariant)
    else:
        decoder = unfused(model, slots, context, batch_invariant=batch_invariant, routes=routes)
    check = check_decoder(decoder, model, probe)
    if check.difference < check.allowed:
        return decoder, ""
    finding = (
        f"decoding {type(model).__name__} from slots differs from its plain forward by {check.difference:.2g} nats in"
        f" the log-probability of a sampled token; {check.allowed:.2g} is what rounding explains"
    )
    servers = " or ".join(f'"{name}"' for name in server_engines())
    if start_check == "refuse" and not check.difference < check.refused:
        raise SetupError(
            f"{finding}, and {check.refused:.2g} is the most that is accepted: the embedded engine does not compute"
            f" this model; use an inference server (generation.engine = {servers}), or set generation.start_check ="
            ' "warn" and watch train_infer_logprob_diff_max'
        )
    logger.warning("the embedded engine rounds otherwise than the model's plain forward", finding=finding)
    return decoder, f"{finding}; the trainer's own measure is train_infer_logprob_diff_max"


def check_decoder(decoder: SlotDecoder, model: Any, probe: NDArray[np.int64]) -> DecodeCheck:
    """Measure the difference on the probe, and what the model's own rounding there allows."""
    probe = probe[: decoder.kv_cache.context]
    allowed = max(EXACT, NOISE * rounding_noise(model, probe, ROUNDING[model.dtype]))
    refused = max(1.5 * allowed, WRONG * rounding_noise(model, probe, ROUNDING[torch.bfloat16]))
    return DecodeCheck(sampled_logprob_difference(decoder, model, probe), allowed, refused)


def rounding_noise(model: Any, probe: NDArray[np.int64], rounding: float, samples: int = 4) -> float:
    """Expected difference in nats of a sampled token's log-probability if every embedding is changed by one rounding.

    Rounding has effects of this size anywhere in the model, so its own noise is the scale of the differences that its
    precision can show.
    """
    token_ids = torch.from_numpy(probe)[None].to(model.device)
    differences = []
    with torch.inference_mode():
        embedded = model.get_input_embeddings()(token_ids)
        plain = _logprobs(model(inputs_embeds=embedded).logits[0])
        for sample in range(samples):
            signs = (
                torch.randint(0, 2, embedded.shape, generator=torch.Generator().manual_seed(sample)).to(embedded) * 2
                - 1
            )
            changed = _logprobs(model(inputs_embeds=embedded * (1 + signs * rounding)).logits[0])
            differences.append(_expected_difference(plain, changed).max())
    return float(torch.stack(differences).mean())


def sampled_logprob_difference(decoder: SlotDecoder, model: Any, probe: NDArray[np.int64]) -> float:
    """Expected difference in nats between slot decoding and the plain forward, for a sampled token.

    It is of the token's log-probability, the largest of several positions, in rows of unequal length.
    """
    token_ids = probe[: decoder.kv_cache.context]
    length = len(token_ids)
    begun = length // 4
    starts = np.array([length // 2, begun])[: decoder.kv_cache.slots]
    with torch.inference_mode():
        plain = _logprobs(model(torch.from_numpy(token_ids)[None].to(model.device)).logits[0])
        if begun:
            decoder.prefill(range(len(starts)), np.stack([token_ids[:begun]] * len(starts)))
        if starts[0] > begun:
            decoder.extend([0], token_ids[None, begun : starts[0]], np.array([begun]), starts[:1] - begun)
        differences = []
        for step in range(length - int(starts[0])):
            logits = decoder.decode(token_ids[starts + step], starts + step)
            differences.append(_expected_difference(plain[starts + step], _logprobs(logits)).max())
        return float(torch.stack(differences).max())


def _logprobs(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits.float(), -1)


def _expected_difference(expected: Tensor, computed: Tensor) -> Tensor:
    """Difference `[positions]` of log-probabilities `[positions, vocabulary]` of a token sampled from the first."""
    return (expected.exp() * (computed - expected).abs()).sum(-1)
