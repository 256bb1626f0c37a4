import json
import os
import re
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from areal_actors.core.errors import RecipeError, RewardError
from areal_actors.rewards import check_reward, resolve_reward
from areal_actors.rewards.gsm8k import final_number, gsm8k, shows_work

GSM8K = Path(os.environ.get("AREAL_GSM8K", Path(__file__).parent.parent.parent / "shared" / "data" / "gsm8k"))
GSM8K_FILES = sorted(GSM8K.glob("*.jsonl"))
"""The real data, where it is at hand; its tests are collected only then."""

READ = [
    # four hashes
    ("#### 18", 18),
    ("She makes 9*2=18.\n#### 18", 18),
    ("####18", 18),
    ("#### 18.", 18),
    ("#### $18.00 per day.", 18),
    ("#### 1,234,567", 1234567),
    ("#### -7", -7),
    ("#### **18**", 18),
    ("#### `18`", 18),
    ("#### (18)", 18),
    ("####\n18", 18),
    ("#### 18\nThat was easy. I am 99% sure.", 18),
    ("#### 4\nNo, that is wrong.\n#### 18", 18),
    ("#### 9 * 2 = 18", 18),
    ("#### 18 (9 times 2)", 18),
    ("#### 18 dollars, because 9 times 2 is that", 18),
    ("#### $\\frac{1}{2}$", Fraction(1, 2)),
    ("The answer is 4, so \\boxed{4}. #### 18", 18),
    ("#### Step 1: 5 eggs\n#### Step 2: 18 eggs", 18),
    ("#### Final Answer\nIn 3 steps: \\boxed{18}", 18),
    # a box
    ("\\boxed{18}", 18),
    ("$$\\boxed{18}$$ after 3 steps", 18),
    ("\\boxed{\\text{18 dollars}}", 18),
    ("\\boxed{\\$18}", 18),
    ("\\boxed{18\\text{ km}}", 18),
    ("\\boxed{18\\,\\text{km}^2}", 18),
    ("\\boxed{\\frac{1}{2}}", Fraction(1, 2)),
    ("\\boxed{\\dfrac{-3}{4}}", Fraction(-3, 4)),
    ("\\boxed{-\\frac{3}{4}}", Fraction(-3, 4)),
    ("\\boxed{2\\tfrac{1}{2}}", Fraction(5, 2)),
    ("\\boxed{\\frac12}", Fraction(1, 2)),
    ("\\boxed{x = 18}", 18),
    ("\\boxed{{18}}", 18),
    ("\\boxed{1{,}234}", 1234),
    ("\\boxed{4} and then \\boxed{18}", 18),
    ("\\fbox{18} or 3", 18),
    ("The answer is 4. \\boxed{18}", 18),
    ("\\boxed{18", 18),
    # in words
    ("The answer is 18.", 18),
    ("The answer is 18.The next task has 5 eggs.", 18),
    ("The final answer is: **18**", 18),
    ("**Answer:** 18", 18),
    ("ANSWER = 18", 18),
    ("The answer to the question is $18 per day, not 19 in 7 days", 18),
    ("the answer would be 18 since 9 times 2 is that", 18),
    ("So the answer is 9 × 2 = 18 eggs. There are 7 days.", 18),
    ("The answer is below.\nIt is 18", 18),
    # the last number
    ("18", 18),
    ("She has 16 - 3 - 4 = 9 eggs and earns 9 * 2 = 18", 18),
    ("3 eggs\n- 18 apples", 18),
    ("The area is 18 m^2", 18),
    ("The area is 18 m^{2}", 18),
    ("18 m2, by model v1.2", 18),
    ("__18__", 18),
    # how numbers are written
    ("$1,234.50", Fraction("1234.5")),
    ("€ 18", 18),
    ("£18", 18),
    ("USD 18", 18),
    ("US$18", 18),
    ("-$5", -5),
    ("$-5", -5),
    ("\u22127", -7),
    ("\u20137", -7),
    ("7-2", 2),
    ("(7)-2", 2),
    ("18%", 18),
    ("18\\%", 18),
    ("18km", 18),
    ("3.50", Fraction("3.5")),
    (".5", Fraction("0.5")),
    ("1/2", Fraction(1, 2)),
    ("1 1/2", Fraction(3, 2)),
    ("-1 1/2", Fraction(-3, 2)),
    ("1 and 1/2", Fraction(3, 2)),
    ("\u00bd", Fraction(1, 2)),
    ("1\u00bd", Fraction(3, 2)),
    ("1.5e3", 1500),
    ("2E-1", Fraction(1, 5)),
    ("1.5 \\times 10^{3}", 1500),
    ("1.5 × 10^3", 1500),
    ("12\u202f345", 12345),
    ("1234,567", 567),
    ("1, 2, 18", 18),
    # no number
    ("", None),
    ("I do not know.", None),
    ("#### ", None),
    ("\\boxed{}", None),
    ("\\boxed{\\text{unknown}} of 18", None),
    ("1/0", None),
    ("\\frac{1}{0}", None),
    ("9" * 5000, None),
    # several numbers: neither counts
    ("#### 5 or 6", None),
    ("#### 5, 6", None),
    ("#### 5, or 6", None),
    ("#### 5 (or 6)", None),
    ("#### 10-12", None),
    ("#### 2 hours 30 minutes", None),
    ("\\boxed{5 \\text{ or } 6}", None),
    ("The answer is 5 or 6.", None),
    ("#### 18 or $18.00", 18),
]


@pytest.mark.parametrize(("output", "number"), READ, ids=[output[:40] for output, _ in READ])
def test_the_final_number_of_an_answer(output, number):
    assert final_number(output) == number


@pytest.mark.parametrize(
    ("solution", "output", "reward"),
    [
        ("#### 18", "The answer is $18.00.", 1.0),
        ("#### 1,234", "#### 1234", 1.0),
        ("#### 0.3", "0.30000000000000004", 1.0),
        ("#### 0.5", "\\boxed{\\frac{1}{2}}", 1.0),
        ("#### 1/3", "0.333333", 1.0),
        ("#### 1/3", "0.333", 0.0),
        ("#### 1000000", "#### 1000001", 0.0),
        ("#### 3", "#### 3.01", 0.0),
        ("#### 50%", "#### 50", 1.0),
        ("#### 50%", "#### 0.5", 0.0),
        ("#### 5", "#### -5", 0.0),
        ("#### 5", "#### 5 or 6", 0.0),
        ("#### 5", "", 0.0),
    ],
)
def test_a_reward_is_1_for_the_same_number_and_0_for_another(solution, output, reward):
    assert gsm8k({"question": "?", "answer": solution}, output) == reward


@pytest.mark.parametrize("answer", ["", "18 or 19", "#### many", "#### 5 or 6", "#### 1/0", None, 18])
def test_a_task_without_a_truth_is_an_error_that_names_it(answer):
    with pytest.raises(
        RewardError, match=r"task eggs-3: `answer` must be a text that ends with `#### NUMBER`, or a number, got "
    ):
        gsm8k({"id": "eggs-3", "question": "How many eggs?", "answer": answer}, "#### 18")
    with pytest.raises(RewardError, match=r"task How many eggs\?: "):
        gsm8k({"question": "How many eggs?", "answer": answer}, "")


@pytest.mark.parametrize(
    ("output", "worked"),
    [
        ("She has <<16-3-4=9>>9 eggs.\n#### 9", True),
        ("<<5*.5=2.5>>", True),
        ("9 * 2 = 18", True),
        ("9 eggs * $2 = $18", True),
        ("16 - 3 - 4 = 9", True),
        ("9 \\times 2 = 18", True),
        ("(3 + 4) / 7 = 1", True),
        ("#### 18", False),
        ("The answer is 18", False),
        ("x = 18", False),
        ("<<18>>18", False),
        ("18 = 18", False),
        ("From 2-3 of them 5 are left", False),
        ("", False),
    ],
)
def test_worked_answers_are_distinguished_from_bare_ones(output, worked):
    assert shows_work(output) is worked


REPEATED = [
    "1,",
    "answer ",
    "answer is 5 ",
    "\\boxed{",
    "{",
    "#### ",
    "1 and ",
    "<<1+",
    "1+",
    " ",
    "\\text{",
    "\\frac{1 ",
    "1 a + ",
    "9",
    "$ ",
]


@pytest.mark.parametrize("output", REPEATED)
def test_no_output_takes_long_to_read(output):
    started = time.process_time()
    final_number(output * (100_000 // len(output)))
    shows_work(output * (100_000 // len(output)))
    assert time.process_time() - started < 5  # the patterns are linear: about 0.2 s; quadratic ones took minutes


if GSM8K_FILES:

    @pytest.mark.parametrize("path", GSM8K_FILES, ids=lambda path: path.stem)
    def test_every_solution_of_gsm8k_is_right_for_its_own_task_and_wrong_for_another(path):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert [row for row in rows if gsm8k(row, row["answer"]) != 1.0] == []
        assert [
            row for row in rows if gsm8k(row, f"**Answer:** ${row['answer'].rpartition('#### ')[2]}.00 each.") != 1.0
        ] == []
        assert sum(gsm8k(row, rows[number - 1]["answer"]) for number, row in enumerate(rows)) / len(rows) < 0.02
        assert sum(shows_work(row["answer"]) for row in rows) / len(rows) > 0.99
        assert sum(shows_work(re.sub(r"<<.*?>>", "", row["answer"])) for row in rows) / len(rows) > 0.95
        assert [row["question"] for row in rows if shows_work(row["question"])] == []


NUMBERS = [
    1,
    0.5,
    -2.0,
    True,
    np.float32(0.5),
    np.int64(3),
    np.bool_(True),
    np.array(0.25),
    Fraction(1, 2),
    Decimal("0.5"),
]


@pytest.mark.parametrize("value", NUMBERS)
def test_every_real_number_is_a_reward(value):
    assert check_reward(value) == float(value)
    assert type(check_reward(value)) is float


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (None, "a reward must be a real number, got None"),
        ("1.0", "a reward must be a real number, got str '1.0'"),
        (float("nan"), "a reward must be finite, got nan"),
        (np.float32("inf"), "a reward must be finite, got inf"),
        (-float("inf"), "a reward must be finite, got -inf"),
        (1j, "a reward must be a real number, got complex 1j"),
        ([1.0], r"a reward must be a real number, got list \[1.0\]"),
        (np.array([1.0, 2.0]), "a reward must be a real number, got ndarray"),
        (10**400, "a reward must be a real number, got int 1000"),
    ],
)
def test_anything_else_is_refused_by_name(value, complaint):
    with pytest.raises(RewardError, match=f"^{complaint}"):
        check_reward(value)


def test_rewards_are_found_by_name_or_path(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def long(task, output):\n    return len(output)\n\ndef one(task):\n    return 1\n\nlimit = 3\n"
    )
    assert resolve_reward("gsm8k")({"answer": "#### 18"}, "18")["reward"] == 1.0
    assert resolve_reward("mine.py:long", tmp_path)({}, "abc") == 3
    for name, complaint in [
        (
            "gsmk8",
            (
                "no reward is called `gsmk8`; did you mean `gsm8k`\\? known: format,"
                " gsm8k, json_schema, judge, length, math, python_tests,"
                " weighted; one of"
            ),
        ),
        ("accuracy", "no reward is called `accuracy`; known"),
        ("mine.py:one", "`mine.py:one` must take the task's row and the output"),
        ("mine.py:limit", "`mine.py:limit` must take the task's row and the output"),
        ("mine.py:lang", "has no `lang`; did you mean `long`"),
    ]:
        with pytest.raises(RecipeError, match=complaint):
            resolve_reward(name, tmp_path)
