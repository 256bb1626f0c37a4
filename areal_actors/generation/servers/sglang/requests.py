"""Requests for tokens in SGLang's protocol, and the answers to them."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import Any

from areal_actors.core.errors import EngineError
from areal_actors.core.values import SamplingParams
from areal_actors.generation.servers.dialect import Segment, SegmentPart
from areal_actors.generation.servers.server_process import ServerClient

CONSTRAINTS = {"json_schema": "json_schema", "regex": "regex", "lark": "ebnf"}
"""Names of SGLang; its `ebnf` takes llguidance's grammars as they are."""


def adapter_fields(segment: Segment) -> dict[str, str]:
    """The adapter that samples, if one does."""
    return {"lora_path": segment.adapter} if segment.adapter else {}


def routes_fields(segment: Segment) -> dict[str, Any]:
    """The request for the experts of the positions that are wanted, if any are."""
    if segment.routes_from is None:
        return {}
    return {"return_routed_experts": True, "routed_experts_start_len": segment.routes_from}


def prompt_fields(segment: Segment, token_ids: Sequence[int]) -> dict[str, Any]:
    """The prompt's fields: SGLang takes one placeholder for each image, and expands it itself."""
    if segment.images is None:
        return {"input_ids": token_ids}
    collapsed: list[int] = []
    end = 0
    for image in segment.images.images:
        collapsed += token_ids[end : image.start + 1]
        end = image.start + image.tokens
    files = [str(segment.images.folder.file(image.digest).absolute()) for image in segment.images.images]
    return {"input_ids": [*collapsed, *token_ids[end:]], "image_data": files}


def sampling_fields(segment: Segment) -> dict[str, Any]:
    """SGLang's `sampling_params`; what is unset is left out, so that its defaults hold."""
    sampling: SamplingParams = segment.sampling
    chosen: dict[str, Any] = {
        "max_new_tokens": segment.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "stop_token_ids": list(segment.stop_ids),
        "skip_special_tokens": False,
    }
    if sampling.presence_penalty:
        chosen["presence_penalty"] = sampling.presence_penalty
    if sampling.frequency_penalty:
        chosen["frequency_penalty"] = sampling.frequency_penalty
    if sampling.logit_bias:
        chosen["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias.items()}
    if sampling.constraint is not None:
        chosen[CONSTRAINTS[sampling.constraint.kind]] = sampling.constraint.text
    return chosen


def read_part(server: ServerClient, answer: Any, segment: Segment) -> SegmentPart:
    """Returns the tokens of an answer, or of the next difference of a streamed one.

    Raises:
        EngineError: there are none, or SGLang has made other tokens of a prompt with images.
    """
    if not isinstance(answer, dict) or "meta_info" not in answer:
        raise server.refusal_error(500, answer)
    meta = answer["meta_info"]
    if segment.images is not None and (prompt_tokens := meta.get("prompt_tokens")) not in (
        None,
        0,
        len(segment.token_ids),
    ):
        expected = f"{len(segment.token_ids)} tokens with images"
        raise EngineError(
            f"SGLang at {server.url} has made {prompt_tokens} tokens of a prompt of {expected}; its image processor is"
            " another one"
        )
    pairs = meta.get("output_token_logprobs") or []
    top = meta.get("output_top_logprobs") or []
    reason = meta.get("finish_reason") or {}
    return SegmentPart(
        token_ids=[token_id for _, token_id, _ in pairs],
        logprobs=[logprob for logprob, _, _ in pairs],
        top=[[(token_id, logprob) for logprob, token_id, _ in row] for row in top],
        finish_reason=reason.get("type", ""),
        cached_tokens=meta.get("cached_tokens", 0) if reason else 0,
        routes=b64decode(meta.get("routed_experts") or ""),
    )
