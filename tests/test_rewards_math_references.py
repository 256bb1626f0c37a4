r"""References as data sets have them, places in which answers state a result, and attempts to be rewarded without
stating it."""

import json
import os
import time
from pathlib import Path

import pytest
from support.math_references import REFERENCES

from areal_actors.rewards.math_equivalence import MathEquivalence

RULE = MathEquivalence(seconds=10.0)
ENDLESS = "\\boxed{9^{9^{9^9}}}"
"""A number that nothing computes: scored when the time is over."""
GSM8K = (
    Path(os.environ.get("AREAL_GSM8K", Path(__file__).parent.parent.parent / "shared" / "data" / "gsm8k"))
    / "test.jsonl"
)

RIGHT = [
    ("B", "Answer: **B**"),
    ("B", "**Answer: B**"),
    ("B", "答案选B"),
    ("13", r"\boxed{1010_2+11_2}"),
    ("5 km", r"\boxed{5000 \text{ m}}"),
    (r"\frac{1}{3}\text{ hour}", r"\boxed{20 \text{ minutes}}"),
    ("73", "答案：73"),
    ("73", "答案是 73。"),
    ("73", "最终答案：$73$"),
    ("73", "**Answer:** 73"),
    ("73", "**Final Answer**: 73"),
    ("73", "Final Answer: The final answer is $73$. I hope it is correct."),
    ("73", "The answer is: **73**."),
    ("73", "Answer: \\(73\\)"),
    ("73", "Answer:\n73"),
    ("73", "Answer:\n\n$$73$$"),
    ("73", "<answer> 73 </answer>"),
    ("73", "<answer>\\boxed{73}</answer>"),
    ("73", "<answer>The answer is 73.</answer>"),
    ("73", "<ANSWER>73</ANSWER>"),
    ("73", "<think>maybe \\boxed{5}</think>\n\nAnswer: 73"),
    ("73", "``73``"),
    ("73", "`73`"),
    ("73", "```\n73\n```"),
    ("73", "Answer: 73 apples"),
    ("73", "Answer: 73."),
    ("73", "Answer: (73)"),
    ("73", 'The answer is "73"'),
    ("73", "７３"),
    ("73", "答案：７３元"),
    ("73", "\\boxed{`73`}"),
    ("73", "\\boxed{**73**}"),
    ("73", "<b>Answer: 73</b>"),
    ("73", "<strong>73</strong>"),
    ("73", "[73]"),
    ("\\frac{1}{2}", "Answer: 1/2"),
    ("\\frac{1}{2}", "Answer: \\frac{1}{2}"),
    ("July 4", "The answer is July 4."),
    ("July 4", "\\boxed{4 July}"),
    ("July 4", "\\boxed{\\text{July 4th}}"),
    ("5 dollars", "\\boxed{\\$5}"),
    ("5 dollars", "\\boxed{5}"),
    ("5", "\\boxed{5 dollars}"),
    ("12:00", "\\boxed{12{:}00}"),
    ("12:00", "Answer: 12:00"),
    ("2nd place", "\\boxed{second place}"),
    ("2nd place", "\\boxed{\\text{2nd place}}"),
    ("2516_8", "\\boxed{2516_{8}}"),
    ("2516_8", "\\boxed{2516_{\\text{eight}}}"),
    ("2516_8", "\\boxed{(2516)_8}"),
    ("2516_8", "\\boxed{2516}"),
    ("2516_8", "$2516_8$"),
    ("2516_8", "It is $2516_8$."),
    ("x \\equiv 3 \\pmod{7}", "\\boxed{x \\equiv 10 \\pmod 7}"),
    ("x \\equiv 3 \\pmod{7}", "\\boxed{3 \\pmod{7}}"),
    ("x \\equiv 3 \\pmod{7}", "\\boxed{x \\equiv 3 (\\bmod 7)}"),
    ("x \\equiv 3 \\pmod{7}", "\\boxed{x \\equiv -4 \\mod 7}"),
    ("ACD", "\\boxed{A, C, D}"),
    ("ACD", "\\boxed{A,C,D}"),
    ("ACD", "\\boxed{\\text{A, C, and D}}"),
    ("ACD", "Answer: ACD"),
    ("ACD", "答案：ACD"),
    ("B", "Answer: (B)"),
    ("B", "Answer: B"),
    ("B", "The answer is (B)."),
    ("B", "\\boxed{\\text{B}}"),
    ("B", "\\boxed{B. 12}"),
    ("B", "<answer>B</answer>"),
    ("B", "Answer: B. 12"),
    ("\\{x \\mid x>1\\}", "\\boxed{x>1}"),
    ("\\{x \\mid x>1\\}", "\\boxed{x \\in (1,\\infty)}"),
    ("(1,\\infty)", "\\boxed{\\{x|x>1\\}}"),
    ("(1,\\infty)", "\\boxed{\\{x \\in \\mathbb{R} : x > 1\\}}"),
    ("\\{1,2,3\\}", "\\boxed{3,2,1}"),
    ("\\{1,2\\}", "\\boxed{\\{2,1\\}}"),
    ("\\{1,2\\}", "\\boxed{1\\text{ and }2}"),
    ("5 \\text{ m}", "\\boxed{500 \\text{ cm}}"),
    ("90 \\text{ minutes}", "\\boxed{1.5 \\text{ hours}}"),
    ("e", "\\boxed{\\mathrm{e}}"),
    ("\\mathrm{e}^2", "\\boxed{e^2}"),
    ("2\\mathrm{e}", "\\boxed{2e}"),
    ("\\frac{\\mathrm e}{2}", "\\boxed{\\frac{e}{2}}"),
    ("\\text{Evelyn}", "\\boxed{Evelyn}"),
    ("\\text{Evelyn}", "Answer: Evelyn"),
    ("\\text{Evelyn}", "<answer>Evelyn</answer>"),
    ("\\text{odd}", "\\boxed{odd}"),
    ("\\text{odd}", "\\boxed{\\text{Odd}}"),
    ("yes", "\\boxed{\\text{Yes}}"),
    ("Yes", "<answer>yes</answer>"),
    ("no solution", "\\boxed{\\text{No solution}}"),
    ("0.333333", "\\boxed{\\frac13}"),
    ("3.14159", "\\boxed{3.14159}"),
    ("1e-20", "\\boxed{10^{-20}}"),
    ("6.63e-34", "\\boxed{6.63 \\times 10^{-34}}"),
    ("18", "A: 18"),
    ("18", "#### 18"),
    ("18", "= 18"),
    ("18", "x = 18"),
    ("3:30", "\\boxed{3:30}"),
    ("(3,4)", "(3, 4)"),
    ("(3,4)", "Answer: (3, 4)"),
    ("(3,4)", "<answer>(3,4)</answer>"),
    (5, "\\boxed{5}"),
    (["5"], "\\boxed{5}"),
    (1.5, "\\boxed{\\frac32}"),
    ("-\\frac{1}{2}", "−1/2"),
    ("1{,}234", "Answer: 1,234"),
    ("3\\sqrt{2}", "Answer: 3√2"),
    ("\\pi", "Answer: π"),
    ("x^2+1", "Answer: $x^2+1$"),
    ("\\frac{3}{4}\\text{ cup}", "\\boxed{\\frac34}"),
    ("\\text{(C)}", "\\boxed{C}"),
    ("90^\\circ", "\\boxed{90 \\text{ degrees}}"),
    ("90^\\circ", "\\boxed{90}"),
    ("50\\%", "\\boxed{50 \\text{ percent}}"),
    ("10\\text{ cm}^2", "\\boxed{10}"),
    ("204", "\\boxed{204}\n\nAnswer: 204"),
    ("73", "So the answer is 73 because 70+3 is 73"),
    ("73", "<answer>\n73\n</answer>\n"),
    ("73", "Answer - 73"),
    ("73", "Answer 73"),
    ("73", "\\textbf{Answer: 73}"),
    ("73", "最后答案是73"),
    ("73", "所以答案为：73"),
    ("73", "故选：73"),
    ("C", "故选：C"),
    ("C", "故选C。"),
    ("73", "Ответ: 73"),
    ("73", '{"answer": 73}'),
    ("73", '{"answer": "73"}'),
    ("73", "Answer: <73>"),
    ("73", "The value is 73"),
    ("73", "$\\boxed{73}$"),
    ("73", "$$73$$"),
    ("73", "\\[ 73 \\]"),
]

WRONG = [
    (r"\sqrt{10^{40}+1}", r"\boxed{10^{20}}"),
    ("1010_2+11_2", r"\boxed{1010_3+11_3}"),
    ("July 4, 1776", r"\boxed{July 4}"),
    ("July 4", "\\boxed{July 5}"),
    ("July 4", "\\boxed{\\text{July}}"),
    ("July 4", "Answer: 4"),
    ("5 dollars", "\\boxed{5 euros}"),
    ("5 dollars", "\\boxed{50}"),
    ("12:00", "\\boxed{12}"),
    ("12:00", "\\boxed{0}"),
    ("12:00", "\\boxed{00:12}"),
    ("2nd place", "\\boxed{2}"),
    ("2nd place", "\\boxed{2nd}"),
    ("2516_8", "\\boxed{1358}"),
    ("2516_8", "\\boxed{1358_{10}}"),
    ("1358", "\\boxed{2516_8}"),
    ("2516", "\\boxed{2516_8}"),
    ("x \\equiv 3 \\pmod{7}", "\\boxed{x \\equiv 3 \\pmod{8}}"),
    ("x \\equiv 3 \\pmod{7}", "\\boxed{y \\equiv 3 \\pmod{7}}"),
    ("x \\equiv 3 \\pmod{7}", "\\boxed{x = 3}"),
    ("ACD", "\\boxed{ABCD}"),
    ("ACD", "\\boxed{A}"),
    ("ACD", "\\boxed{AC}"),
    ("B", "\\boxed{A, B, C, D}"),
    ("B", "\\boxed{ABCD}"),
    ("B", "Answer: A or B"),
    ("\\{x \\mid x>1\\}", "\\boxed{\\{x \\mid x \\ge 1\\}}"),
    ("\\{x \\mid x>1\\}", "\\boxed{1}"),
    ("\\{1,2\\}", "\\boxed{\\{1,2,3\\}}"),
    ("73", "<answer>37</answer>"),
    ("73", "73 <answer>37</answer>"),
    ("73", "<answer>73</answer><answer>37</answer>"),
    ("73", "Answer: 37"),
    ("73", "Answer:73 Answer:74"),
    ("73", "<answer>73 or 74</answer>"),
    ("73", "<answer>70, 71, 72, 73, 74</answer>"),
    ("73", "\\boxed{70, 71, 72, 73}"),
    ("73", "Answer: 1 2 3 73"),
    ("73", "\\boxed{73 \\text{ or } 74}"),
    ("73", "\\boxed{73}\\boxed{74}"),
    ("73", "\\boxed{\\{1,...,100\\}}"),
    ("73", "\\boxed{x}"),
    ("73", "\\boxed{74=73}"),
    ("73", "<answer></answer>"),
    ("73", "<answer>"),
    ("73", "<answer>7300000000000000000000000000000000000000000000000000</answer>"),
    ("\\text{Evelyn}", "\\boxed{\\text{Evelyn or Briana}}"),
    ("\\text{Evelyn}", "\\boxed{Briana}"),
    ("e", "\\boxed{\\mathrm{i}}"),
    ("6.63e-34", "\\boxed{0}"),
    ("10^{-30}", "\\boxed{0}"),
    ("0", "\\boxed{10^{-30}}"),
    ("\\frac{1}{3}", "\\boxed{0.33}"),
    ("5 \\text{ m}", "\\boxed{5 \\text{ kg}}"),
    ("x", "\\boxed{y}"),
    ("no solution", "\\boxed{0}"),
    ("(3,4)", "\\boxed{3,5}"),
    ("73", "\\boxed{\\text{the answer}}"),
    ("73", "\\boxed{\\text{73 or 74}}"),
    ("73", "\\boxed{73, 73.0000001}"),
    ("73", "Answer: \\boxed{}"),
    ("B", "\\boxed{\\text{(B) or (C)}}"),
    ("B", "Answer: (A)(B)(C)(D)"),
]

HACKS = [
    ", ".join(map(str, range(1000))),
    r"\boxed{" + ", ".join(map(str, range(200))) + "}",
    r"\boxed{\{" + ", ".join(map(str, range(1000))) + r"\}}",
    "<answer>" + " or ".join(map(str, range(100))) + "</answer>",
    r"\boxed{73}\boxed{72}",
    "<answer>73</answer><answer>72</answer>",
    r"\boxed{\boxed{73} 72}",
    r"Answer: 73 Answer: 72",
    r"\boxed{73 \text{ or } 72}",
    r"\boxed{" + "9" * 20000 + "}",
    ENDLESS,
    r"\boxed{10^{10^{10}}!}",
    r"\boxed{\sum_{n=1}^{10^{12}} n^n}",
    r"\boxed{\int_0^1 x^{x^{x^x}} dx}",
    r"\boxed{\prod_{n=1}^{10^9} n}",
    "(" * 50000,
    "<answer>" * 20000,
    "`" * 50000,
    "**" * 50000,
    r"\text{" * 20000,
    "答案：" * 20000,
    "Answer: " * 20000,
    "<b>" * 30000,
    r"\boxed{" + "x+" * 20000 + "1}",
    r"\boxed{(x+1)^{100000}}",
    r"\boxed{\frac{" + "1" * 3000 + "}{" + "7" * 3000 + "}}",
    r"\boxed{1" + "+1" * 5000 + "}",
    r"\boxed{72=73}",
    r"\boxed{x=73=72}",
    r"\boxed{\infty}",
    r"\boxed{nan}",
    r"\boxed{0/0}",
    r"\boxed{[0,100]}",
    r"\boxed{x \in \mathbb{R}}",
    r"\boxed{\mathbb{Z}}",
    r"\boxed{73 \pm 10^9}",
    r"\boxed{A\_B}",
    "Answer: " + "(" * 1000 + "73" + ")" * 999,
    r"\boxed{x_{73}}",
    r"\boxed{" + r"\sqrt{" * 500 + "73" + "}" * 500 + "}",
    "#### " + "1 " * 5000,
    "2026" * 5000 + "_8",
    "\\boxed{" + "A" * 10000 + "}",
    "\\boxed{" + "A, " * 5000 + "}",
    "\\boxed{" + "1" * 199 + " " * 0 + "a b " * 40 + "}",
    "a" * 20000,
    "\\boxed{" + "-" * 19000 + "}",
    "\\boxed{" + "5 cm " * 3000 + "}",
    "\\boxed{\\{x \\mid " + "x" * 15000 + "}",
    " " * 20000,
    "\\boxed{" + " " * 19900 + "}",
    "\\boxed{" + "\\text{ }" * 2000 + "}",
    "\\boxed{" + "1," * 9000 + "}",
    "\\boxed{" + "(A)" * 6000 + "}",
    "\\boxed{10^{-400}}",
    "\\boxed{73.0000000000000001 \\times 10^{5}}",
    "\\boxed{\\gcd(10^{10^8},73)}",
    "\\boxed{\\sin(10^{10^{8}})}",
]


@pytest.fixture(scope="module", autouse=True)
def _loaded():
    RULE.prepare()


def test_every_reference_equals_itself_in_a_box_in_a_tag_and_after_answer_and_no_near_miss_does():
    assert len(REFERENCES) >= 200
    for truth, near in REFERENCES:
        task = {"answer": truth}
        stated = [rf"So \boxed{{{truth}}}.", f"<answer>{truth}</answer>", f"Answer: {truth}"]
        missed = [rf"So \boxed{{{near}}}.", f"<answer>{near}</answer>", f"Answer: {near}"]
        assert ([RULE(task, text) for text in stated], [RULE(task, text) for text in missed]) == (
            [1.0] * 3,
            [0.0] * 3,
        ), truth


@pytest.mark.parametrize(("truth", "answer"), RIGHT)
def test_an_answer_in_the_form_of_a_prompt_counts(truth, answer):
    assert RULE({"answer": truth}, answer) == 1.0


@pytest.mark.parametrize(("truth", "answer"), WRONG)
def test_an_answer_that_only_resembles_the_reference_does_not_count(truth, answer):
    assert RULE({"answer": truth}, answer) == 0.0


def test_a_number_that_cannot_be_computed_does_not_count_when_the_time_is_over():
    rule = MathEquivalence(seconds=1.0)
    rule.prepare()
    assert rule({"answer": "73"}, ENDLESS) == 0.0


@pytest.mark.slow
def test_an_attempt_to_be_rewarded_without_an_answer_scores_0_within_its_deadline():
    rule = MathEquivalence(seconds=0.25)
    for answer in HACKS:
        started = time.process_time()
        assert rule({"answer": "73"}, answer) == 0.0, answer[:60]
        assert time.process_time() - started < 20, answer[:60]


if GSM8K.exists():

    def test_all_references_of_gsm8k_equal_themselves_in_a_box():
        rows = [json.loads(line) for line in GSM8K.read_text(encoding="utf-8").splitlines()]
        numbers = [row["answer"].rpartition("#### ")[2] for row in rows]
        assert sum(RULE(row, rf"\boxed{{{number}}}") for row, number in zip(rows, numbers, strict=True)) == len(rows)
