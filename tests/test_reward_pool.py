import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from areal_actors.core.errors import RewardError
from areal_actors.rewards.reward_pool import RewardPool

TASK = {"id": "eggs-3", "question": "How many?", "answer": "#### 18"}

REWARDS = """
import asyncio, os, re, signal, sys, time

def length(task, output): return len(output)
async def later(task, output):
    await asyncio.sleep(0)
    return 0.5
def pid(task, output): return os.getpid()
def torch_loaded(task, output): return "torch" in sys.modules or "transformers" in sys.modules
def raises(task, output): raise ValueError("no such unit")
class Odd(Exception):
    def __init__(self, one, two): super().__init__(one)
def odd(task, output): raise Odd("cannot be sent", lambda: 1)
def leaves(task, output): sys.exit(4)
def dies(task, output): os._exit(3) if output == "die" else None; return 1
def nan(task, output): return float("nan")
def none(task, output): return None
def text(task, output): return "1.0"
def loops(task, output):
    while output == "loop": pass
    return 1
def sleeps(task, output): time.sleep(600)
def backtracks(task, output): return bool(re.match(r"(a+)+$", "a" * 60 + "b"))
def stubborn(task, output):
    while True:
        try: time.sleep(600)
        except BaseException: pass
"""


@asynccontextmanager
async def pool_of(folder, function, *, workers=1, timeout_seconds=300.0):
    (folder / "rewards.py").write_text(REWARDS)
    pool = RewardPool(f"rewards.py:{function}", workers, timeout_seconds, folder)
    try:
        yield pool
    finally:
        await pool.close()


EARLIER: set[int] = set()
"""Processes that tests of other files have left."""


@pytest.fixture(autouse=True)
def _earlier():
    EARLIER.update(child.pid for child in psutil.Process().children(recursive=True))


def scoring_processes(parent=None):
    children = psutil.Process(parent).children(recursive=True)
    return [child for child in children if child.pid not in EARLIER and "spawn_main" in " ".join(child.cmdline())]


async def test_outputs_are_scored_by_name_in_other_processes():
    pool = RewardPool("gsm8k", workers=2, timeout_seconds=300)
    scores = await asyncio.gather(*(pool.score(TASK, f"#### {number}") for number in range(16, 20)))
    assert scores == [0.0, 0.0, 1.0, 0.0]
    with pytest.raises(RewardError, match=r"^reward gsm8k failed: task eggs-4: `answer` must be .* got 'many'$"):
        await pool.score({"id": "eggs-4", "answer": "many"}, "#### 18")
    assert scoring_processes()
    await pool.close()
    assert scoring_processes() == []


async def test_functions_of_the_user_may_be_coroutines_and_return_any_number(tmp_path):
    async with pool_of(tmp_path, "length") as pool:
        assert await pool.score(TASK, "abc") == 3.0
    async with pool_of(tmp_path, "later") as pool:
        assert [await pool.score(TASK, "abc"), await pool.score(TASK, "abc")] == [0.5, 0.5]


async def test_scoring_loads_no_tensors_and_never_runs_here(tmp_path):
    async with pool_of(tmp_path, "torch_loaded") as pool:
        assert await pool.score(TASK, "") == 0.0
    async with pool_of(tmp_path, "pid") as pool:
        assert await pool.score(TASK, "") != os.getpid()


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        ("raises", r"reward rewards.py:raises raised ValueError: no such unit \(task eggs-3\)"),
        ("odd", r"reward rewards.py:odd raised Odd: cannot be sent \(task eggs-3\)"),
        ("leaves", r"reward rewards.py:leaves raised SystemExit: 4 \(task eggs-3\)"),
        ("nan", r"reward rewards.py:nan failed: a reward must be finite, got nan \(task eggs-3\)"),
        ("none", r"reward rewards.py:none failed: a reward must be a real number, got None \(task eggs-3\)"),
        ("text", r"reward rewards.py:text failed: a reward must be a real number, got str '1.0' \(task eggs-3\)"),
        ("absent", r"reward rewards.py:absent failed: `rewards.py:absent`: .* has no `absent`"),
    ],
)
async def test_a_failure_is_an_error_with_the_names_of_reward_and_task(tmp_path, function, complaint):
    async with pool_of(tmp_path, function) as pool:
        for _ in range(2):
            with pytest.raises(RewardError, match=f"^{complaint}"):
                await pool.score(TASK, "18")


@pytest.mark.parametrize("function", ["loops", "sleeps", "backtracks", "stubborn"])
async def test_a_hung_reward_is_killed_and_its_place_is_taken(tmp_path, function):
    async with pool_of(tmp_path, function, timeout_seconds=0.5) as pool:
        started = time.monotonic()
        with pytest.raises(
            RewardError, match=rf"^reward rewards.py:{function} hung for more than 0.5 s and was killed \(task eggs-3\)"
        ):
            await pool.score(TASK, "loop")
        assert time.monotonic() - started < 300
        if function == "loops":
            assert await pool.score(TASK, "do not") == 1.0
    assert scoring_processes() == []


async def test_a_process_that_dies_costs_its_own_score_only(tmp_path):
    async with pool_of(tmp_path, "dies", workers=2) as pool:
        outputs = ["live", "die", "live", "die", "live", "live"]
        scores = await asyncio.gather(*(pool.score(TASK, output) for output in outputs), return_exceptions=True)
        assert [score for score in scores if score == 1.0] == [1.0] * 4
        died = [score for score in scores if isinstance(score, RewardError)]
        assert [str(error) for error in died] == [
            "reward rewards.py:dies ended its process with exit code 3 (task eggs-3)"
        ] * 2


async def test_waiting_in_line_does_not_count_against_the_deadline(tmp_path):
    (tmp_path / "rewards.py").write_text("import time\ndef slow(task, output):\n    time.sleep(0.3)\n    return 1\n")
    pool = RewardPool("rewards.py:slow", 1, 1.0, tmp_path)
    assert await asyncio.gather(*(pool.score(TASK, "") for _ in range(5))) == [1.0] * 5
    await pool.close()


async def test_a_score_without_waiting_caller_frees_its_process(tmp_path):
    async with pool_of(tmp_path, "loops", timeout_seconds=600) as pool:
        assert await pool.score(TASK, "do not") == 1.0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.score(TASK, "loop"), 0.3)
        assert await asyncio.wait_for(pool.score(TASK, "do not"), 300) == 1.0


async def test_closing_ends_running_scores_and_fails_pending_calls(tmp_path):
    async with pool_of(tmp_path, "sleeps") as pool:
        scores = [asyncio.create_task(pool.score(TASK, "")) for _ in range(3)]
        await asyncio.sleep(0.5)
        assert scoring_processes()
    assert scoring_processes() == []
    for score in [*scores, pool.score(TASK, "")]:
        with pytest.raises(RewardError, match=r"the pool was closed before the score was computed \(task eggs-3\)"):
            await score


def test_scoring_processes_do_not_outlive_a_killed_parent(tmp_path):
    package = tmp_path / "program"
    package.mkdir()
    (package / "rewards.py").write_text(REWARDS)
    (package / "__main__.py").write_text(
        "import asyncio\n"
        "from pathlib import Path\n"
        "from areal_actors.rewards.reward_pool import RewardPool\n"
        "async def main():\n"
        "    pool = RewardPool('rewards.py:loops', 2, 600.0, Path(__file__).parent)\n"
        "    print(await pool.score({}, 'do not'), flush=True)\n"
        "    await pool.score({}, 'loop')\n"
        "asyncio.run(main())\n"
    )
    root = str(Path(__file__).parent.parent)
    program = subprocess.Popen(
        [sys.executable, "-m", "program"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        assert program.stdout.readline() == "1.0\n"
        children = scoring_processes(program.pid)
        program.send_signal(signal.SIGKILL)
    assert len(children) == 2
    _, alive = psutil.wait_procs(children, timeout=300)
    assert alive == []
