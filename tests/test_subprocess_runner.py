from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
import venv
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest
from support.clock import until

from areal_actors.core.errors import AgentError, SetupError
from areal_actors.core.values import Task
from areal_actors.rollout import agent_process
from areal_actors.rollout.agent_process import AgentProgram
from areal_actors.rollout.agent_runner import AgentResult
from areal_actors.rollout.episode_context import EpisodeContext, workflow_context
from areal_actors.rollout.subprocess_runner import SubprocessRunner

HEAD = "import asyncio, os, signal, subprocess, sys, threading, time\n"
RUN = "async def run(self, task, *, base_url, api_key):"
PLAIN = "def run(self, task, *, base_url, api_key):"


@asynccontextmanager
async def serving(tmp_path, body, *, head=RUN, processes=1, episodes_per_process=0, **program):
    """A runner of an agent with this body."""
    source = f"{HEAD}class Agent:\n    {head}\n{textwrap.indent(textwrap.dedent(body), ' ' * 8)}\n"
    (tmp_path / "mine.py").write_text(source)
    program = {"agent": "mine.py:Agent", "root": str(tmp_path), **program}
    runner = SubprocessRunner(AgentProgram(**program), processes=processes, episodes_per_process=episodes_per_process)
    try:
        await runner.start()
        yield runner
    finally:
        await runner.close()


async def episode(runner, number=0, *, begun=None, **data):
    """One episode; `begun` is the path of a file: once the agent has written it, the episode's deadline is over."""
    async with asyncio.timeout(300) as deadline:
        if begun is not None:
            waiting = asyncio.create_task(until(begun.exists))
            waiting.add_done_callback(lambda _: deadline.reschedule(0.0))
        return await runner.run(Task(id="t", data=data), base_url=f"http://here/{number}/v1", api_key=f"sk-{number}")


async def result(tmp_path, body, **options):
    async with serving(tmp_path, body, **options) as runner:
        return await episode(runner, question="why?")


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def gone(*pids):
    """Waits until none of these processes is alive; only a parent is notified of the end of a process."""
    await until(lambda: not any(map(is_alive, pids)))


async def test_an_agent_gets_the_task_and_the_address_and_its_environment_names_them_too(tmp_path):
    body = """
        names = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")
        return " ".join([task["question"], base_url, api_key, *map(os.environ.get, names)])
    """
    expected = "why? http://here/sk-0/v1 sk-0 http://here/sk-0/v1 sk-0 http://here/sk-0 sk-0"
    assert await result(tmp_path, body) == AgentResult(output=expected)


@pytest.mark.parametrize("head", [RUN, PLAIN])
@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("None", AgentResult()),
        ("'cut \\ud83d'", AgentResult(output="cut ?")),
        ("1", AgentResult(reward=1.0)),
        ("__import__('fractions').Fraction(1, 4)", AgentResult(reward=0.25)),
        ("{'a': 1, 'b': __import__('decimal').Decimal('0.5')}", AgentResult(rewards={"a": 1.0, "b": 0.5})),
        ("{'rewards': {'a': 1}, 'metrics': {'turns': 2}}", AgentResult(rewards={"a": 1.0}, metrics={"turns": 2.0})),
    ],
)
async def test_what_an_agent_may_return(tmp_path, head, returned, expected):
    assert await result(tmp_path, f"return {returned}", head=head) == expected


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("raise ValueError('no way')", "agent mine.py:Agent raised ValueError: no way at mine.py:5$"),
        ("sys.exit(1)", "SystemExit: 1 at mine.py:5"),
        ("raise asyncio.CancelledError", "CancelledError:  at mine.py:5"),
        ("return float('nan')", "returned nan: a reward must be finite"),
        ("return {'a': '1'}", r"returned \{'a': '1'\}: a reward must be a real number"),
        ("return 10 ** 400", "returned 1000.*: a reward must be a real number"),
        (
            "print('on the way'); print('in trouble', file=sys.stderr); return 1 / 0",
            "; it last printed:\non the way\nin trouble",
        ),
        ("os._exit(3)", "agent mine.py:Agent ended its process with exit status 3$"),
        (
            "print('help', flush=True); os.kill(os.getpid(), signal.SIGSEGV)",
            "was killed by SIGSEGV; it last printed:\nhelp",
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL .the system kills so when memory runs out"),
        ("os.execvp('sleep', ['sleep', '100'])", "closed its control socket"),
    ],
)
async def test_whatever_goes_wrong_is_an_error_with_its_name_and_the_next_episode_runs(
    tmp_path, monkeypatch, body, complaint
):
    monkeypatch.setattr(agent_process, "END_SECONDS", 0.02 if "closed" in complaint else 60.0)
    async with serving(tmp_path, f"if task.get('good'): return 1\n{body}") as runner:
        with pytest.raises(AgentError, match=complaint):
            await episode(runner)
        assert await episode(runner, good=True) == AgentResult(reward=1.0)


@pytest.mark.parametrize("raised", ["SystemExit(3)", "KeyboardInterrupt(3)"])
async def test_a_task_of_an_agent_that_quits_is_an_error_with_its_name_and_not_the_end_of_the_process(tmp_path, raised):
    body = (
        f"async def tool(): raise {raised}\nif task.get('quits'): await asyncio.gather(tool(),"
        " asyncio.sleep(0.01))\nreturn os.getpid()"
    )
    async with serving(tmp_path, body) as runner:
        before = await episode(runner)
        with pytest.raises(AgentError, match=f"raised {raised.partition('(')[0]}: 3 at mine.py:4"):
            await episode(runner, quits=True)
        assert await episode(runner) == before


async def test_an_agent_that_hangs_is_killed_with_all_it_has_started(tmp_path):
    body = """
        group = subprocess.Popen(["sleep", "1000"])
        session = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        shell = subprocess.run(["sh", "-c", "setsid sleep 1000 >/dev/null & echo $!"], stdout=-1)
        orphan = shell.stdout.decode().strip()
        print(os.getpid(), group.pid, session.pid, orphan, flush=True)
        open("begun", "w").close()
        time.sleep(1000)
    """
    async with serving(tmp_path, body) as runner:
        with pytest.raises(TimeoutError) as caught:
            await episode(runner, begun=tmp_path / "begun")
        printed = "".join(caught.value.__context__.__notes__).rpartition("printed:\n")[2].split()
        assert len(printed) == 4
        await gone(*printed)


async def test_a_coroutine_that_hangs_is_killed_too(tmp_path):
    body = """
        if task.get("hang"):
            open("begun", "w").close()
            await asyncio.sleep(1000)
        return os.getpid()
    """
    async with serving(tmp_path, body) as runner:
        before = await episode(runner)
        with pytest.raises(TimeoutError):
            await episode(runner, begun=tmp_path / "begun", hang=True)
        assert (tmp_path / "begun").exists()
        await gone(int(before.reward))
        assert await episode(runner) != before


async def test_memory_beyond_the_limit_is_an_error_and_not_the_end_of_the_machine(tmp_path):
    async with serving(tmp_path, "return len(bytearray(task['bytes']))", memory_mb=500) as runner:
        with pytest.raises(AgentError, match=r"raised MemoryError:  at mine.py:4; raise task.memory_mb"):
            await episode(runner, bytes=2**30)
        assert await episode(runner, bytes=2**20) == AgentResult(reward=2.0**20)


async def test_a_flood_of_output_blocks_no_process_and_its_end_is_kept(tmp_path):
    body = """
        for number in range(50_000):
            print("line", number, "x" * 80)
        raise ValueError("wet")
    """
    with pytest.raises(AgentError, match=r"ValueError: wet at mine.py:\d+; it last printed:\n") as caught:
        await result(tmp_path, body)
    assert "line 49999 " in str(caught.value)
    assert len(str(caught.value)) < 2_500


async def test_output_of_one_episode_is_not_reported_for_the_next(tmp_path):
    async with serving(tmp_path, "print(task['text'])\nreturn task['value']") as runner:
        await episode(runner, text="first", value=1)
        with pytest.raises(AgentError) as caught:
            await episode(runner, text="second", value=[])
        assert "second" in str(caught.value)
        assert "first" not in str(caught.value)


async def test_processes_stay_warm_and_a_client_made_once_is_used_again(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import asyncio, os\n"
        "class Agent:\n"
        "    def __init__(self, start):\n"
        "        self.calls, self.lock = start, None\n"
        "    async def run(self, task, *, base_url, api_key):\n"
        "        self.lock = self.lock or asyncio.Event()\n"
        "        asyncio.get_running_loop().call_soon(self.lock.set)\n"
        "        await self.lock.wait()\n"
        "        self.calls += 1\n"
        "        return self.calls\n"
    )
    runner = SubprocessRunner(
        AgentProgram(agent="mine.py:Agent", root=str(tmp_path), options={"start": 10}), processes=1
    )
    await runner.start()
    assert [(await episode(runner)).reward for _ in range(3)] == [11.0, 12.0, 13.0]
    await runner.close()


async def test_a_process_can_be_replaced_after_some_episodes(tmp_path):
    async with serving(tmp_path, "return os.getpid()", episodes_per_process=2) as runner:
        pids = [(await episode(runner)).reward for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]


@pytest.mark.parametrize(
    ("left", "replaced"),
    [
        ("threading.Thread(target=time.sleep, args=(100,)).start()", True),
        ("threading.Thread(target=time.sleep, args=(100,), daemon=True).start()", False),
        ("asyncio.get_running_loop().run_in_executor(None, int)", False),
        ("globals()['kept'] = subprocess.Popen(['sleep', '100'])", True),
        ("subprocess.Popen(['true']).wait()", False),
        ("globals()['kept'] = asyncio.create_task(asyncio.sleep(100))", False),
    ],
)
async def test_what_an_episode_leaves_running_does_not_reach_the_next(tmp_path, left, replaced):
    async with serving(tmp_path, f"if task.get('leave'): {left}\nreturn os.getpid()") as runner:
        before = await episode(runner, leave=True)
        after = await episode(runner)
        assert (before != after) == replaced


async def test_neither_environment_nor_folder_reaches_the_next_episode(tmp_path):
    body = """
        seen = [name for name in ("LEFT", "HOME") if name in os.environ] + [os.getcwd()]
        os.environ["LEFT"] = "here"
        os.environ.pop("HOME", None)
        os.chdir("/")
        return " ".join(seen)
    """
    async with serving(tmp_path, body) as runner:
        assert {(await episode(runner)).output for _ in range(3)} == {f"HOME {tmp_path.resolve()}"}


async def test_two_hundred_episodes_on_four_processes_see_their_own_environment_only(tmp_path):
    body = """
        first = os.environ["OPENAI_API_KEY"]
        open(str(os.getpid()), "w").close()
        while sum(name.isdecimal() for name in os.listdir()) < 4:  # until each process has begun one
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.001)
        assert first == os.environ["OPENAI_API_KEY"] == api_key == "sk-" + str(task["which"])
        return f"{api_key} {os.environ['AREAL_EPISODE']} {os.getpid()}"
    """
    free = asyncio.Semaphore(4)

    async def one(runner, number):
        async with free:
            with workflow_context.running(EpisodeContext(episode=f"e{number}")):
                return (await episode(runner, number, which=number)).output.split()

    async with serving(tmp_path, body, processes=4) as runner:
        results = await asyncio.gather(*(one(runner, number) for number in range(200)))
    assert [result[:2] for result in results] == [[f"sk-{number}", f"e{number}"] for number in range(200)]
    assert len({result[2] for result in results}) == 4


async def test_an_agent_may_have_an_interpreter_of_its_own_in_which_nothing_of_ours_is_installed(tmp_path):
    venv.create(tmp_path / "env", symlinks=True)
    body = """
        try:
            import msgspec
        except ImportError:
            return sys.prefix
    """
    assert await result(tmp_path, body, python=str(tmp_path / "env/bin/python")) == AgentResult(
        output=str(tmp_path / "env")
    )


@pytest.mark.parametrize(
    ("program", "error", "complaint"),
    [
        ({"agent": "mine.py:Agnet"}, AgentError, "has no `Agnet`; did you mean `Agent`?"),
        ({"agent": "none.py:Agent"}, AgentError, "`none.py:Agent`: there is no file"),
        (
            {"options": {"depth": 1}},
            AgentError,
            r"agent mine.py:Agent takes \(\): got an unexpected keyword argument 'depth'",
        ),
        ({"python": "/no/python"}, SetupError, "task.python: cannot start /no/python: No such file or directory"),
        ({"python": "/bin/false"}, AgentError, "agent mine.py:Agent ended its process with exit status 1"),
    ],
)
async def test_an_agent_that_cannot_be_had_is_refused_at_the_start(tmp_path, program, error, complaint):
    with pytest.raises(error, match=complaint):
        async with serving(tmp_path, "return 1", **program):
            pass


async def test_what_the_task_holds_must_be_json(tmp_path):
    async with serving(tmp_path, "return 1") as runner:
        with pytest.raises(AgentError, match=r"cannot be sent to agent mine.py:Agent as JSON"):
            await episode(runner, when=object())
        assert await episode(runner) == AgentResult(reward=1.0)


def kill_unnoticed(pid):
    """Kill a child; the event loop, which waits here, has not noticed yet when this returns."""
    os.kill(pid, signal.SIGKILL)
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.001)


async def test_a_process_that_dies_between_two_episodes_costs_none(tmp_path):
    async with serving(tmp_path, "return os.getpid()") as runner:
        before = int((await episode(runner)).reward)
        kill_unnoticed(before)
        assert (await episode(runner)).reward != before


async def test_closing_ends_every_process_whatever_it_does(tmp_path):
    async with serving(tmp_path, "open('begun', 'w').close()\ntime.sleep(100)", processes=3) as runner:
        running = asyncio.create_task(episode(runner))
        await until(lambda: len(runner._alive) == 3 and (tmp_path / "begun").exists())
        pids = [process._child.pid for process in runner._alive]
        running.cancel()
        await asyncio.wait([running])
    await gone(*pids)


async def test_agents_die_with_the_process_that_runs_them(tmp_path):
    (tmp_path / "mine.py").write_text(
        f"{HEAD}class Agent:\n    {PLAIN}\n        child = subprocess.Popen(['sleep', '100'])\n"
        "        open('pids', 'w').write(f'{os.getpid()} {child.pid}\\n')\n        time.sleep(100)\n"
    )
    parent = textwrap.dedent(f"""
        import asyncio
        from areal_actors.rollout.subprocess_runner import AgentProgram, SubprocessRunner
        from areal_actors.core.values import Task
        async def main():
            runner = SubprocessRunner(AgentProgram(agent="mine.py:Agent", root={str(tmp_path)!r}), processes=1)
            await runner.start()
            await runner.run(Task(id="t", data={{}}), base_url="u", api_key="k")
        asyncio.run(main())
    """)
    process = subprocess.Popen([sys.executable, "-c", parent])  # noqa: ASYNC220
    await until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().endswith("\n"))
    process.kill()
    process.wait()
    await gone(*(tmp_path / "pids").read_text().split())


# ---------------------------------------------------------------- programs
