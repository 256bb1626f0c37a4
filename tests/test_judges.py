"""Coroutine rewards run together in one process; one that hangs, blocks, dies or leaks costs itself only."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import pytest

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RewardError
from areal_actors.recipe.load import load
from areal_actors.rewards import judge_host
from areal_actors.rewards.judge_host import SpawnFailed, is_coroutine_reward
from areal_actors.rewards.reward_pool import RewardPool

JUDGE = """
import asyncio, os, pytest, signal, sys, time
from areal_actors.rewards.judge_usage import add_usage

together = most = 0
kept = []

async def judge(task, output, wait=0.2):
    global together, most
    together += 1
    most = max(most, together)
    try:
        if output == "hangs":
            await asyncio.sleep(1000)
        if output == "ignores its cancellation":
            while True:
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    pass
        if output == "blocks":
            time.sleep(1000)
        if output == "dies":
            await asyncio.sleep(0.1)
            os._exit(3)
        if output == "is killed":
            await asyncio.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
        if output == "leaks":
            kept.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(40))
        if output == "raises":
            raise ValueError("no")
        if output == "nothing":
            return None
        if output in OUTCOMES:
            OUTCOMES[output]()
        if output == "quits in a task of its own":
            await asyncio.gather(quits(), asyncio.sleep(0.1))
        await asyncio.sleep(wait)
        add_usage({"prompt_tokens": 900, "completion_tokens": 100}, input_price=1.0, output_price=2.0)
        return {"reward": float(output), "most": most, "process": os.getpid()}
    finally:
        together -= 1

async def quits():
    raise SystemExit(3)

class Stop(BaseException):
    pass

def raises(error):
    raise error

OUTCOMES = {
    "fails": lambda: pytest.fail("no"),
    "skips": lambda: pytest.skip("no"),
    "exits": lambda: pytest.exit("no"),
    "quits": lambda: sys.exit(3),
    "interrupts": lambda: raises(KeyboardInterrupt()),
    "stops": lambda: raises(Stop("no")),
    "cancels": lambda: raises(asyncio.CancelledError()),
}

def plain(task, output):
    return 1.0

def dies(task, output):
    os._exit(3)
"""
NO_CUDA = CudaDevices(count=0, reason="none here")
TASK = {"id": "t-1", "question": "q"}


@pytest.fixture
async def pool_of(tmp_path):
    (tmp_path / "judges.py").write_text(JUDGE)
    pools = []

    def make(seconds=3.0, function="judge", **options):
        pools.append(RewardPool(f"judges.py:{function}", 1, seconds, tmp_path, **options))
        return pools[-1]

    yield make
    for pool in pools:
        await pool.close()


async def scores(pool, *outputs):
    return await asyncio.gather(*[pool.score(TASK, output) for output in outputs], return_exceptions=True)


def test_a_coroutine_function_is_known_without_running_its_file(tmp_path):
    (tmp_path / "judges.py").write_text(JUDGE + "\nraise SystemExit\n")
    assert is_coroutine_reward("judges.py:judge", tmp_path)
    assert not is_coroutine_reward("judges.py:plain", tmp_path)
    assert not is_coroutine_reward("judges.py:none", tmp_path)
    assert not is_coroutine_reward("math", tmp_path)


async def test_judges_run_together_in_one_process_with_their_seconds_tokens_and_cost(pool_of):
    pool = pool_of(30.0, options={"wait": 1.0})
    found = await scores(pool, *[str(number) for number in range(64)])
    assert [float(score) for score in found] == list(range(64))
    assert max(score.metrics["most"] for score in found) == 64
    assert len({score.metrics["process"] for score in found}) == 1
    metrics = found[0].metrics
    assert (metrics["judge_calls"], metrics["judge_tokens"]) == (1, 1000)
    assert metrics["judge_cost"] == pytest.approx((900 + 200) / 1e6)
    assert metrics["judge_seconds"] >= 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "complaint"),
    [
        ("hangs", "hung for more than 3 s and was cancelled"),
        ("ignores its cancellation", "hung for more than 3 s and was cancelled"),
        ("blocks", "blocked the event loop for more than 3 s and was killed"),
        ("dies", "ended its process with exit code 3"),
        ("is killed", "ended its process with exit code -9"),
        ("raises", "raised ValueError: no"),
        ("nothing", "failed: a reward must be a real number, got None"),
    ],
)
async def test_a_judge_that_fails_costs_its_own_score_only(pool_of, output, complaint):
    pool = pool_of(3.0, options={"wait": 0.5})
    first, failed, second = await scores(pool, "1", output, "2")
    assert isinstance(failed, RewardError)
    assert str(failed).startswith(f"reward judges.py:judge {complaint}")
    assert "(task t-1)" in str(failed)
    assert (first, second) == (1.0, 2.0)
    assert await pool.score(TASK, "3") == 3.0


OUTCOMES = {
    "fails": "raised Failed: no",
    "skips": "raised Skipped: no",
    "exits": "raised Exit: no",
    "quits": "raised SystemExit: 3",
    "quits in a task of its own": "raised SystemExit: 3",
    "interrupts": "raised KeyboardInterrupt: ",
    "stops": "raised Stop: no",
    "cancels": "was cancelled by its own code",
}


async def test_an_outcome_of_pytest_raised_in_a_judge_costs_its_score_and_not_the_process_of_the_others(pool_of):
    pool = pool_of(30.0)
    first = await pool.score(TASK, "1")
    *failed, beside = await scores(pool, *OUTCOMES, "2")
    assert [str(error) for error in failed] == [
        f"reward judges.py:judge {cause} (task t-1)" for cause in OUTCOMES.values()
    ]
    after = await pool.score(TASK, "3")
    assert first.metrics["process"] == beside.metrics["process"] == after.metrics["process"]


async def test_a_file_of_judges_that_skips_itself_is_named_with_each_score(pool_of, tmp_path):
    pool = pool_of(30.0)
    (tmp_path / "judges.py").write_text(JUDGE + "\npytest.skip('no judge here', allow_module_level=True)\n")
    for error in await scores(pool, "1", "2"):
        assert isinstance(error, RewardError)
        assert "raised Skipped: no judge here" in str(error)
    assert pool._judges is not None
    assert not pool._judges._process.lost


async def test_a_process_that_leaks_is_replaced_once_its_scores_are_done(pool_of, monkeypatch):
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    monkeypatch.setattr(judge_host, "OPEN_FILES_SHARE", 50 / limit)
    pool = pool_of(30.0)
    before = (await pool.score(TASK, "1")).metrics["process"]
    assert isinstance((await scores(pool, "leaks"))[0], RewardError)
    after = (await pool.score(TASK, "1")).metrics["process"]
    assert after != before
    assert not Path(f"/proc/{int(before)}").exists()


async def test_equal_texts_are_scored_once_where_scores_are_cached(pool_of):
    pool = pool_of(30.0, cached=2)
    first, again, other = (
        await pool.score(TASK, "1"),
        await pool.score({**TASK, "id": "t-2"}, "1"),
        await pool.score(TASK, "2"),
    )
    assert [score.metrics["cached"] for score in (first, again, other)] == [0.0, 1.0, 0.0]
    assert [score.metrics["judge_tokens"] for score in (first, again, other)] == [1000, 0, 1000]
    assert (first, again, other) == (1.0, 1.0, 2.0)
    with pytest.raises(RewardError):
        await pool.score(TASK, "raises")


@pytest.mark.parametrize(("function", "spare"), [("judge", 1), ("plain", 1), ("plain", 4), ("plain", 5), ("plain", 6)])
async def test_a_process_that_cannot_be_started_is_the_end_of_the_worker_and_no_failed_score(pool_of, function, spare):
    pool = pool_of(5.0, function=function)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken + spare, hard))
    try:
        with pytest.raises(SpawnFailed, match=r"a process for .*rewards cannot be started: Too many open files"):
            await asyncio.wait_for(pool.score(TASK, "1"), 30)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_worker_takes_many_scores_of_a_coroutine_at_once_unless_the_recipe_states_a_number(tmp_path, monkeypatch):
    (tmp_path / "judges.py").write_text(JUDGE)
    monkeypatch.chdir(tmp_path)
    recipe = Path(__file__).parent.parent / "recipes" / "gsm8k_grpo.toml"
    for stated, expected in (([], 128), (["actors.reward_worker.concurrency=16"], 16)):
        read = load([recipe], ["task.reward=judges.py:judge", "profile=embedded", *stated], NO_CUDA).recipe
        assert read.actors.reward_worker.concurrency == expected
    assert (
        load(
            [recipe], ["task.reward=judges.py:plain", "profile=embedded"], NO_CUDA
        ).recipe.actors.reward_worker.concurrency
        == 8
    )
