"""A gateway that encrypts: agents in the worker and in processes of their own verify it, here by SSL_CERT_FILE."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from support.authority import Authority
from support.gateway_harness import HELLO, GatewayHarness, opened
from support.samples import work

from areal_actors.core.errors import SetupError
from areal_actors.gateway.listening import encryption
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.rollout.inline_runner import InlineRunner

AGENT = """
import os, openai
client = openai.OpenAI(base_url=os.environ["URL"], api_key=os.environ["KEY"], max_retries=0)
print(client.models.list().data[0].object)
"""


class Looking:
    """An agent that is given the shared HTTP client."""

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str, http_client: Any = None) -> float:
        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
        return float(len((await client.models.list()).data))


def gateway(folder: Path, authority: Authority) -> GatewayHarness:
    issued = authority.issue(folder, "localhost")
    certificate = {"certificate": str(issued.certificate), "certificate_key": str(issued.key)}
    return GatewayHarness(GatewaySettings(host="127.0.0.1", advertise="localhost", **certificate))


async def process(session: Any, authority: Path) -> str:
    """Output and errors of an agent in a process of its own."""
    environment = {**os.environ, "URL": session.base_url, "KEY": session.api_key, "SSL_CERT_FILE": str(authority)}
    pipe, both = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", AGENT, env=environment, stdout=pipe, stderr=both)
    output, _ = await child.communicate()
    return output.decode()


async def test_clients_in_the_worker_and_in_processes_of_their_own_verify_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, another = Authority(), Authority()
    (tmp_path / "another").mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file(tmp_path)))
    async with opened(gateway(tmp_path, authority)) as harness:
        session = await harness.open()
        assert session.base_url.startswith("https://localhost:")
        runner = InlineRunner(Looking(), "looking")
        result = await runner.run(work().task, base_url=session.base_url, api_key=session.api_key)
        assert result.reward == 1.0
        await runner.close()
        async with anthropic.AsyncAnthropic(
            base_url=session.base_url.removesuffix("/v1"), api_key=session.api_key
        ) as client:
            assert (await client.messages.count_tokens(model="m", messages=HELLO)).input_tokens  # type: ignore[arg-type]
        assert "model" in await process(session, authority.file(tmp_path))
        assert "CERTIFICATE_VERIFY_FAILED" in await process(session, another.file(tmp_path / "another"))
        plain = openai.AsyncOpenAI(
            base_url=session.base_url.replace("https", "http"), api_key=session.api_key, max_retries=0
        )
        with pytest.raises(openai.APIConnectionError):
            await plain.models.list()


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    issued = Authority().issue(tmp_path, "localhost")
    issued.key.write_text("damaged")
    settings = GatewaySettings(certificate=str(issued.certificate), certificate_key=str(issued.key))
    with pytest.raises(SetupError, match=r"gateway\.certificate, gateway\.certificate_key: cannot be used"):
        encryption(settings)
