"""Runs agents in this process, as coroutines or (`def run`) in threads. One agent object serves all episodes."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import os
import ssl
import sys
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from areal_actors.core.agent_host.agent_loader import address_arguments, make_agent, run_function, takes_client
from areal_actors.core.agent_host.faults import AgentLoadError, format_error
from areal_actors.core.agent_host.model_errors import traits_of
from areal_actors.core.errors import AgentError
from areal_actors.core.loading import load_named
from areal_actors.core.values import Task
from areal_actors.rollout.agent_runner import AgentResult, LoadedRunner, parse_result
from areal_actors.rollout.client_environment import set_client_environment
from areal_actors.rollout.threads import in_thread

T = TypeVar("T")


CONNECT_SECONDS = 10.0


def load_agent(agent: str, root: Path, options: Mapping[str, Any]) -> Any:
    """Load the agent of this name; a class is instantiated with these keyword arguments.

    Clients that it makes reach the gateway past the proxies of the environment, and need no key: they are made without
    one of their own where the environment has none, and the session is in their address.

    Raises:
        RecipeError: the name does not exist.
        AgentError: the options do not fit, or its class raises.
    """
    set_client_environment()
    try:
        return make_agent(load_named(agent, root), agent, options)
    except AgentLoadError as error:
        raise AgentError(str(error)) from error


async def await_agent(name: str, returning: Awaitable[T], model_errors: Sequence[str] = ()) -> T:
    """Await the agent's code; returns its value. `model_errors` names exceptions as in `task.model_errors`.

    Raises:
        AgentError: it raised; the message has the error and its line.
    """
    try:
        return await returning
    except asyncio.CancelledError as error:
        if (running := asyncio.current_task()) is not None and running.cancelling():
            raise
        raise AgentError(f"agent {name} raised {format_error(error)}") from error
    except (AgentError, GeneratorExit):
        raise
    except (
        BaseException
    ) as error:  # the agent is the user's code and may raise anything: pytest's outcomes are no `Exception`
        traits = traits_of(error, model_errors, Path.cwd())
        raise AgentError(f"agent {name} raised {format_error(error)}", traits) from error


def _verification() -> ssl.SSLContext | bool:
    """The authorities that the environment names, else the client's own.

    A client that does not trust the environment would not read them.
    """
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    return ssl.create_default_context(cafile=file, capath=folder) if file or folder else True


class InlineRunner(LoadedRunner):
    """Runs an agent object."""

    def __init__(self, agent: Any, name: str, model_errors: Sequence[str] = ()) -> None:
        """Check the agent; errors contain this name.

        Raises:
            AgentError: it has no function to run.
        """
        self.name = name
        self.model_errors = model_errors
        self._client: Any = None
        try:
            self._function = run_function(agent, name)
        except AgentLoadError as error:
            raise AgentError(str(error)) from error

    @classmethod
    def from_name(cls, agent: str, root: Path, options: Mapping[str, Any] | None = None) -> InlineRunner:
        """A runner of the agent of this name; also raises like `load_agent`."""
        return cls(load_agent(agent, root, options or {}), agent)

    async def run(self, task: Task, *, base_url: str, api_key: str) -> AgentResult:
        """See `AgentRunner.run`; a thread cannot be ended, only abandoned."""
        returning = self._result(dict(task.data), base_url=base_url, api_key=api_key)
        return await await_agent(self.name, returning, self.model_errors)

    def _http_client(self) -> Any:
        """The HTTP client that the episodes of agents with a parameter `http_client` share.

        One of their own would cost each 20 ms.
        It uses aiohttp, because the pool of httpx looks at every open connection before and after each call: with
        hundreds of episodes at once that is most of a call's CPU time. It has no timeout, since episodes have their
        own: a call that is sent again would be recorded twice. It takes no proxy from the environment: it calls the
        gateway only. Clients of OpenAI and of Anthropic take the same one.
        """
        if self._client is None:
            is_anthropic = "openai" not in sys.modules and "anthropic" in sys.modules
            sdk = importlib.import_module(
                "anthropic" if is_anthropic else "openai"
            )  # such agents have loaded it; the command line does not
            options = {
                "timeout": sdk.Timeout(None, connect=CONNECT_SECONDS),
                "trust_env": False,
                "verify": _verification(),
            }
            try:
                self._client = sdk.DefaultAioHttpClient(**options)
            except RuntimeError:  # an openai 2 without its extra `aiohttp`
                self._client = sdk.DefaultAsyncHttpxClient(**options)
        return self._client

    async def close(self) -> None:
        """Close the shared HTTP client; in the event loop of the agents."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    async def _result(self, task: dict[str, Any], **address: str) -> AgentResult:
        arguments = address_arguments(self._function, **address)
        if takes_client(self._function):
            arguments["http_client"] = self._http_client()
        call = (
            self._function
            if inspect.iscoroutinefunction(self._function)
            else functools.partial(in_thread, self._function)
        )
        returned = await call(task, **arguments)
        return parse_result(self.name, await returned if inspect.isawaitable(returned) else returned)
