"""A light client for agents, with the call shape of the OpenAI SDK; `errors` has its errors by the SDK's names."""

import areal_actors.client.errors as errors  # noqa: PLR0402 - the other form imports this module, too
from areal_actors.client.light_client import LightClient

__all__ = ["LightClient", "errors"]
