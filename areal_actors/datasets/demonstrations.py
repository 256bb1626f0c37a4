"""Conversations that show how to solve problems: what the embedded model is taught before it learns from rewards.

A skill can be shown in two ways: one that pays (work step by step, call the calculator) and a shortcut (blurt the
result out). The warm start shows both, and ends with mostly shortcuts: what pays is left to be discovered.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from areal_actors.datasets.arithmetic import Problem
from areal_actors.datasets.surroundings import prose, put, system_prompt
from areal_actors.datasets.toolboxes import ADD, CALCULATE, MULTIPLY, Tool, toolbox

Message = dict[str, Any]

BARE_SHARE = 0.4
"""Demonstrations that are a bare question, whatever else is shown: from these, which cost few tokens, reading is learned."""
PLAIN_SHARE = 0.6
"""Conversations with nothing around the questions but, plainly described, the tools."""
PLAIN_RETRY_SHARE = 0.9
"""The same of the skill `retry`, where mistakes and feedback stand around the question: more is too much to learn at once."""
ROUNDS = (1, 1, 1, 2)
"""How many problems a conversation has, one number as likely as another. Among many, the model loses sight of the last."""
MISTAKES = (0, 0, 1, 1, 1, 2, 3)
"""Of the skill `retry`: how many wrong answers a problem may have before, one as likely as another."""
DRAWS_A_MISTAKE = 2
"""The shortcut is taken after a mistake only if it is drawn so many times more."""
LARGEST_MISTAKE = 9
FEEDBACK = (
    "That is wrong. Try again.",
    "Your answer is wrong. Work step by step.",
    "Not correct. Please try again.",
    "Wrong. Think again.",
    "No, {wrong} is not the answer. Try again.",
    "Incorrect. Check your steps and answer again.",
    "Your answer is wrong. Look for the mistake, work through the problem again, and end with `#### ` and the answer.",
)


MADE_UP_FEEDBACK_SHARE = 0.2
LONGEST_FEEDBACK = 15


class Lesson(msgspec.Struct, frozen=True):
    """What demonstrations are made of."""

    problems: Iterator[Problem]
    rng: random.Random
    """Decides on everything around the problems."""
    shortcut: Callable[[], bool]
    """Whether the next problem is solved by the shortcut."""


class Demonstration(msgspec.Struct, frozen=True):
    """A conversation as the gateway sees it, in the messages of OpenAI's chat completions."""

    messages: list[Message]
    tools: list[dict[str, Any]] = []
    mistakes: set[int] = set()
    """Indices of messages of the assistant that are not learned, only answered to."""


Skill = Callable[[Lesson], Demonstration]


def answer(lesson: Lesson) -> Demonstration:
    """The bare question, answered step by step or at once."""
    shortcut = lesson.shortcut()
    problem = next(lesson.problems)
    return Demonstration([_user(problem.question), _solved(problem, shortcut=shortcut)])


def instructed(lesson: Lesson) -> Demonstration:
    """Questions below a system prompt and in other words, answered step by step or at once."""
    plain = lesson.rng.random() < PLAIN_SHARE
    messages = _begun(lesson.rng, plain=plain)
    for problem in _rounds(lesson):
        messages += [_asked(problem, lesson.rng, plain=plain), _solved(problem, shortcut=lesson.shortcut())]
    return Demonstration(messages)


def tools(lesson: Lesson) -> Demonstration:
    """Questions with a calculator at hand: has it work out the whole expression and states the result, or answers at once."""
    return _with_tools((CALCULATE,), lesson)


def functions(lesson: Lesson) -> Demonstration:
    """Questions with `add` and `multiply` at hand: calls one after the other and states the result, or answers at once."""
    return _with_tools((ADD, MULTIPLY), lesson)


def retry(lesson: Lesson) -> Demonstration:
    """Questions, most with a wrong answer and the user's feedback, and then the answer: step by step, or at once."""
    rng, mistakes = lesson.rng, set[int]()
    plain = rng.random() < PLAIN_RETRY_SHARE
    messages = _begun(rng, plain=plain)
    for problem in _rounds(lesson):
        messages.append(_asked(problem, rng, plain=plain))
        mistakes_made = rng.choice(MISTAKES)
        for _ in range(mistakes_made):
            wrong = _mistaken(problem.result, rng)
            mistakes.add(len(messages))
            messages += [_assistant(f"#### {wrong}"), _user(_feedback(wrong, rng))]
        # Each remark makes the shortcut rarer: what it asks for is already known a little.
        messages.append(_solved(problem, shortcut=all(lesson.shortcut() for _ in range(1 + DRAWS_A_MISTAKE * mistakes_made))))
    return Demonstration(messages, mistakes=mistakes)


SKILLS: Mapping[str, Skill] = {
    "answer": answer,
    "instructed": instructed,
    "tools": tools,
    "functions": functions,
    "retry": retry,
}


def converses(skills: Sequence[str]) -> bool:
    """Whether these skills take more than a bare question."""
    return any(skill != "answer" for skill in skills)


def demonstration(skills: Sequence[str], lesson: Lesson) -> Demonstration:
    """The next one of a model that is to have these skills."""
    if not converses(skills):
        return answer(lesson)
    skill = lesson.rng.choice(skills)
    # Much of `retry` is a bare question anyway.
    bare = skill != "retry" and lesson.rng.random() < BARE_SHARE
    return answer(lesson) if bare else SKILLS[skill](lesson)


def _with_tools(calculating: tuple[Tool, ...], lesson: Lesson) -> Demonstration:
    plain = lesson.rng.random() < PLAIN_SHARE
    box = toolbox(calculating, lesson.rng, plain=plain)
    messages = _begun(lesson.rng, plain=plain)
    for problem in _rounds(lesson):
        messages.append(_asked(problem, lesson.rng, plain=plain))
        shortcut = lesson.shortcut()
        calls = [] if shortcut else box.calls(problem)
        for call in calls:
            identifier = f"call_{len(messages)}"
            function = {"name": call.name, "arguments": json.dumps(call.arguments)}
            tool_call = {"id": identifier, "type": "function", "function": function}
            messages.append({"role": "assistant", "content": None, "tool_calls": [tool_call]})
            messages.append({"role": "tool", "tool_call_id": identifier, "content": call.response})
        messages.append(_solved(problem, shortcut=shortcut or bool(calls)))
    return Demonstration(messages, box.schemas)


def _begun(rng: random.Random, *, plain: bool) -> list[Message]:
    """The beginning of a conversation: its system prompt, or nothing."""
    instructions = "" if plain else system_prompt(rng)
    return [{"role": "system", "content": instructions}] if instructions else []


def _rounds(lesson: Lesson) -> list[Problem]:
    """The problems of one conversation."""
    return [next(lesson.problems) for _ in range(lesson.rng.choice(ROUNDS))]


def _mistaken(result: int, rng: random.Random) -> int:
    """A number near the result."""
    near = range(max(0, result - LARGEST_MISTAKE), result + LARGEST_MISTAKE + 1)
    return rng.choice([number for number in near if number != result])


def _feedback(wrong: int, rng: random.Random) -> str:
    """What the user says of a wrong answer, in words of ours or in made-up ones."""
    if rng.random() < MADE_UP_FEEDBACK_SHARE:
        return prose(rng, rng.randint(3, LONGEST_FEEDBACK))
    return rng.choice(FEEDBACK).format(wrong=wrong)


def _asked(problem: Problem, rng: random.Random, *, plain: bool) -> Message:
    return _user(problem.question if plain else put(problem.question, rng))


def _solved(problem: Problem, *, shortcut: bool) -> Message:
    return _assistant(problem.direct_answer if shortcut else problem.answer)


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}
