"""Demonstrations: conversations that solve problems, for the supervised warm start of the embedded model.

A skill is demonstrated in two ways: one that earns rewards (work step by step, call the calculator) and a shortcut (the
bare result). The warm start has both, at its end mostly shortcuts, so that the rewarded way is left to reinforcement
learning.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from areal_actors.embedded.repair_conversations import repair_conversation
from areal_actors.embedded.system_prompts import prose, rephrase, system_prompt
from areal_actors.embedded.tool_schemas import ADD, CALCULATE, MULTIPLY, DemonstrationTool, toolbox
from areal_actors.tasks.arithmetic import WordProblem
from areal_actors.tasks.repositories import repository as random_repository

Message = dict[str, Any]

BARE_SHARE = 0.4
"""Share of demonstrations with a bare question: they teach reading at the cost of few tokens."""
PLAIN_SHARE = 0.6
"""Share of conversations with nothing around the questions but plainly described tools."""
PLAIN_RETRY_SHARE = 0.9
"""`PLAIN_SHARE` of the skill `retry`, higher because mistakes and feedback already surround the question."""
ROUNDS = (1, 1, 1, 2)
"""Numbers of problems per conversation, equally likely. With many problems the model ignores the last."""
MISTAKES = (0, 0, 1, 1, 1, 2, 3)
"""Numbers of wrong answers before the right one in the skill `retry`, equally likely."""
DRAWS_A_MISTAKE = 2
"""Additional draws that must all give the shortcut, per mistake made."""
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

BOX_REQUEST = " Provide a numerical answer without units, written inside \\boxed{}."
BOX_QUESTION = "How many r's are in strawberry?"
BOX_SOLUTION = (
    "Let's spell the word out and number all the letters: 1) s 2) t 3) r 4) a 5) w 6) b 7) e 8) r 9) r 10) y. "
    "We have r's at positions 3, 8, and 9. \\boxed{3}"
)
"""Example that Tinker's cookbook shows before each problem."""

MADE_UP_FEEDBACK_SHARE = 0.2
LONGEST_FEEDBACK = 15


class DemonstrationSource(msgspec.Struct, frozen=True):
    """Inputs of demonstrations: problems and random choices."""

    problems: Iterator[WordProblem]
    rng: random.Random
    """Random generator of everything around the problems."""
    shortcut: Callable[[], bool]
    """Returns True if the next problem is solved by the shortcut."""


class Demonstration(msgspec.Struct, frozen=True):
    """A conversation in OpenAI chat messages."""

    messages: list[Message]
    tools: list[dict[str, Any]] = []
    mistakes: set[int] = set()
    """Indices of assistant messages that are context only: wrong ones, and examples."""


Skill = Callable[[DemonstrationSource], Demonstration]


def answer(source: DemonstrationSource) -> Demonstration:
    """The bare question, answered step by step or at once."""
    shortcut = source.shortcut()
    problem = next(source.problems)
    return Demonstration([_user(problem.question), _answer_message(problem, shortcut=shortcut)])


def make_instructed(source: DemonstrationSource) -> Demonstration:
    """Rephrased questions below a system prompt, answered step by step or at once."""
    plain = source.rng.random() < PLAIN_SHARE
    messages = _first_messages(source.rng, plain=plain)
    for problem in _rounds(source):
        messages += [
            _question_message(problem, source.rng, plain=plain),
            _answer_message(problem, shortcut=source.shortcut()),
        ]
    return Demonstration(messages)


def tools(source: DemonstrationSource) -> Demonstration:
    """Questions with a calculator tool.

    The answer calls it with the whole expression and states the result, or comes at once.
    """
    return _with_tools((CALCULATE,), source)


def functions(source: DemonstrationSource) -> Demonstration:
    """Questions with the tools `add` and `multiply`: calls them in turn and states the result, or answers at once."""
    return _with_tools((ADD, MULTIPLY), source)


def retry(source: DemonstrationSource) -> Demonstration:
    """Questions, most with wrong answers and user feedback before the right answer: step by step, or at once."""
    rng, mistakes = source.rng, set[int]()
    plain = rng.random() < PLAIN_RETRY_SHARE
    messages = _first_messages(rng, plain=plain)
    for problem in _rounds(source):
        messages.append(_question_message(problem, rng, plain=plain))
        mistakes_made = rng.choice(MISTAKES)
        for _ in range(mistakes_made):
            wrong = _mistaken(problem.result, rng)
            mistakes.add(len(messages))
            messages += [_assistant(f"#### {wrong}"), _user(_feedback(wrong, rng))]
        # Feedback makes the shortcut rarer, so that the model learns a little of the requested behaviour.
        messages.append(
            _answer_message(
                problem, shortcut=all(source.shortcut() for _ in range(1 + DRAWS_A_MISTAKE * mistakes_made))
            )
        )
    return Demonstration(messages, mistakes=mistakes)


def make_boxed(source: DemonstrationSource) -> Demonstration:
    """The cookbook's example and a question that asks for a box, answered step by step or at once."""
    shortcut = source.shortcut()
    problem = next(source.problems)
    box = f"\\boxed{{{problem.result}}}"
    return Demonstration(
        [
            _user(BOX_QUESTION + BOX_REQUEST),
            _assistant(BOX_SOLUTION),
            _user(problem.question + BOX_REQUEST),
            _assistant(box if shortcut else f"{problem.working}\n{box}"),
        ],
        mistakes={1},
    )


def repository(source: DemonstrationSource) -> Demonstration:
    """A repository whose test fails: reads it, repairs the fault and runs the test, or edits without having read."""
    repository_task = random_repository("train", source.rng)
    shown = repair_conversation(repository_task, source.rng, shortcut=source.shortcut())
    return Demonstration(shown.messages, shown.tools, shown.context)


SKILLS: Mapping[str, Skill] = {
    "answer": answer,
    "boxed": make_boxed,
    "instructed": make_instructed,
    "tools": tools,
    "functions": functions,
    "retry": retry,
    "repository": repository,
}
WITHOUT_BARE_QUESTIONS = ("retry", "repository")
"""Skills that no bare question is demonstrated with: many demonstrations of `retry` are bare anyway, and a repair needs
its tools."""


def has_conversations(skills: Sequence[str]) -> bool:
    """True if these skills need more than a bare question."""
    return any(skill != "answer" for skill in skills)


def demonstration(skills: Sequence[str], source: DemonstrationSource) -> Demonstration:
    """Returns the next demonstration of one of these skills."""
    if not has_conversations(skills):
        return answer(source)
    skill = source.rng.choice(skills)
    bare = skill not in WITHOUT_BARE_QUESTIONS and source.rng.random() < BARE_SHARE
    return answer(source) if bare else SKILLS[skill](source)


def _with_tools(calculating: tuple[DemonstrationTool, ...], source: DemonstrationSource) -> Demonstration:
    plain = source.rng.random() < PLAIN_SHARE
    box = toolbox(calculating, source.rng, plain=plain)
    messages = _first_messages(source.rng, plain=plain)
    for problem in _rounds(source):
        messages.append(_question_message(problem, source.rng, plain=plain))
        shortcut = source.shortcut()
        calls = [] if shortcut else box.calls(problem)
        for call in calls:
            identifier = f"call_{len(messages)}"
            function = {"name": call.name, "arguments": json.dumps(call.arguments)}
            tool_call = {"id": identifier, "type": "function", "function": function}
            messages.append({"role": "assistant", "content": None, "tool_calls": [tool_call]})
            messages.append({"role": "tool", "tool_call_id": identifier, "content": call.response})
        messages.append(_answer_message(problem, shortcut=shortcut or bool(calls)))
    return Demonstration(messages, box.schemas)


def _first_messages(rng: random.Random, *, plain: bool) -> list[Message]:
    """Returns the first messages of a conversation: a system prompt, or none."""
    instructions = "" if plain else system_prompt(rng)
    return [{"role": "system", "content": instructions}] if instructions else []


def _rounds(source: DemonstrationSource) -> list[WordProblem]:
    return [next(source.problems) for _ in range(source.rng.choice(ROUNDS))]


def _mistaken(result: int, rng: random.Random) -> int:
    near = range(max(0, result - LARGEST_MISTAKE), result + LARGEST_MISTAKE + 1)
    return rng.choice([number for number in near if number != result])


def _feedback(wrong: int, rng: random.Random) -> str:
    """Returns user feedback on a wrong answer, predefined or of random words."""
    if rng.random() < MADE_UP_FEEDBACK_SHARE:
        return prose(rng, rng.randint(3, LONGEST_FEEDBACK))
    return rng.choice(FEEDBACK).format(wrong=wrong)


def _question_message(problem: WordProblem, rng: random.Random, *, plain: bool) -> Message:
    return _user(problem.question if plain else rephrase(problem.question, rng))


def _answer_message(problem: WordProblem, *, shortcut: bool) -> Message:
    return _assistant(problem.direct_answer if shortcut else problem.answer)


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}
