from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Literal, Optional

import pydantic
import pytest
from openai.types.chat import ChatCompletionMessage

from areal_actors.library import tooling
from areal_actors.library.tool_schema import FunctionTool
from areal_actors.library.tooling import ToolFailed, ToolingEnv

SERVER = [sys.executable, str(Path(__file__).with_name("support") / "mcp_server.py")]


def wanted(name, arguments="{}", identifier="call_1"):
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


async def tool_result(env, name, **arguments):
    return (await env.call(wanted(name, json.dumps(arguments))))["content"]


class Colour(Enum):
    RED = "red"


class Place(pydantic.BaseModel):
    x: int
    y: int = 0


def everything(
    a: int,
    b: float,
    c: str,
    d: bool,  # noqa: FBT001
    e: Optional[int] = None,  # noqa: UP045
    f: list[str] = [],  # noqa: B006
    g: Literal["fast", "slow"] = "fast",
    h: Place | None = None,
    i: Colour = Colour.RED,
    j: Annotated[int, pydantic.Field(ge=0)] = 0,
    *,
    k: dict[str, int] | None = None,
) -> str:
    """Do everything at once.

    And more than that.

    Args:
        a: the first.
        b (float): the second,
            on two lines.
        d: the fourth: true or false.

    Returns:
        What came of it.
    """
    return f"{a} {b} {c} {d} {e} {f} {g} {h} {i} {j} {k}"


def test_a_schema_comes_from_signature_and_docstring():
    function = FunctionTool(everything).definition()["function"]
    properties = function["parameters"]["properties"]
    assert (function["name"], function["description"]) == (
        "everything",
        "Do everything at once.\n\nAnd more than that.",
    )
    assert function["parameters"]["required"] == ["a", "b", "c", "d"]
    assert function["parameters"]["additionalProperties"] is False
    assert properties["a"] == {"type": "integer", "description": "the first."}
    assert properties["b"] == {"type": "number", "description": "the second, on two lines."}
    assert (properties["c"], properties["d"]["type"]) == ({"type": "string"}, "boolean")
    assert properties["d"]["description"] == "the fourth: true or false."
    assert properties["e"] == {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}
    assert properties["f"] == {"type": "array", "items": {"type": "string"}, "default": []}
    assert properties["g"] == {"type": "string", "enum": ["fast", "slow"], "default": "fast"}
    assert properties["j"] == {"type": "integer", "minimum": 0, "default": 0}
    assert function["parameters"]["$defs"]["Place"]["required"] == ["x"]
    assert "title" not in json.dumps(function)


def test_a_parameter_may_be_called_title():
    assert set(FunctionTool(lambda title: title, name="t").definition()["function"]["parameters"]["properties"]) == {
        "title"
    }


@pytest.mark.parametrize(
    "documented",
    [
        "Add.\n\n    :param a: the first.\n    :param int b: the second.\n    ",
        (
            "Add.\n\n    Parameters\n    ----------\n    a : int\n        the first.\n    b : int\n        the"
            " second.\n    "
        ),
    ],
)
def test_other_styles_of_docstrings_are_read_too(documented):
    def add(a: int, b: int) -> int:
        return a + b

    add.__doc__ = documented
    function = FunctionTool(add).definition()["function"]
    assert function["description"] == "Add."
    assert [entry["description"] for entry in function["parameters"]["properties"].values()] == [
        "the first.",
        "the second.",
    ]


async def test_arguments_reach_a_function_with_their_types():
    async with ToolingEnv(everything) as env:
        given = await tool_result(env, "everything", a=1, b=2, c="x", d=True, h={"x": 3}, i="red", k={"z": 1}, e="7")
    assert given == "1 2.0 x True 7 [] fast x=3 y=0 Colour.RED 0 {'z': 1}"


def waits_for(event: asyncio.Event) -> None: ...


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (lambda *args: 1, r"can only pass arguments by name; replace `\*args`"),
        (lambda **kwargs: 1, r"replace `\*\*kwargs`"),
        (lambda a, /: 1, "replace `a`"),
        (waits_for, "tool f: Unable to generate pydantic-core schema for <class 'asyncio.locks.Event'>"),
    ],
)
def test_a_function_that_no_model_could_call_is_refused(function, complaint):
    with pytest.raises(TypeError, match=complaint):
        ToolingEnv().add(function, name="f")


def test_a_tool_needs_a_name_that_models_can_write():
    with pytest.raises(TypeError, match="invalid tool name '<lambda>'; give it a `name`"):
        ToolingEnv(lambda a: a)
    with pytest.raises(ValueError, match="two tools have the name everything"):
        ToolingEnv(everything, everything)


async def add(a: int, b: int = 1) -> dict[str, int]:
    return {"sum": a + b}


async def test_a_call_of_an_sdk_is_answered_by_a_message():
    message = ChatCompletionMessage.model_validate(
        {
            "role": "assistant",
            "tool_calls": [wanted("add", '{"a": 1}', "call_7"), wanted("add", '{"a": 2, "b": 2}', "call_8")],
        }
    )
    async with ToolingEnv(add) as env:
        assert await env.call_all(message) == [
            {"role": "tool", "tool_call_id": "call_7", "content": '{"sum":2}'},
            {"role": "tool", "tool_call_id": "call_8", "content": '{"sum":4}'},
        ]
        assert await env.call_all(SimpleNamespace(tool_calls=None)) == []
        assert (env.calls, env.failures) == (2, 0)


async def test_a_tool_answers_in_text_or_json():
    returned = iter(["text", None, 1.5, [Place(x=1)], object()])
    async with ToolingEnv() as env:
        env.add(lambda: next(returned), name="give")
        results = [await tool_result(env, "give") for _ in range(5)]
    assert results[:4] == ["text", "null", "1.5", '[{"x":1,"y":0}]']
    assert "object object at" in results[4]


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("none", "{}", "Error: there is no tool none; available: add, trouble"),
        ("add", "{a: 1}", "Error: the arguments are not JSON: Expecting property name"),
        ("add", "[1]", "Error: the arguments must be a JSON object, not '[1]'"),
        ("add", "{}", "Error: a: Field required"),
        (
            "add",
            '{"a": "x", "c": 1}',
            "Error: a: Input should be a valid integer, unable to parse string as an integer; c: Extra inputs",
        ),
        ("trouble", '{"kind": "ValueError"}', "Error: ValueError: so it is"),
        ("trouble", '{"kind": "SystemExit"}', "Error: SystemExit: so it is"),
        ("trouble", '{"kind": "CancelledError"}', "Error: CancelledError: so it is"),
        ("trouble", '{"kind": "TimeoutError"}', "Error: TimeoutError: so it is"),
        ("trouble", '{"kind": "ToolFailed"}', "Error: so it is"),
    ],
)
@pytest.mark.parametrize("plain", [True, False])
async def test_what_goes_wrong_is_the_tool_s_answer_and_is_counted(name, arguments, complaint, plain):
    kinds = {"CancelledError": asyncio.CancelledError, "ToolFailed": ToolFailed}

    def trouble(kind: str) -> None:
        raise (kinds.get(kind) or getattr(__import__("builtins"), kind))("so it is")

    async def async_trouble(kind: str) -> None:
        trouble(kind)

    async with ToolingEnv(add) as env:
        env.add(trouble if plain else async_trouble, name="trouble")
        results = await env.call(wanted(name, arguments))
        assert results["content"].startswith(complaint)
        assert (results["tool_call_id"], env.calls, env.failures) == ("call_1", 1, 1)


async def test_a_tool_has_a_deadline_and_others_go_on():
    async def slow() -> None:
        await asyncio.sleep(100)

    blocked = threading.Event()
    async with ToolingEnv(slow, timeout_seconds=0.02) as env:
        env.add(lambda: blocked.wait(300), name="blocking", timeout_seconds=0.01)
        assert await tool_result(env, "slow") == "Error: slow did not answer within 0.02 s"
        assert await tool_result(env, "blocking") == "Error: blocking did not answer within 0.01 s"
        blocked.set()


async def test_tools_belong_to_their_environment():
    first, second = ToolingEnv(add), ToolingEnv()
    assert [len(first.tools), len(second.tools)] == [1, 0]


async def test_cancelling_reaches_a_tool():
    reached = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            reached.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), ToolingEnv(slow) as env:
            await tool_result(env, "slow")
    assert reached.is_set()


# ---------------------------------------------------------------- MCP


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_an_mcp_server_over_stdio_is_started_asked_and_ended():
    async with ToolingEnv(add) as env:
        await env.connect(SERVER, prefix="abacus_", environment={"COLOUR": "red"}, timeout_seconds=8.0)
        names = [tool["function"]["name"] for tool in env.tools]
        assert names == ["add", "abacus_add", "abacus_who", "abacus_fail", "abacus_sleep", "abacus_die"]
        assert env.tools[1]["function"]["parameters"]["required"] == ["a", "b"]
        assert await tool_result(env, "abacus_add", a=1, b=2) == "3"
        pid, colour = (await tool_result(env, "abacus_who")).split()
        assert colour == "red"
        assert await tool_result(env, "abacus_fail", reason="so it is") == "Error: Error executing tool fail"
        assert (await tool_result(env, "abacus_add", a="x", b=2)).startswith("Error: ")
        assert await tool_result(env, "abacus_sleep", seconds=30) == "Error: abacus_sleep did not answer within 8 s"
        assert (env.calls, env.failures, is_alive(pid)) == (5, 3, True)
    assert not is_alive(pid)


async def test_a_server_that_dies_is_an_answer_too():
    async with ToolingEnv() as env:
        await env.connect(SERVER, timeout_seconds=10)
        assert (await tool_result(env, "die")).startswith("Error: ")
        assert (await tool_result(env, "add", a=1, b=2)).startswith("Error: ")


async def test_a_server_is_ended_when_its_episode_is_cancelled():
    pids = []

    async def episode():
        async with ToolingEnv() as env:
            await env.connect(SERVER)
            pids.append((await tool_result(env, "who")).split()[0])
            await tool_result(env, "sleep", seconds=0.2)
            await asyncio.sleep(100)

    running = asyncio.create_task(episode())
    while not pids:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not is_alive(pids[0])


async def test_an_mcp_server_over_http():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = await asyncio.create_subprocess_exec(*SERVER, str(port), stderr=asyncio.subprocess.DEVNULL)
    try:
        async with ToolingEnv() as env:
            for _ in range(200):
                try:
                    await env.connect(f"http://127.0.0.1:{port}/mcp")
                    break
                except ConnectionError:
                    await asyncio.sleep(0.05)
            assert await tool_result(env, "add", a=1, b=2) == "3"
    finally:
        server.kill()
        await server.wait()


@pytest.mark.parametrize(
    "server",
    [["/no/such/program"], ["true"], [sys.executable, "-c", "import time; time.sleep(100)"], "http://127.0.0.1:1/mcp"],
)
async def test_an_unreachable_server_is_reported_by_name(server, monkeypatch):
    monkeypatch.setattr(tooling, "CONNECT_SECONDS", 0.5)
    async with ToolingEnv() as env:
        with pytest.raises(ConnectionError, match=r"MCP server .* cannot be reached: ") as caught:
            await env.connect(server)
    assert (server if isinstance(server, str) else server[0]) in str(caught.value)


async def test_without_the_package_the_error_has_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ModuleNotFoundError, match="need the package `mcp`, version 2: pip install 'mcp>=2'"):
        await ToolingEnv().connect(SERVER)
