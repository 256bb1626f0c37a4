"""A judge is compared with labelled examples before a run, which is refused below a bound."""

from __future__ import annotations

import json
import math

import pytest
from support.judge_server import judge_server
from support.judging import answer_with

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.recipe.load import load
from areal_actors.rewards.judge.calibration import (
    agreement_in_order,
    agreement_of,
    rank_correlation,
    read_examples,
    wilson_interval,
)
from areal_actors.run.judge_check import calibrate_judges


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with judge_server(tmp_path_factory.mktemp("judge")) as running:
        yield running


@pytest.fixture
def recipe_of(tmp_path, server):
    def read(examples, **options):
        file = tmp_path / "labelled.jsonl"
        file.write_text("\n".join(json.dumps({"question": "?", **example}) for example in examples))
        table = {"url": server.url, "model": "steady", "calibration": str(file), **options}
        options = ", ".join(f"{name} = {json.dumps(value)}" for name, value in table.items())
        path = tmp_path / "recipe.toml"
        path.write_text(
            f'run = "judged"\nfolder = "{tmp_path}/runs"\nsteps = 1\nmodel = "embedded"\n'
            f'task.dataset = "arithmetic"\nevaluation.tasks = 0\n'
            f'task.reward = "judge"\ntask.reward_options = {{ {options} }}'
        )
        return load([path], [], CudaDevices(count=0, reason="none")).recipe

    return read


async def test_a_judge_that_agrees_is_accepted_with_its_interval_and_asked_once(recipe_of, server):
    examples = [{"output": answer_with(5 * (n % 2), n), "label": n % 2} for n in range(20)]
    before = server.calls()
    (event,) = await calibrate_judges(recipe_of(examples, min_agreement=0.9))
    assert (event.measure, event.agreement, event.n, round(event.low, 3), event.high) == (
        *("accuracy", 1.0, 20),
        *(0.839, 1.0),
    )
    assert server.calls() - before == 20
    assert await calibrate_judges(recipe_of(examples, min_agreement=0.9)) == [event]
    assert server.calls() - before == 20
    assert "agrees with the labels of" in event.sentence()
    assert event.sentence().endswith("accuracy 1.000 (95 % interval 0.839 to 1.000, 20 examples)")


async def test_a_judge_below_the_bound_is_refused_by_name_with_the_remedy(recipe_of):
    examples = [{"output": answer_with(5 * (n % 2), n), "label": n % 2 if n < 14 else 1 - n % 2} for n in range(20)]
    with pytest.raises(
        SetupError,
        match=r"task.reward: judge judge \(steady\) agrees .* accuracy 0.700 \(95 % interval 0.481 to 0.855,"
        r" 20 examples\), which is below min_agreement = 0.75; improve its prompt",
    ):
        await calibrate_judges(recipe_of(examples, min_agreement=0.75))


async def test_labels_that_are_grades_are_compared_by_rank(recipe_of):
    examples = [{"output": answer_with(n % 5, n), "label": 100 + 3 * (n % 5)} for n in range(10)]
    (event,) = await calibrate_judges(recipe_of(examples))
    assert (event.measure, event.agreement, event.n) == ("rank correlation", pytest.approx(1.0), 10)


@pytest.mark.parametrize("method", ["listwise", "pairwise"])
async def test_comparisons_are_calibrated_by_the_order_within_groups(recipe_of, method):
    labels = (1, 2, 3, 0)
    examples = [
        {"output": answer_with(n + 1, 4 * group + n), "label": labels[n], "group": group}
        for group in range(3)
        for n in range(4)
    ]
    (event,) = await calibrate_judges(recipe_of(examples, method=method))
    assert (event.measure, event.agreement, event.n) == ("order of pairs", 0.5, 18)


async def test_a_judge_that_does_not_answer_keeps_the_run_from_starting(recipe_of):
    with pytest.raises(SetupError, match="judge judge cannot be calibrated: judge judge: unreadable after 1 call"):
        await calibrate_judges(recipe_of([{"output": "good", "label": 1}], model="chatty", retries=0))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no rows"),
        ('{"output": "x"}', "row 1 of .* has no label"),
        ('{"output": "x", "label": 1}\n{"output": "x", "label": "good"}', "row 2 of .* has the label 'good'; write"),
        ('{"output": "x"', "row 1 of .* is no JSON"),
        ("[1]", "row 1 of .* is no object"),
    ],
)
def test_rows_that_are_wrong_are_named(tmp_path, text, complaint):
    file = tmp_path / "labelled.jsonl"
    file.write_text(text)
    with pytest.raises(RecipeError, match=complaint):
        read_examples(str(file), with_groups=False)


def test_tables_are_read_too(tmp_path):
    file = tmp_path / "labelled.csv"
    file.write_text('question,output,label,group\n"What, now?","a\nb",0.5,g\n')
    (example,) = read_examples(str(file), with_groups=True)
    assert (example.task["question"], *example[1:]) == ("What, now?", "a\nb", 0.5, "g")


def test_agreements_and_intervals_are_those_of_the_textbook():
    assert wilson_interval(7, 10) == pytest.approx((0.3968, 0.8922), abs=1e-3)  # statsmodels' proportion_confint
    assert rank_correlation([106, 86, 100, 101, 99, 103, 97, 113, 112, 110], [7, 0, 27, 50, 28, 29, 20, 12, 6, 17]) == (
        pytest.approx(-29 / 165)
    )
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == 0.0
    graded = agreement_of([0.1, 0.2, 0.4, 0.3, 0.5], [1, 2, 3, 4, 5])
    assert (graded.value, graded.low, graded.high) == pytest.approx(
        (0.9, *(math.tanh(math.atanh(0.9) + sign * 1.96 / math.sqrt(2)) for sign in (-1, 1)))
    )
    assert agreement_in_order([[(0.5, 1), (0.5, 2), (0.9, 3)], [(0.0, 1), (1.0, 1)]]).value == pytest.approx(2.5 / 3)
