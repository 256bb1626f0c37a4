"""The runs of a folder as an MCP server over stdio, so that a coding assistant can ask about them.

`python -m areal_actors.mcp_server --folder runs` has the tools `runs`, `why`, `show`, `compare` and `what_if`: the
commands of the same names, which only read. docs/coding-assistants.md has the line for an assistant's configuration.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from areal_actors.core.errors import ArealError, SetupError
from areal_actors.core.extras import install_command

ANSWER_SECONDS = 120.0
LONGEST = 60_000
"""Maximum number of characters of an answer: what an assistant can read; the end of a longer one is left out."""
INSTRUCTIONS = (
    "Runs of areal-actors, reinforcement learning of language-model agents. Begin with `runs`; `why` names what limits"
    " a run and what to change; `show` lists episodes, or prints one call by call; `compare` has several runs beside"
    " each other; `what_if` recomputes a run under other settings without sampling. An empty run is the latest."
)

OPTIONS = ("--last", "--step", "--task")
"""Options that the tools themselves pass on."""
RunName = Annotated[str, Field(description="Name of a run, as `runs` lists it; empty for the latest")]
RunNames = Annotated[list[str], Field(description="Names of runs, as `runs` lists them", min_length=1)]
Episode = Annotated[str, Field(description="Name of an episode, as in 12.3; empty for a list")]
TaskId = Annotated[str, Field(description="List only episodes of this task")]
Step = Annotated[int | None, Field(description="List only episodes that this step trained")]
Last = Annotated[int, Field(description="Number of episodes in the list", ge=1, le=200)]
Settings = Annotated[list[str], Field(description="KEY=VALUE: algorithm.clip=0.1, reward=FILE.py:FUNCTION")]


class CommandProcesses:
    """The commands on the runs of a folder, each as a process that reads and ends."""

    def __init__(self, folder: Path, failure: type[Exception]) -> None:
        """`failure`: the error whose text an assistant gets."""
        self.folder = folder.absolute()
        self._failure = failure

    async def answer(self, command: str, *words: str, in_folder: bool = True) -> str:
        """Returns what a command prints.

        Raises the failure: a word would be an option, or the command failed; the message has its error.
        """
        if option := next((word for word in words if word.startswith("-") and word not in OPTIONS), None):
            raise self._failure(f"{option}: options are not passed on; name a run, an episode or KEY=VALUE")
        place = ("--folder", str(self.folder)) if in_folder else ()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "areal_actors", command, *words, *place),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"NO_COLOR": "1", "COLUMNS": "120"},
        )
        try:
            printed, errors = await asyncio.wait_for(process.communicate(), ANSWER_SECONDS)
        except TimeoutError:
            raise self._failure(f"{command}: no answer within {ANSWER_SECONDS:g} s; ask for less") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise self._failure(errors.decode(errors="replace").strip() or f"{command} ended with {process.returncode}")
        text = printed.decode(errors="replace")
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}\n… {len(text) - LONGEST} more characters\n"

    def path(self, run: str) -> str:
        """Returns the folder of a run of this name, else the word: another folder, or an exported log."""
        return str(self.folder / run) if (self.folder / run).is_dir() and run else run


class RunTools:
    """The tools of a server; names, descriptions and parameters are those that an assistant reads."""

    def __init__(self, commands: CommandProcesses) -> None:
        self._commands = commands

    async def runs(self) -> str:
        """List the runs of the folder: status, steps, first and last reward and held-out result."""
        return await self._commands.answer("runs")

    async def why(self, run: RunName = "") -> str:
        """Name what limits a run, with figures, and what to change."""
        return await self._commands.answer("why", *filter(None, (run,)))

    async def show(
        self, run: RunName = "", episode: Episode = "", task: TaskId = "", step: Step = None, last: Last = 20
    ) -> str:
        """List the latest episodes of a run, or print one call by call with prompt, completion and reward."""
        filters = [*(["--task", task] if task else []), *([] if step is None else ["--step", str(step)])]
        return await self._commands.answer("show", *filter(None, (run, episode)), "--last", str(last), *filters)

    async def compare(self, runs: RunNames) -> str:
        """Compare runs: settings that differ, results, held-out intervals."""
        return await self._commands.answer("compare", *runs)

    async def what_if(self, settings: Settings, run: RunName = "") -> str:
        """Recompute what a recorded run would have trained under other settings; nothing is sampled."""
        words = [*filter(None, (self._commands.path(run),)), *settings]
        return await self._commands.answer("what-if", *words, in_folder=False)


def build_server(folder: Path) -> Any:
    """Returns the server with the tools of this folder.

    Raises:
        SetupError: the package `mcp` is not installed.
    """
    try:
        mcp = importlib.import_module("mcp.server")
        failure = importlib.import_module("mcp.server.mcpserver.exceptions").ToolError
    except ModuleNotFoundError as error:
        raise SetupError(f"an MCP server of runs needs mcp: {install_command(['mcp'])}") from error
    server = mcp.MCPServer("areal-actors", instructions=INSTRUCTIONS)
    tools = RunTools(CommandProcesses(folder, failure))
    for tool in (tools.runs, tools.why, tools.show, tools.compare, tools.what_if):
        server.tool()(tool)
    return server


def main(words: Sequence[str] | None = None) -> int:
    """Serve until standard input ends; returns the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description="Serve runs over MCP, on stdio.")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs"), help="where runs are written (default: %(default)s)"
    )
    options = parser.parse_args(words)
    try:
        build_server(options.folder).run("stdio")
    except ArealError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
