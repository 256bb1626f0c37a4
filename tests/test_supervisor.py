"""Processes that the supervisor kills, and failures at a start that end a run."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest
from support.live_run import ROOT

from areal_actors.core.devices import CudaDevices
from areal_actors.folder.run_folder import BusAddresses, RunFolder, ServerAddress
from areal_actors.processes.process import EXIT_FAILED, EXIT_FATAL, EXIT_START_FAILED, FAILED_WITH
from areal_actors.recipe.load import load
from areal_actors.supervision.supervisor import CALLED_EXIT, Child, Supervisor, is_own_end, reason_of_end


class Ended:
    """A process that has ended with this status."""

    pid = 7

    def __init__(self, returncode):
        self.returncode = returncode


@pytest.fixture
async def supervisor(tmp_path):
    recipe = load(
        [ROOT / "recipes" / "gsm8k_grpo.toml"],
        ["profile=embedded", "watchdog.stop_seconds=0.5"],
        CudaDevices(0, "none"),
    ).recipe

    async def publish(event):
        published.append(event)

    published = []
    (tmp_path / "logs").mkdir()
    nowhere = ServerAddress(url="nats://127.0.0.1:1", run=recipe.run, pid=0)
    return Supervisor(recipe, RunFolder(tmp_path), publish, BusAddresses(owner=nowhere, monitor=nowhere))


async def started(supervisor, name, code):
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=subprocess.PIPE)
    supervisor.children[name] = Child(name, process)
    return process


async def test_a_process_is_killed_by_its_id_and_not_whatever_has_its_name_now(supervisor):
    process = await started(supervisor, "trainer", "import time; time.sleep(60)")
    supervisor.kill("trainer", process.pid + 1, "no heartbeat of an earlier one")
    assert process.returncode is None
    assert supervisor.alive() == {"trainer": process.pid}
    supervisor.kill("trainer", process.pid, "no heartbeat of trainer-0 for 21 s")
    assert supervisor.alive() == {}, "it is not looked at again while it dies"
    assert await process.wait() == -signal.SIGKILL
    assert (
        reason_of_end(supervisor.folder, "trainer", -9, supervisor.children["trainer"].killed)
        == "no heartbeat of trainer-0 for 21 s"
    )


async def test_a_process_that_ignores_sigterm_is_killed_after_stop_seconds(supervisor):
    ready = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    process = await started(supervisor, "trainer", ready)
    await asyncio.sleep(0.3)
    await supervisor.stop()
    assert process.returncode in (-signal.SIGKILL, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("first", "second", "again"),
    [
        ((EXIT_START_FAILED, "OSError: no such device 3"), (EXIT_START_FAILED, "OSError: no such device 7"), True),
        ((EXIT_START_FAILED, "ValueError: no key"), (EXIT_START_FAILED, "OSError: no such device"), False),
        ((1, "ImportError: libx"), (1, "ImportError: libx"), True),
        ((EXIT_FAILED, "KeyError: 'a'"), (EXIT_FAILED, "KeyError: 'a'"), False),
        ((EXIT_FAILED, "KeyError: 'a'"), (EXIT_START_FAILED, "KeyError: 'a'"), False),
        ((-signal.SIGKILL, "killed by SIGKILL"), (-signal.SIGKILL, "killed by SIGKILL"), False),
    ],
)
async def test_the_same_failure_at_two_starts_in_a_row_ends_the_run(supervisor, first, second, again):
    found = [supervisor._fails_again(Child("trainer", Ended(status)), reason) for status, reason in (first, second)]
    assert found == [False, again]


async def test_two_starts_without_progress_end_the_run_and_a_life_between_them_does_not(supervisor):
    stuck = Child("trainer", Ended(-signal.SIGKILL), killed="trainer-0 did not start: its process 12 is sleeping")
    late = Child("trainer", Ended(-signal.SIGKILL), killed="no heartbeat of trainer-0 for 21 s")
    assert [supervisor._fails_again(child, child.killed) for child in (stuck, late, stuck, stuck)] == [
        False,
        False,
        False,
        True,
    ]


async def test_of_a_crash_outside_the_actors_only_the_error_is_reported(supervisor):
    supervisor.folder.output_of("trainer").write_text(
        "Traceback (most recent call last):\n  File x\nImportError: libtorch.so\n"
    )
    assert reason_of_end(supervisor.folder, "trainer", 1) == "ended with status 1: ImportError: libtorch.so"
    failure = supervisor.folder.failure_of("trainer")
    with supervisor.folder.output_of("trainer").open("a") as output:
        output.write(f"{FAILED_WITH}OSError: [Errno 28] No space left on device\n")
    assert reason_of_end(supervisor.folder, "trainer", EXIT_FATAL).endswith(
        f"its error could not be written to {failure}, as on a full disk or without file descriptors"
    )
    failure.write_text("model: no such folder")
    assert reason_of_end(supervisor.folder, "trainer", EXIT_FATAL) == "model: no such folder"


@pytest.mark.parametrize("status", [0, 1, EXIT_FAILED, EXIT_FATAL, EXIT_START_FAILED, 77])
async def test_an_end_by_code_of_the_user_is_named_as_such_and_is_no_failure_of_the_start(supervisor, status):
    supervisor.folder.output_of("trainer").write_text("almost done\n")
    reason = reason_of_end(supervisor.folder, "trainer", status)
    assert reason == f"ended with status {status}: almost done / {CALLED_EXIT}"
    assert "os._exit" in reason
    assert not is_own_end(supervisor.folder, "trainer", status)
    assert [supervisor._fails_again(Child("trainer", Ended(status)), reason) for _ in range(2)] == [False, False]
