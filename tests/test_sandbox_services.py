"""Sandbox services by their protocol: containers of this machine, and of another host by a real ssh connection."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time

import pytest
from support import sandbox_reach as reach
from support.clock import until
from support.container_image import image
from support.live_run import ROOT
from support.ssh_server import ssh_server

from areal_actors.containers import Container, SshService
from areal_actors.containers.podman_service import PodmanService
from areal_actors.containers.runtime import container_name
from areal_actors.containers.service import SandboxLimits, SandboxService, load_service
from areal_actors.core.errors import RecipeError, SandboxError, SetupError

pytestmark = pytest.mark.slow
LIMITS = SandboxLimits(memory_mb=256, cpus=0.0)


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    with ssh_server(tmp_path_factory.mktemp("ssh")) as running:
        yield running


@pytest.fixture(params=["this machine", "another host"])
def service(request) -> SandboxService:
    image()
    if request.param == "this machine":
        return PodmanService()
    name, ssh = request.getfixturevalue("host")
    return SshService(name, ssh=ssh)


def containers() -> set[str]:
    listed = subprocess.run(
        ["podman", "ps", "--all", "--format", "{{.Names}}"], capture_output=True, check=True, text=True
    )
    return set(listed.stdout.split())


async def test_commands_files_and_limits(service):
    sandbox = await service.create(image(), LIMITS)
    try:
        assert sandbox in containers()
        ran = await service.execute(sandbox, ("/bin/sh", "-c", "pwd; cat; exit 3"), stdin=b'it\'s "so" $HOME\n')
        assert (ran.status, ran.output) == (3, '/workspace\nit\'s "so" $HOME\n')
        assert (await service.execute(sandbox, ("printf", "%s|", "a b", "c'd", "$e"))).output == "a b|c'd|$e|"
        content = bytes(range(256)) * 1000
        await service.put_file(sandbox, "/workspace/deep er/it's.bin", content)
        assert await service.get_file(sandbox, "/workspace/deep er/it's.bin") == content
        with pytest.raises(SandboxError, match="cannot be read"):
            await service.get_file(sandbox, "/workspace/none")
        with pytest.raises(SandboxError, match="cannot be written"):
            await service.put_file(sandbox, "/proc/none/x", b"")
        connect = "import socket; socket.create_connection(('9.9.9.9', 53), 2)"
        assert (await service.execute(sandbox, ("python3", "-c", connect))).status == 1
        assert (await service.execute(sandbox, ("python3", "-c", "bytearray(1 << 30)"))).status
        long = await service.execute(sandbox, ("/bin/sh", "-c", "yes | head -c 1000000; echo END"), longest=1000)
        assert len(long.output) < 1100
        assert long.output.endswith("END\n")
    finally:
        await service.remove(sandbox)
    assert sandbox not in containers()
    with pytest.raises(SandboxError):
        await service.execute(sandbox, ("true",))
    await service.remove(sandbox)


async def test_a_command_beyond_its_time_is_killed_with_all_that_it_started(service):
    sandbox = await service.create(image(), LIMITS)
    started = time.monotonic()
    ran = await service.execute(sandbox, ("/bin/sh", "-c", "echo begun; sleep 600 & sleep 600"), seconds=2)
    assert (ran.timed_out, ran.status) == (True, -9)
    assert time.monotonic() - started < 60
    call = asyncio.create_task(service.execute(sandbox, ("sleep", "601"), seconds=600))
    await asyncio.sleep(1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    processes = await service.execute(sandbox, ("/bin/sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"))
    assert "sleep" not in processes.output
    await service.remove(sandbox)


async def test_an_image_that_is_not_there_is_named(service):
    with pytest.raises(SetupError, match=r"there is no image no/such:image"):
        await service.create("no/such:image", LIMITS)


async def test_a_tool_names_a_service_by_its_class(tmp_path):
    image()
    (tmp_path / "mine.py").write_text(
        "from areal_actors.containers.podman_service import PodmanService\n\n\nclass Mine(PodmanService):\n    pass\n"
        "\n\nclass Half:\n    async def create(self, image, limits): ...\n"
    )
    async with Container(image(), service=f"{tmp_path}/mine.py:Mine", memory_mb=256) as container:
        assert type(container.service).__name__ == "Mine"
        await container.put_file("/workspace/a", b"1")
        assert (await container.run("cat a")).output == "1"
        assert await container.get_file("/workspace/a") == b"1"
    with pytest.raises(RecipeError, match="has no execute, put_file, get_file, remove"):
        load_service(f"{tmp_path}/mine.py:Half")
    with pytest.raises(RecipeError, match="unexpected keyword argument"):
        load_service("areal_actors.containers.ssh_service:SshService", place="x")


async def test_a_sandbox_on_another_host_does_not_outlive_a_process_that_is_killed(host):
    name, ssh = host
    code = f"""
import asyncio
from areal_actors.containers import Container
from areal_actors.containers.ssh_service import SshService
async def main():
    async with Container({image()!r}, service=SshService({name!r}, ssh={ssh!r})) as container:
        print(container.name, flush=True)
        await container.run("sleep 600", seconds=600)
asyncio.run(main())
"""
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - its end is what is awaited
    assert owner.stdout is not None
    sandbox = owner.stdout.readline().strip()
    assert sandbox in containers()
    with owner:
        owner.send_signal(signal.SIGKILL)
    await until(lambda: sandbox not in containers())


@pytest.mark.long
async def test_what_a_model_s_program_reaches_is_the_same_on_another_host(tmp_path, monkeypatch, host):
    monkeypatch.setenv("AREAL_REACH_PROBE", "x")
    name, ssh = host
    with reach.surroundings(tmp_path) as there:
        results = {}
        for deed, code in reach.deeds(there).items():
            async with Container(image(), memory_mb=512, service=SshService(name, ssh=ssh)) as container:
                ran = await container.run(["python3", "-c", code], seconds=reach.SECONDS)
                results[deed] = "reached" if re.search(f"^{reach.REACHED}$", ran.output, re.MULTILINE) else "no"
            assert container.name not in containers(), deed
    documented = dict(re.findall(r"\| (\w+: [^|]+) \| (no|reached)", (ROOT / "docs" / "containers.md").read_text()))
    assert documented == results


@pytest.mark.long
async def test_forty_sandboxes_at_once_leave_nothing(service):
    async def play(number: int) -> str:
        async with Container(image(), memory_mb=128, service=service) as container:
            return (await container.run(f"echo {number}")).output.strip()

    assert await asyncio.gather(*map(play, range(40))) == [str(number) for number in range(40)]
    owner = container_name().rpartition("-")[0]
    assert not [name for name in containers() if name.startswith(owner)]
