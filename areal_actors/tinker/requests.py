"""Bodies of Tinker's requests in JSON. Unknown fields are accepted, and logged once each."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
import structlog

from areal_actors.core.errors import RequestError

logger = structlog.get_logger(__name__)

Body = TypeVar("Body", bound=msgspec.Struct)
LARGEST_RANK = 1024
LARGEST_RATE = 1.0


class LoraRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`lora_config`."""

    rank: Annotated[int, msgspec.Meta(le=LARGEST_RANK)]
    seed: int | None = None
    train_unembed: bool = True
    """Accepted; the unembedding is not adapted."""
    train_mlp: bool = True
    train_attn: bool = True


class AdamParams(msgspec.Struct, frozen=True, kw_only=True):
    """`adam_params` of an optimizer step."""

    learning_rate: Annotated[float, msgspec.Meta(ge=0, le=LARGEST_RATE)] = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0
    """Maximum norm of the whole gradient; 0 for none."""


class OptimizerChoice(msgspec.Struct, frozen=True, kw_only=True):
    """`optimizer_config`."""

    type: str = "adamw"


class CreateSession(msgspec.Struct, frozen=True, kw_only=True):
    """A client's session; models and samplers belong to one."""

    tags: list[str] = []
    user_metadata: dict[str, Any] | None = None
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = None
    type: str = ""


class SessionHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """Sent every ten seconds by a live client."""

    session_id: str
    type: str = ""


class CreateModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model to train: an adapter, or without `lora_config` all weights."""

    session_id: str
    model_seq_id: int
    base_model: str
    user_metadata: dict[str, Any] | None = None
    lora_config: LoraRequest | None = None
    optimizer_config: OptimizerChoice = OptimizerChoice()
    type: str = ""


class OfModel(msgspec.Struct, frozen=True, kw_only=True):
    """`get_info` and `unload_model`."""

    model_id: str
    type: str = ""


class OptimStep(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer step."""

    model_id: str
    adam_params: AdamParams | None = None
    optimizer_params: dict[str, Any] | None = None
    seq_id: int | None = None
    type: str = ""


class SaveWeights(msgspec.Struct, frozen=True, kw_only=True):
    """`save_weights`, and `save_weights_for_sampler`, whose weights are temporary without a `path`."""

    model_id: str
    path: str | None = None
    seq_id: int | None = None
    sampling_session_seq_id: int | None = None
    kind: str = "snapshot"
    """`inflight` is served as a snapshot: weights as new as those of the call, or newer, are what it promises."""
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None
    type: str = ""


class LoadWeights(msgspec.Struct, frozen=True, kw_only=True):
    """Loads a checkpoint into a model, or with `session_id` creates a model from it."""

    path: str
    optimizer: bool
    model_id: str | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = None
    base_model: str | None = None
    user_metadata: dict[str, Any] | None = None
    optimizer_config: OptimizerChoice | None = None
    weights_access_token: str | None = None
    type: str = ""


class CreateSamplingSession(msgspec.Struct, frozen=True, kw_only=True):
    """A sampler of saved weights or of the base model."""

    session_id: str
    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None
    type: str = ""


class JoinSamplingSession(msgspec.Struct, frozen=True, kw_only=True):
    """A further client of a sampler."""

    sampling_session_id: str
    type: str = ""


class SamplingRequestParams(msgspec.Struct, frozen=True, kw_only=True):
    """`sampling_params`."""

    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str | int] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Completions of one prompt."""

    prompt: dict[str, Any]
    sampling_params: SamplingRequestParams
    num_samples: int = 1
    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    seq_id: int | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: dict[str, Any] | None = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None
    record_stability_info: bool | None = None
    type: str = ""


class RetrieveFuture(msgspec.Struct, frozen=True, kw_only=True):
    """Waits for the result of a request."""

    request_id: str
    model_id: str | None = None
    allow_metadata_only: bool = False


class CancelFuture(msgspec.Struct, frozen=True, kw_only=True):
    """Cancels a sampling request."""

    request_id: str


class WeightsInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the base model of a checkpoint."""

    tinker_path: str


class UnknownFields:
    """Logs the first occurrence of each field that no request has."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def read(self, data: bytes, kind: type[Body]) -> Body:
        """Read a body.

        Raises:
            RequestError: it is no JSON object, or a field is missing or has another type.
        """
        try:
            body = msgspec.json.decode(data or b"{}")
            converted = msgspec.convert(body, kind)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RequestError(f"the body is no valid {kind.__name__}: {error}") from error
        for name in body.keys() - set(kind.__struct_fields__):
            if (kind.__name__, name) not in self._seen:
                self._seen.add((kind.__name__, name))
                logger.warning(
                    "a request has a field that this server does not know and ignores",
                    request=kind.__name__,
                    field=name,
                )
        return converted
