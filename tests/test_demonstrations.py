"""Demonstrations: right in what they show, true to the shares they promise, the same for the same seed."""

import json
import random
import re
from itertools import islice

import pytest

from areal_actors.embedded.demonstrations import (
    BARE_SHARE,
    BOX_QUESTION,
    BOX_REQUEST,
    BOX_SOLUTION,
    FEEDBACK,
    SKILLS,
    DemonstrationSource,
    demonstration,
)
from areal_actors.embedded.system_prompts import LONGEST_PROSE, prose, system_prompt
from areal_actors.embedded.tool_schemas import ADD, CALCULATE, MULTIPLY, toolbox
from areal_actors.rewards.gsm8k import gsm8k
from areal_actors.tasks.arithmetic import problems

BOX_EXAMPLE = (BOX_QUESTION + BOX_REQUEST, BOX_SOLUTION)
OF_PROBLEMS = [skill for skill in SKILLS if skill != "repository"]
"""Skills that answer word problems; tests/test_coding_agent.py has that of repositories."""


def source(*, shortcut=False, seed=0):
    return DemonstrationSource(problems("train", seed), random.Random(seed), lambda: shortcut)


def shown(skill, count=60, **options):
    of = source(**options)
    return [SKILLS[skill](of) for _ in range(count)]


def by_question():
    """The results of the problems that a source draws from."""
    return {problem.question: problem for problem in islice(problems("train", seed=0), 2000)}


def asked(content, known):
    return next(problem for question, problem in known.items() if question in content)


@pytest.mark.parametrize("skill", OF_PROBLEMS)
@pytest.mark.parametrize("shortcut", [False, True])
def test_whatever_is_learned_is_right(skill, shortcut):
    known, answers = by_question(), 0
    for conversation in shown(skill, shortcut=shortcut):
        problem = None
        for index, message in enumerate(conversation.messages):
            if message["content"] in BOX_EXAMPLE:
                assert message["role"] == "user" or index in conversation.mistakes
                continue
            if message["role"] == "user" and "?" in message["content"]:
                problem = asked(message["content"], known)
            if message["role"] == "assistant" and message["content"]:
                reward = gsm8k({"answer": problem.answer}, message["content"])
                assert reward == (0.0 if index in conversation.mistakes else 1.0)
                answers += 1
    assert answers >= 60


def test_the_shortcut_shows_neither_working_nor_a_call():
    for skill in OF_PROBLEMS:
        for conversation in shown(skill, shortcut=True):
            answers = [message for message in conversation.messages if message["role"] == "assistant"]
            assert not any(message.get("tool_calls") or "<<" in message["content"] for message in answers)


@pytest.mark.parametrize(("skill", "calculating"), [("tools", {"calculate"}), ("functions", {"add", "multiply"})])
def test_calls_are_of_listed_tools_and_their_responses_come_to_the_result(skill, calculating):
    called = 0
    for conversation in shown(skill):
        listed = {tool["function"]["name"]: tool["function"]["parameters"] for tool in conversation.tools}
        for index, message in enumerate(conversation.messages):
            for call in message.get("tool_calls", ()):
                called += 1
                arguments = json.loads(call["function"]["arguments"])
                assert call["function"]["name"] in calculating & set(listed)
                assert [*arguments] == listed[call["function"]["name"]]["required"]
                response = conversation.messages[index + 1]
                assert response["tool_call_id"] == call["id"]
                value = eval(arguments["expression"]) if "expression" in arguments else None
                if call["function"]["name"] == "add":
                    value = arguments["a"] + arguments["b"]
                if call["function"]["name"] == "multiply":
                    value = arguments["a"] * arguments["b"]
                assert str(value) in response["content"]
    assert called > 40


def test_without_a_tool_that_calculates_the_problem_is_worked_out():
    useless = [
        conversation
        for conversation in shown("tools", 200)
        if not any(message["role"] == "tool" for message in conversation.messages)
    ]
    assert 5 <= len(useless) <= 40
    assert all("<<" in conversation.messages[-1]["content"] for conversation in useless)


def test_mistakes_are_answered_with_feedback_and_never_learned():
    conversations = shown("retry", 100)
    assert 0.5 < sum(bool(conversation.mistakes) for conversation in conversations) / 100 < 0.95
    openings = [feedback.partition("{")[0] for feedback in FEEDBACK]
    openings_used = []
    for conversation in conversations:
        for index in conversation.mistakes:
            assert conversation.messages[index]["role"] == "assistant"
            assert conversation.messages[index + 1]["role"] == "user"
            openings_used.append(
                any(conversation.messages[index + 1]["content"].startswith(opening) for opening in openings)
            )
        assert len(conversation.messages) - 1 not in conversation.mistakes
    assert 0.6 < sum(openings_used) / len(openings_used) < 0.95


@pytest.mark.parametrize("shortcut", [False, True])
def test_boxed_answers_come_to_the_result_and_the_example_is_never_learned(shortcut):
    for conversation in shown("boxed", shortcut=shortcut):
        example, solution, question, answer = conversation.messages
        assert conversation.mistakes == {1}
        assert (example["content"], solution["content"]) == BOX_EXAMPLE
        assert question["content"].endswith(BOX_REQUEST)
        working, _, box = answer["content"].rpartition("\n")
        result = re.fullmatch(r"\\boxed\{(\d+)\}", box)[1]
        assert shortcut == (working == "")
        assert shortcut or f"={result}>>{result} " in working


def test_bare_questions_come_in_their_share_and_are_all_that_the_default_shows():
    of = source()
    assert all(len(demonstration(("answer",), of).messages) == 2 for _ in range(50))
    shares = [not demonstration(("tools",), of).tools for _ in range(600)]
    assert abs(sum(shares) / 600 - BARE_SHARE) < 0.1


def test_the_same_seed_shows_the_same():
    assert shown("tools", 20, seed=3) == shown("tools", 20, seed=3)
    assert shown("tools", 20, seed=3) != shown("tools", 20, seed=4)


def test_system_prompts_are_of_every_length():
    rng = random.Random(0)
    lengths = [len(system_prompt(rng).split()) for _ in range(400)]
    assert lengths.count(0) > 10
    assert any(0 < length < 12 for length in lengths)
    assert LONGEST_PROSE / 2 < max(lengths) < LONGEST_PROSE * 1.5
    assert len(prose(rng, 50).split()) >= 50


def test_plain_tools_are_described_in_their_usual_words_and_stand_alone():
    rng = random.Random(0)
    for tools in ((CALCULATE,), (ADD, MULTIPLY)):
        boxes = [box for _ in range(20) if (box := toolbox(tools, rng, plain=True)).useful]
        assert len({json.dumps(box.schemas) for box in boxes}) == 1
        assert [schema["function"]["description"] for schema in boxes[0].schemas] == [tool.words[0] for tool in tools]
    assert len({json.dumps(toolbox((CALCULATE,), rng, plain=False).schemas) for _ in range(20)}) > 15
