r"""Places and notations of results in answers; each valid one beside a near miss."""

import pytest

from areal_actors.core.errors import RewardError
from areal_actors.rewards.math_equivalence import MathEquivalence

RULE = MathEquivalence(seconds=10.0)

STATED = [
    ("18", r"First \boxed{17}, no: \boxed{18}", r"First \boxed{18}, no: \boxed{17}"),
    ("18", r"$\boxed{17}$ and $\boxed{18}$", r"$\boxed{18}$ and $\boxed{17}$"),
    ("18", r"\boxed{18}, for $9 + 9 = 18$, and not $17$", r"\boxed{17} The final answer is $18$."),
    ("18", r"I put it in \boxed{}: \boxed{18}", r"The answer is 18, in \boxed{}"),
    ("18", r"\boxed{\frac{1} is open; \boxed{18}", r"\boxed{18}, that is \boxed{18"),
    ("18", r"I will \boxed my answer: \boxed{18}.", r"\boxed{?} 18"),
    ("18", r"\boxed {18}", r"\boxed {17}"),
    ("18", r"\fbox{18}", r"\fbox{17} and 18"),
    ("18", r"\framebox{18}", r"\framebox{17}"),
    ("18", r"$\boxed 18$", r"$\boxed 17$"),
    ("18", r"\boxed{\boxed{18}}", r"\boxed{2\boxed{18}}"),
    ("18", r"\boxed{$18$}", r"\boxed{$17$}"),
    ("18", r"\boxed{18.}", r"\boxed{18.5.}"),
    ("18", r"\boxed{\approx 18}", r"\boxed{\approx 17}"),
    ("18", r"\boxed{\text{The answer is } 18}", r"\boxed{\text{The answer is not } 18}"),
    ("18", r"\boxed{\text{The answer is 18}}", r"\boxed{\text{June 18}}"),
    ("18", r"\boxed{\text{Answer: } 18}", r"\boxed{\text{at most } 18}"),
    ("18", r"\boxed{\textbf{(B)}\ 18}", r"\boxed{\textbf{(B)}\ 19}"),
    (r"\text{(B)}", r"\boxed{\textbf{(B)}\ 18}", r"\boxed{\textbf{(C)}\ 18}"),
    (r"\textbf{(B)}\ 18", r"\boxed{18}", r"\boxed{C}"),
    ("18", "#### Step 1: add\n9 + 9\n#### Step 2: done\n\\boxed{18}", "#### Step 18: done\n\\boxed{17}"),
    ("18", "#### Step 2\nThe answer is 18.", "#### Step 18\nThe answer is 2."),
    ("18", "\\boxed{17}\n#### 18", "\\boxed{18}\n#### 17"),
    (r"\{1, 2\}", r"One is \boxed{2}. The other is \boxed{1}.", r"\boxed{1}, \boxed{2} and \boxed{3}"),
    ("1, 2", r"$x = \boxed{1}$ or $x = \boxed{2}$", r"\boxed{1} or \boxed{3}"),
    (r"\pm 2", r"\boxed{2} and \boxed{-2}", r"\boxed{2}"),
    (r"x = \pm 2", r"\boxed{x = 2}, \boxed{x = -2}", r"\boxed{x = 2}, \boxed{x = -1}"),
    ("(1, 2)", r"\boxed{(1, 2)}", r"\boxed{1} and \boxed{2}"),
    (r"It is $\boxed{1}$ or $\boxed{2}$.", r"\boxed{1, 2}", r"\boxed{2}"),
    (r"It is $\boxed{1}$, no: $\boxed{2}$.", r"\boxed{2}", r"\boxed{1, 2}"),
    (r"It is \fbox{18}.", r"\boxed{18}", r"\boxed{17}"),
]

NOTATIONS = [
    (r"\frac{1}{3}", r"\boxed{0.\overline{3}}", r"\boxed{0.3}"),
    (r"0.\overline{3}", r"\boxed{1/3}", r"\boxed{0.3}"),
    ("0.3", r"\boxed{3/10}", r"\boxed{0.\overline{3}}"),
    (r"\frac{1}{6}", r"\boxed{0.1\overline{6}}", r"\boxed{0.\overline{16}}"),
    (r"-\frac{1}{3}", r"It is $-0.\overline{3}$.", r"It is $0.\overline{3}$."),
    (r"\frac{1}{9}", r"\boxed{0.\overline{3}^2}", r"\boxed{0.\overline{9}}"),
    (r"\frac{1}{7}", r"\boxed{0.\dot{1}4285\dot{7}}", r"\boxed{0.\dot{1}4285\dot{8}}"),
    (r"\frac{1}{3}", r"\boxed{0.\dot{3}}", r"\boxed{0.\dot{4}}"),
    (r"\frac{1}{3}", r"\boxed{0.(3)}", r"\boxed{0.1(3)}"),
    ("0.6", r"\boxed{0.1(6)}", r"\boxed{0.(6)}"),
    (r"\overline{AB}", r"\boxed{\overline{AB}}", r"\boxed{\overline{AC}}"),
    (r"[0,\infty)", r"\boxed{x \ge 0}", r"\boxed{x > 0}"),
    (r"x \ge 0", r"\boxed{[0,\infty)}", r"\boxed{(0,\infty)}"),
    (r"x \ge 0", r"\boxed{x \in [0,\infty)}", r"\boxed{y \ge 0}"),
    (r"(-\infty,3]", r"\boxed{3 \ge x}", r"\boxed{x \ge 3}"),
    ("(1,2]", r"\boxed{1 < x \le 2}", r"\boxed{1 \le x \le 2}"),
    (r"1 < x \le 2", r"\boxed{(1,2]}", r"\boxed{[1,2]}"),
    ("[0,1)", r"\boxed{1 > x \ge 0}", r"\boxed{0 < x \le 1}"),
    (r"(-\infty,1)\cup(2,\infty)", r"\boxed{x<1 \text{ or } x>2}", r"\boxed{1<x<2}"),
    (r"x<1 \text{ or } x>2", r"\boxed{x \in (-\infty,1)\cup(2,\infty)}", r"\boxed{(-\infty,1]\cup(2,\infty)}"),
    (r"\mathbb{R}", r"\boxed{(-\infty,\infty)}", r"\boxed{x>1 \text{ and } x<2}"),
    ("1, 2", r"\boxed{x = 1, x = 2}", r"\boxed{1 < x < 2}"),
    ("1 < x < 2", r"\boxed{2 > x > 1}", r"\boxed{1, 2}"),
    (r"x \in (1,2)", r"\boxed{x \in (1,2)}", r"\boxed{\{1, 2\}}"),
    (r"x = 1, x = 2", r"\boxed{x \in \{1, 2\}}", r"\boxed{x \in (1,2)}"),
    ("5", r"\boxed{x = 5}", r"\boxed{x \ge 5}"),
    (r"\emptyset", r"\boxed{\varnothing}", r"\boxed{0}"),
    (r"\varnothing", r"\boxed{\{\}}", r"\boxed{\{\varnothing\}}"),
    (r"\{\}", r"\boxed{\varnothing}", r"\boxed{\{0\}}"),
    ("(1,2)", r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}", r"\boxed{\begin{pmatrix}2\\1\end{pmatrix}}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{(1,2)}", r"\boxed{[1,2)}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\langle 1,2\rangle}", r"\boxed{\{1,2\}}"),
    (
        r"\begin{pmatrix}1\\2\end{pmatrix}",
        r"\boxed{\begin{bmatrix}1\\2\end{bmatrix}}",
        r"\boxed{\begin{pmatrix}1&2\end{pmatrix}}",
    ),
    ("(1,2,3)", r"\boxed{\begin{pmatrix}1\\2\\3\end{pmatrix}}", r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}"),
    ("(1,2]", r"\boxed{(1,2]}", r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}"),
    (r"x \in (1,2)", r"\boxed{1<x<2}", r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}"),
    (r"(0,\infty)", r"\boxed{x > 0}", r"\boxed{\begin{pmatrix}0\\\infty\end{pmatrix}}"),
    ("-1", r"\boxed{e^{i\pi}}", r"\boxed{e^{2i\pi}}"),
    (r"e^{i\pi}", r"\boxed{-1}", r"\boxed{1}"),
    (r"2e^{i\pi/4}", r"\boxed{\sqrt2 + i\sqrt2}", r"\boxed{\sqrt2 - i\sqrt2}"),
    (r"3\mathrm{i}", r"\boxed{3i}", r"\boxed{3}"),
    (r"\{i,-i\}", r"\boxed{\pm i}", r"\boxed{i, 1}"),
    (r"2\mathbf{i}+3\mathbf{j}", r"\boxed{3\mathbf{j}+2\mathbf{i}}", r"\boxed{2\mathbf{i}+5\mathbf{j}}"),
    (
        r"2\text{ feet } 3\text{ inches}",
        r"\boxed{2\text{ feet } 3\text{ inches}}",
        r"\boxed{2\text{ feet } 5\text{ inches}}",
    ),
    (r"33\frac13\%", r"\boxed{33\frac{1}{3}\%}", r"\boxed{33}"),
    ("5", r"\boxed{5~\mathrm{m/s}}", r"\boxed{5~\mathrm{m/s} + 1}"),
    ("90", r"\boxed{90°}", r"\boxed{80°}"),
    (r"\$5.50", r"\boxed{5.5}", r"\boxed{\$5.51}"),
    ("1234567", r"\boxed{1\,234\,567}", r"\boxed{1\,234\,568}"),
    (r"\{100, 200\}", r"\boxed{100,\ 200}", r"\boxed{100\,200}"),
    ("10", r"\boxed{\binom52}", r"\boxed{\binom53 + 1}"),
]


@pytest.fixture(scope="module", autouse=True)
def _loaded():
    RULE.prepare()


@pytest.mark.parametrize(("truth", "right", "wrong"), [*STATED, *NOTATIONS])
def test_what_states_the_truth_is_right_and_its_near_miss_is_wrong(truth, right, wrong):
    assert (RULE({"answer": truth}, right), RULE({"answer": truth}, wrong)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("truth", "answer", "reward"),
    [
        ("18", "That makes 18.", 1.0),
        (r"\frac{1}{2}", "That makes 1/2.", 1.0),
        (r"\sqrt{2}", r"That makes \sqrt{2}.", 0.0),
        (r"\sqrt{2}", r"That makes $\sqrt{2}$.", 1.0),
        ("18", "That makes 18, and not 17.", 0.0),
    ],
)
def test_of_prose_the_last_number_is_read_and_of_dollars_any_expression(truth, answer, reward):
    assert RULE({"answer": truth}, answer) == reward


@pytest.mark.parametrize("truth", [r"It is \boxed{18", r"It is 18, in \boxed{}", r"5\frac{"])
def test_a_truth_whose_last_box_states_nothing_is_an_error(truth):
    with pytest.raises(RewardError, match=r"`answer` must be an expression"):
        RULE({"answer": truth}, "18")
