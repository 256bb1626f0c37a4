"""The model behind the gateway: its tokenizer with the recipe's chat template, and its answer format.

The format is tested before the first call.
"""

from __future__ import annotations

from collections.abc import Callable

from areal_actors.core.model_config import has_vision, route_shape_of, vocabulary_of
from areal_actors.gateway.completion import ServedModel
from areal_actors.gateway.completion_check import PublishedVersions
from areal_actors.gateway.conversations.continuation import Continuations
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.gateway.template_settings import apply_template_settings
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.vision.processor import vision_of

LoadTokenizer = Callable[[str], ChatTokenizer]
"""Loads the chat tokenizer of a model folder."""


def load_served_model(
    load_tokenizer: LoadTokenizer,
    folder: str,
    config: GatewaySettings,
    published: PublishedVersions,
    max_model_len: int,
    *,
    trains: bool,
    records_routes: bool = False,
) -> ServedModel:
    """Load what the gateway needs of a model, and test its answer format with known tool calls.

    `trains` if its calls are trained.
    With `records_routes` its mixtures of experts, if it has some, are among it.

    Raises:
        SetupError: the folder has no usable tokenizer, or a setting does not fit its chat template.
    """
    chat = load_tokenizer(folder)
    tested = apply_template_settings(chat, config)
    return ServedModel(
        Continuations(chat, tested.kept, vision_of(folder) if has_vision(folder) else None),
        published,
        vocabulary=vocabulary_of(folder) or chat.largest_id + 1,
        max_model_len=max_model_len,
        answer_seconds=config.completion_seconds,
        temperature_policy=config.temperature_policy if trains else None,
        tools=tested.tools,
        routes=route_shape_of(folder) if records_routes else None,
    )
