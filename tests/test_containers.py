"""Containers by a real runtime: of agents, which reach their gateway and nothing else, and of the commands of tools."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from support import sandbox_reach as reach
from support.clock import until
from support.container_image import image
from support.live_run import ROOT

from areal_actors.containers import Container
from areal_actors.containers.runtime import Mount, container_name, find_runtime
from areal_actors.core.container_settings import ContainerSettings
from areal_actors.core.errors import AgentError, SetupError
from areal_actors.core.task_settings import TaskSettings
from areal_actors.core.values import Task
from areal_actors.rollout.container_process import container_program
from areal_actors.rollout.subprocess_runner import SubprocessRunner

pytestmark = pytest.mark.slow
AGENT = """
import json, os, socket, time, urllib.request

class Agent:
    def run(self, task, *, base_url, api_key):
        {body}
"""
ASKING = """
request = urllib.request.Request(base_url + "/models", headers={"Authorization": "Bearer " + api_key})
with urllib.request.urlopen(request, timeout=60) as answer:
    return json.load(answer)["data"] + task["word"]
"""


def containers() -> list[str]:
    listed = subprocess.run(
        ["podman", "ps", "--all", "--format", "{{.Names}}"], stdout=subprocess.PIPE, check=True, text=True
    )
    return listed.stdout.split()


def own_containers() -> list[str]:
    """Names of the containers of this process."""
    owner = container_name().rpartition("-")[0]
    return [name for name in containers() if name.startswith(owner)]


async def gone(name: str) -> None:
    await until(lambda: name not in containers())


@asynccontextmanager
async def gateway():
    """The address of a server that answers who asks."""

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": f"{request.headers['Authorization']} on {request.host}: "})

    application = web.Application()
    application.router.add_get("/{path:.+}", models)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def agents(folder: Path, body: str = ASKING, processes: int = 1, episodes: int = 1, **settings):
    (folder / "agents").mkdir(exist_ok=True)
    (folder / "agents" / "mine.py").write_text(AGENT.format(body=textwrap.indent(body.strip(), " " * 8).strip()))
    container = ContainerSettings(image=image(), **{"cpus": 0.0, **settings.pop("container", {})})
    task = TaskSettings(runner="container", container=container, **{"agent": "agents/mine.py:Agent", **settings})
    runner = SubprocessRunner(container_program(task, folder), processes=processes, episodes_per_process=episodes)
    try:
        await runner.start()
        yield runner
    finally:
        await runner.close()


async def episode(runner, base_url="http://127.0.0.1:1/v1", **data):
    return await runner.run(Task(id="t", data=data), base_url=base_url, api_key="sk-7")


async def test_an_agent_in_a_container_reaches_the_gateway_of_its_episode(tmp_path):
    async with gateway() as first, gateway() as second, agents(tmp_path, episodes=2) as runner:
        for base_url in (first, second):
            result = await episode(runner, base_url, word="hello")
            assert result.output == "Bearer sk-7 on 127.0.0.1:17429: hello"
    assert own_containers() == []


async def test_it_reaches_no_other_address_and_no_file_of_this_machine(tmp_path):
    (tmp_path / "secret").write_text("x")
    body = f"""
reached = []
for address in (("9.9.9.9", 53), ("127.0.0.1", int(task["port"]))):
    try:
        socket.create_connection(address, 2)
        reached.append(str(address))
    except OSError:
        pass
reached += [path for path in ({str(tmp_path / "secret")!r}, "/workspace/secret") if os.path.exists(path)]
return json.dumps([reached, os.listdir("/workspace"), sorted(os.environ)])
"""
    async with gateway() as base_url, agents(tmp_path, body) as runner:
        port = base_url.rpartition(":")[2].partition("/")[0]
        reached, workspace, variables = json.loads((await episode(runner, port=port)).output)
    assert reached == []
    assert workspace == ["agents"]
    assert not {"NATS_URL", "VIRTUAL_ENV", "PYTHONPATH", "PYTEST_CURRENT_TEST"} & set(variables)
    assert {"OPENAI_BASE_URL", "OPENAI_API_KEY"} <= set(variables)


async def test_each_episode_has_a_new_container(tmp_path):
    body = """
seen = os.path.exists("/tmp/left")
open("/tmp/left", "w").write("x")
return str(seen)
"""
    async with agents(tmp_path, body) as runner:
        assert [(await episode(runner)).output for _ in range(2)] == ["False", "False"]
    async with agents(tmp_path, body, episodes=2) as runner:
        assert [(await episode(runner)).output for _ in range(2)] == ["False", "True"]


async def test_a_container_that_ends_is_a_failure_of_the_agent_and_named(tmp_path):
    async with agents(tmp_path, "print('so far', flush=True); os._exit(3)") as runner:
        with pytest.raises(AgentError, match=r"(?s)exit status 3.*so far"):
            await episode(runner)
    async with agents(tmp_path, "return 1.0 if bytearray(2 << 30) else 0.0", memory_mb=256) as runner:
        with pytest.raises(AgentError, match="SIGKILL"):
            await episode(runner)
    async with agents(tmp_path, "raise ValueError('no answer')") as runner:
        with pytest.raises(AgentError, match=r"ValueError: no answer at mine.py"):
            await episode(runner)


async def test_an_episode_beyond_its_time_leaves_no_container(tmp_path):
    async with agents(tmp_path, "time.sleep(600)") as runner:
        (before,) = own_containers()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await episode(runner)
        await gone(before)


async def test_a_command_of_the_image_is_an_agent(tmp_path):
    code = 'echo "$OPENAI_BASE_URL"; cat; echo; echo "{\\"output\\": \\"$(id -u) $(ls /data)\\"}"'
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "row.txt").write_text("1")
    settings = {"agent": "", "command": ("/bin/sh", "-c", code)}
    async with agents(tmp_path, container={"mounts": ("rows:/data",), "user": "1000:1000"}, **settings) as runner:
        assert (await episode(runner)).output == "1000 row.txt"


@pytest.mark.long
async def test_forty_agents_at_once(tmp_path):
    async with gateway() as base_url, agents(tmp_path, processes=40) as runner:
        results = await asyncio.gather(*(episode(runner, base_url, word=str(number)) for number in range(40)))
    assert sorted(int(result.output.rpartition(" ")[2]) for result in results) == list(range(40))
    assert own_containers() == []


async def test_an_image_without_python_is_named_before_an_episode(tmp_path):
    with pytest.raises(SetupError, match=r"(?s)needs a Python interpreter.*no-python"):
        async with agents(tmp_path, python="no-python"):
            pass


async def test_commands_of_a_tool_run_in_a_container():
    async with Container(image()) as container:
        assert (await container.run("cat; exit 3", stdin="so\n")).output == "so\n"
        assert (await container.run("exit 3")).status == 3
        assert (await container.run(["python3", "-c", "print(6 * 7)"])).output == "42\n"
        await container.run("echo kept > /tmp/file")
        assert (await container.run("cat /tmp/file")).output == "kept\n"
        long = await container.run("head -c 1000000 /dev/zero | tr '\\0' x; echo END", longest=1000)
        assert "bytes left out" in long.output
        assert long.output.endswith("END\n")
        assert len(long.output) < 1100
        connect = "import socket; socket.create_connection(('9.9.9.9', 53), 2)"
        assert (await container.run(["python3", "-c", connect])).status == 1
    assert container.name not in containers()


async def test_a_command_beyond_its_time_is_killed_with_all_that_it_started():
    async with Container(image()) as container:
        started = time.monotonic()
        result = await container.run("echo begun; sleep 600 & sleep 600", seconds=2)
        assert result.timed_out
        assert time.monotonic() - started < 60
        assert "sleep" not in (await container.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).output.replace("cat", "")
        call = asyncio.create_task(container.run("sleep 601"))
        await asyncio.sleep(1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert "601" not in (await container.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).output


async def test_a_container_does_not_outlive_a_process_that_is_killed(tmp_path):
    code = f"""
import asyncio
from areal_actors.containers import Container
async def main():
    async with Container({image()!r}) as container:
        print(container.name, flush=True)
        await container.run("sleep 600", seconds=600)
asyncio.run(main())
"""
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - its end is what is awaited
    assert owner.stdout is not None
    name = owner.stdout.readline().strip()
    assert name in containers()
    with owner:
        owner.send_signal(signal.SIGKILL)
    await gone(name)


async def test_what_an_ended_owner_left_is_removed_and_what_others_have_is_not():
    runtime, mine = find_runtime("podman"), container_name()
    host, _, rest = mine.removeprefix("areal-").rpartition("-")[0].rpartition("-")[0].rpartition("-")
    left, foreign = f"areal-{host}-{rest}-1-00000000", "areal-elsewhere-1-1-00000000"
    for name in (left, foreign, mine):
        words = runtime.run_words(ContainerSettings(cpus=0.0), name=name, image=image(), command=("sleep", "600"))
        subprocess.run([*words[:2], "--detach", *words[2:]], check=True, stdout=subprocess.DEVNULL)  # noqa: ASYNC221
    try:
        assert runtime.remove_left() == [left]
        assert {foreign, mine} <= set(containers())
    finally:
        for name in (foreign, mine):
            await runtime.remove(name)


async def test_mounts_are_read_only_unless_asked(tmp_path):
    mounts = (Mount(tmp_path, "/given"), Mount(tmp_path, "/out", is_writable=True))
    async with Container(image(), mounts=mounts) as container:
        assert (await container.run("touch /given/x")).status
        assert not (await container.run("touch /out/y")).status
    assert [path.name for path in tmp_path.iterdir()] == ["y"]


@pytest.mark.long
async def test_what_a_model_s_program_reaches_in_a_container_is_as_documented(tmp_path, monkeypatch):
    monkeypatch.setenv("AREAL_REACH_PROBE", "x")
    with reach.surroundings(tmp_path) as there:
        results = {}
        for name, code in reach.deeds(there).items():
            async with Container(image(), memory_mb=512) as container:
                ran = await container.run(["python3", "-c", code], seconds=reach.SECONDS)
                results[name] = "reached" if re.search(f"^{reach.REACHED}$", ran.output, re.MULTILINE) else "no"
            assert container.name not in containers(), name
        assert not (there.folder.path / "planted").exists()
        assert not Path("/tmp/areal-reach-probe").exists()
    documented = dict(re.findall(r"\| (\w+: [^|]+) \| (no|reached)", (ROOT / "docs" / "containers.md").read_text()))
    assert documented == results


@pytest.mark.parametrize(
    ("container", "complaint"),
    [
        ({}, r"`task\.container\.image`: found none"),
        (
            {"image": "no/such:image"},
            r"`task\.container\.image`: there is no image no/such:image .* pull no/such:image",
        ),
        ({"image": "x", "runtime": "no-runtime"}, r"`task\.container\.runtime`: `no-runtime` is not installed"),
        ({"image": "x", "mounts": ["no-folder"]}, r"`task\.container\.mounts`: .*there is no no-folder"),
    ],
)
def test_what_keeps_containers_from_starting_is_named_by_check(container, complaint):
    image()
    words = ", ".join(f"{name} = {json.dumps(value)}" for name, value in container.items())
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "areal_actors",
            "check",
            "recipes/gsm8k_grpo.toml",
            "task.runner=container",
            f"task.container={{{words}}}",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 2
    assert re.search(complaint, " ".join(checked.stderr.split())), checked.stderr
