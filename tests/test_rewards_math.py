"""Mathematical equivalence: what counts as equal, what is wrong, and what is the data's fault."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from areal_actors.core.errors import RecipeError, RewardError, SetupError
from areal_actors.rewards import math_equivalence, math_reading, resolve_reward
from areal_actors.rewards.math_equivalence import MathEquivalence
from areal_actors.rewards.reward_pool import RewardPool

ROOT = Path(__file__).parent.parent
GSM8K = Path(os.environ.get("AREAL_GSM8K", ROOT.parent / "shared" / "data" / "gsm8k")) / "test.jsonl"
RULE = MathEquivalence(seconds=1.0)


@pytest.fixture(scope="module", autouse=True)
def _loaded():
    RULE.prepare()


@pytest.mark.parametrize(
    ("truth", "output", "reward"),
    [
        (r"\frac{1}{2}", "The answer is $0.5$.", 1.0),
        (r"\frac{1}{2}", r"\boxed{\dfrac12}", 1.0),
        (r"\frac{1}{2}", "The answer is 1/2.", 1.0),
        (r"\frac{1}{2}", r"\boxed{2}", 0.0),
        ("x^2 + 1", "$1 + x^2$", 1.0),
        ("x^2 + 1", "$1 + x$", 0.0),
        (r"\sqrt{8}", r"$2\sqrt{2}$", 1.0),
        (r"\{1, 2\}", r"\boxed{\{2, 1\}}", 1.0),
        ("(1, 2]", r"\boxed{(1, 2]}", 1.0),
        ("(1, 2]", r"\boxed{[1, 2)}", 0.0),
        ("18", "#### 18", 1.0),
        ("18", "#### 18 dollars a day", 1.0),
        ("18", "#### $18.00", 1.0),
        ("18", "#### **18**", 1.0),
        ("1,234", "#### 1234", 1.0),
        ("#### 5", r"$4 and $5 make \boxed{5}", 1.0),
        ("It is easy.\n#### $1,234", "The answer is 1234", 1.0),
        (r"Adding up gives \boxed{x + 1}.", "$1 + x$", 1.0),
        ("18", "18\n#### 19", 0.0),
        ("18", "", 0.0),
        ("18", "I do not know.", 0.0),
        ("18", "NaN", 0.0),
        ("18", r"\boxed{\infty}", 0.0),
        ("18", r"\boxed{", 0.0),
        ("18", "\ud800", 0.0),
    ],
)
def test_an_equal_answer_has_reward_1(truth, output, reward):
    assert RULE({"answer": truth}, output) == reward


@pytest.mark.parametrize(
    "truth", ["", " ", "????", r"\frac{", "this problem has no solution here", "####", None, True, ["18", "19"]]
)
def test_a_truth_that_cannot_be_read_is_an_error_that_names_the_task(truth):
    with pytest.raises(RewardError, match=r"^task eggs-3: `answer` must be an expression, or end with"):
        RULE({"id": "eggs-3", "answer": truth}, "#### 18")


HEAVY = [
    r"$9^{9^{9^{9}}}$",
    r"\boxed{10^{10^{9}}!}",
    r"$\sum_{n=1}^{10^{10}} n^n$",
    r"$2^{10^{11}} - 2^{10^{11}} + 18$",
    "$" * 100_000,
    "{" * 100_000,
    r"\frac{" * 20_000,
    r"\boxed{" * 10_000,
    "1+" * 50_000,
    r"\boxed{" + "9" * 6000 + "}",
]


def cpu_seconds_spent(seconds):
    """Keep the CPU busy for that long, and no longer."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@pytest.mark.parametrize("output", HEAVY, ids=[output[:20] for output in HEAVY])
def test_an_answer_that_is_too_much_to_compare_is_wrong_after_its_time(output):
    handler = signal.getsignal(signal.SIGPROF)
    started = time.process_time()
    assert MathEquivalence(seconds=0.3)({"answer": "18"}, output) == 0.0
    assert time.process_time() - started < 30
    assert signal.getitimer(signal.ITIMER_PROF)[0] == 0
    assert signal.getsignal(signal.SIGPROF) is handler
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def test_a_truth_that_is_too_much_to_read_is_an_error(monkeypatch):
    monkeypatch.setattr(math_equivalence.math_reading, "read_reference", lambda _: cpu_seconds_spent(10))
    with pytest.raises(RewardError, match=r"^task eggs: `answer` must be an expression"):
        MathEquivalence(seconds=0.1)({"id": "eggs", "answer": "7 + 7"}, "14")


def test_time_in_which_others_have_the_cpu_does_not_count():
    with math_equivalence.bounds(0.2):
        time.sleep(0.4)


def test_an_alarm_that_rings_in_a_finalizer_rings_again():
    class Slow:
        def __del__(self):
            cpu_seconds_spent(0.3)

    def drops_a_slow_one_and_continues():
        Slow()
        cpu_seconds_spent(10)

    hook = sys.unraisablehook
    with math_equivalence.bounds(0.1), pytest.raises(math_equivalence.OutOfTimeError):
        drops_a_slow_one_and_continues()
    assert sys.unraisablehook is hook


async def test_it_scores_in_reward_processes():
    pool = RewardPool("math", workers=1, timeout_seconds=300, options={"seconds": 1.0, "field": "truth"})
    try:
        assert await pool.score({"truth": "0.5"}, r"\boxed{\frac{2}{4}}") == 1.0
        assert await pool.score({"truth": "0.5"}, r"$9^{9^{9^{9}}}$") == 0.0
        with pytest.raises(RewardError, match=r"^reward math failed: task t: `truth` must be an expression"):
            await pool.score({"id": "t", "truth": "?"}, "1")
    finally:
        await pool.close()


def test_without_the_package_the_recipe_is_refused_with_the_name_of_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    math_reading.library.cache_clear()
    with pytest.raises(
        RecipeError, match=r"`math` needs the math-verify package; pip install 'areal-actors\[rewards\]'"
    ):
        resolve_reward("math")
    monkeypatch.undo()
    math_reading.library.cache_clear()
    monkeypatch.setattr(math_equivalence.math_reading, "states", lambda truth, answer: False)
    with pytest.raises(SetupError, match=r"does not find that 1/2 is 0\.5"):
        resolve_reward("math")


def test_the_package_is_loaded_only_where_it_is_used():
    loaded = "any(name in sys.modules for name in ('sympy', 'jsonschema'))"
    program = f"import sys, areal_actors.processes.process, areal_actors.cli; sys.exit({loaded})"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=300, check=False).returncode == 0


if GSM8K.exists():

    def test_solutions_of_gsm8k_are_right_for_their_own_task_and_wrong_for_another():
        rows = [json.loads(line) for line in GSM8K.read_text(encoding="utf-8").splitlines()[:300]]
        assert [row for row in rows if RULE(row, row["answer"]) != 1.0] == []
        assert [
            row for row in rows if RULE(row, f"So it is \\boxed{{{row['answer'].rpartition('#### ')[2]}}}.") != 1.0
        ] == []
        assert sum(RULE(row, rows[number - 1]["answer"]) for number, row in enumerate(rows)) / len(rows) < 0.02
