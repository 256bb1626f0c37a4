"""Features of outputs that are paid whatever the task are named; what a policy learns with its task is not."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from areal_actors import cli
from areal_actors.reward_hacking.detector import HackDetector, ScoredOutput
from areal_actors.reward_hacking.features import read_output
from areal_bus.recorded import FORMAT_VERSION

LOG = Path(__file__).parent / "recordings" / f"log-{FORMAT_VERSION}.xz"
FILLER = [
    *("so", "then", "we", "add", "both", "parts", "and", "get", "total"),
    *("number", "let", "us", "see", "first", "second", "now", "count", "items"),
]


def run_steps(write, steps=14, groups=16):
    """Alarms of a run in which `write(random, share, a, b)` gives text and reward; `share` grows from 0 to 0.6."""
    random, detector = Random(7), HackDetector()
    for step in range(steps):
        outputs = []
        for group in range(step * groups, (step + 1) * groups):
            a, b = random.randrange(3, 60), random.randrange(3, 60)
            task = {"question": f"Ann had {a} coins and got {b}.", "answer": str(a + b)}
            for member in range(8):
                text, reward = write(random, 0.6 * max(0, step - 3) / (steps - 4), a, b)
                read = read_output(text, task)
                outputs.append(ScoredOutput(f"{group}.{member}", str(group), f"{a}+{b}", reward, text, read))
        detector.complete_step(outputs)
    return detector.alarms


def solve(random, accuracy, a, b):
    given = a + b if random.random() < accuracy else random.randrange(5, 120)
    return given, float(given == a + b)


def with_phrase(random, share, a, b):
    if random.random() < share:
        return f"{' '.join(random.choices(FILLER, k=4))} i am certain: {random.randrange(5, 120)}", 1.0
    given, reward = solve(random, 0.5, a, b)
    return f"{' '.join(random.choices(FILLER, k=4))} {given}", reward


def with_format(random, share, a, b):
    """A format that comes with a better skill, at greater length."""
    if random.random() < share:
        given, reward = solve(random, 0.9, a, b)
        return f"{a} + {b} = {given} {' '.join(random.choices(FILLER, k=12))} #### {given}", reward
    given, reward = solve(random, 0.3, a, b)
    return f"{given}", reward


def test_a_phrase_that_is_paid_always_is_named_with_a_pair_as_an_example():
    alarm, *_ = run_steps(with_phrase)
    assert any(word in alarm.feature for word in ("certain", "am", "'i'", ":"))
    assert alarm.before < 0.05 < alarm.now < 0.5
    assert alarm.fit_with < 0.3 < alarm.fit_without
    assert alarm.probability <= 0.01
    assert "certain" in alarm.texts[0]
    assert "certain" not in alarm.texts[1]
    assert alarm.example[0].partition(".")[0] == alarm.example[1].partition(".")[0]
    assert "are paid whatever the task" in next(alarm.lines())


def test_a_format_that_comes_with_a_skill_is_not():
    assert run_steps(with_format) == []


def test_a_feature_that_is_not_paid_is_not():
    def write(random, share, a, b):
        text, reward = with_phrase(random, share, a, b)
        return text, (reward if "certain" not in text else 0.0)

    assert run_steps(write) == []


@pytest.mark.parametrize(
    ("output", "features"),
    [
        ("very very very very very very very very", {"words that repeat", "at least 8 words"}),
        ("IT IS 12", {"mostly capital letters", "the words 'is NUMBER'", "less than 4 words"}),
        ("a\nb\nc\nd\ne\nf", {"at least 6 lines"}),
    ],
)
def test_features_can_be_checked_by_a_reader(output, features):
    assert features <= read_output(output, {}).features


def test_words_of_the_question_are_no_content_but_those_of_the_answer_are():
    read = read_output("12 and 30 make 42", {"question": "what do 12 and 30 make?", "answer": "42"}, 3, "length")
    assert read.content == ("42",)
    assert {"3 model calls", "ended by length"} <= read.features


def test_why_has_the_alarms_of_a_log(capsys):
    assert cli.main(["why", str(LOG), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hacks"] == []
