"""AReaL's `VisionRLVRWorkflow`: one prompt with pictures, one completion, one reward."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import Any

from areal_actors.compat.areal import stats_tracker, workflow_context
from areal_actors.compat.areal.client import RecordingOpenAI
from areal_actors.compat.areal.engine import InferenceEngine
from areal_actors.compat.areal.generation import GenerationHyperparameters
from areal_actors.compat.areal.interactions import TokenInteraction
from areal_actors.compat.areal.rlvr import RLVRWorkflow
from areal_actors.core.errors import AgentError


class VisionRLVRWorkflow(RLVRWorkflow):
    """Rows have `messages`, whose places of pictures (`{"type": "image"}`) take those of `images` in order.

    The gateway's processor places the tokens of pictures, as in training; `processor` is accepted without effect.
    """

    def __init__(
        self,
        reward_fn: Callable[..., Any] | str,
        gconfig: GenerationHyperparameters,
        tokenizer: Any,
        processor: Any = None,
        enable_thinking: bool = False,  # noqa: FBT001, FBT002 - AReaL's signature
    ) -> None:
        """Functions may be given by name (`package.module.function`), a tokenizer by its folder or hub id."""
        del processor
        super().__init__(reward_fn, gconfig, tokenizer, enable_thinking)

    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> dict[str, TokenInteraction]:
        """Sample one completion and score it.

        Raises:
            AgentError: the messages have not as many places of pictures as there are pictures.
        """
        client = RecordingOpenAI(engine, tokenizer=self.tokenizer)
        answer = await client.chat.completions.create(
            messages=place_images(data["messages"], data["images"]),
            **self.gconfig.to_openai_args_dict(exclude_args=["n_samples"]),
        )
        tokens = engine.calls[answer.id]
        texts = self.tokenizer.decode(tokens.prompt_token_ids), self.tokenizer.decode(tokens.token_ids)
        reward = await self.reward_fn(*texts, tokens.prompt_token_ids, tokens.token_ids, **data)
        stats_tracker.get(workflow_context.stat_scope()).scalar(reward=reward)
        client.set_reward(answer.id, reward)
        return client.export_interactions("individual")


def place_images(messages: str | list[dict[str, Any]], images: list[Any]) -> list[dict[str, Any]]:
    """Returns messages of the OpenAI API with the pictures in them; those of a text come before it.

    Raises:
        AgentError: the numbers of places and pictures differ.
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": [*({"type": "image"} for _ in images), _as_part(messages)]}]
    contents = [message["content"] for message in messages]
    places = sum(_is_place(part) for content in contents if isinstance(content, list) for part in content)
    if places != len(images):
        raise AgentError(f"a row has {len(images)} images, and {places} places for them in `messages`")
    remaining = iter(images)
    return [{**message, "content": _fill_places(message["content"], remaining)} for message in messages]


def _fill_places(content: Any, images: Iterator[Any]) -> Any:
    if not isinstance(content, list):
        return content
    return [
        {"type": "image_url", "image_url": {"url": image_url(next(images))}} if _is_place(part) else part
        for part in content
    ]


def _is_place(part: Mapping[str, Any]) -> bool:
    return part.get("type") == "image"


def _as_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def image_url(image: Any) -> str:
    """Returns a picture (a PIL image, or bytes of a file) as a data URL."""
    if not isinstance(image, bytes):
        file = BytesIO()
        image.convert("RGB").save(file, format="PNG")
        image = file.getvalue()
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def image2base64(images: Any) -> list[str]:
    """Return pictures as base64, without the beginning of a data URL."""
    given = images if isinstance(images, list | tuple) else [images]
    return [image_url(image).partition(",")[2] for image in given]
