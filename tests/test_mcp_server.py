"""The MCP server of runs, asked by the official client over stdio."""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

from mcp import Client, StdioServerParameters

ROOT = Path(__file__).parent.parent
LOG = str(ROOT / "tests/recordings/log-3.xz")


@asynccontextmanager
async def connected(folder):
    """A client of a server on this folder, as an assistant starts it."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'bus'}"}
    command = ["-m", "areal_actors.mcp_server", "--folder", str(folder)]
    async with Client(StdioServerParameters(command=sys.executable, args=command, env=environment)) as client:
        yield client


def text_of(result):
    return "".join(part.text for part in result.content)


async def test_an_assistant_asks_about_a_recorded_run(tmp_path):
    async with connected(tmp_path) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {
            "runs",
            "why",
            "show",
            "compare",
            "what_if",
        }
        assert "`why` names what limits a run" in client.instructions
        listed = text_of(await client.call_tool("show", {"run": LOG, "last": 3}))
        episode = listed.splitlines()[1].split()[0]
        shown = text_of(await client.call_tool("show", {"run": LOG, "episode": episode}))
        assert episode in shown
        assert "reward" in shown
        assert text_of(await client.call_tool("why", {"run": LOG})).strip()
        asked = await client.call_tool("what_if", {"run": LOG, "settings": ["algorithm.clip=0.1"]})
        assert not asked.is_error, text_of(asked)
        assert "algorithm.clip" in text_of(asked)


async def test_a_question_without_an_answer_is_an_error_that_names_it(tmp_path):
    async with connected(tmp_path) as client:
        unknown = await client.call_tool("why", {"run": "no-such-run"})
        assert unknown.is_error
        assert "no-such-run" in text_of(unknown)
        option = await client.call_tool("compare", {"runs": ["--folder=/"]})
        assert option.is_error
        assert "options are not passed on" in text_of(option)
