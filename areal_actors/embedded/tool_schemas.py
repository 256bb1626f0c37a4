"""Tool schemas for demonstrations, and the tool calls that solve a problem."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from areal_actors.embedded.system_prompts import prose
from areal_actors.tasks.arithmetic import Calculation, WordProblem

Schema = dict[str, Any]


class DemonstrationTool(msgspec.Struct, frozen=True):
    """A tool with alternative descriptions."""

    name: str
    parameters: dict[str, str]
    """Type by parameter name."""
    words: tuple[str, ...]
    """Descriptions; the first is the plain one."""


CALCULATE = DemonstrationTool(
    "calculate",
    {"expression": "string"},
    (
        "Work out an expression of numbers, + - * / and brackets.",
        "Evaluate an arithmetic expression.",
        "A calculator. Takes an expression such as 2+3*4 and returns its value.",
    ),
)
ADD = DemonstrationTool(
    "add", {"a": "number", "b": "number"}, ("Add two numbers.", "Adds a and b.", "The sum of two numbers.")
)
MULTIPLY = DemonstrationTool(
    "multiply", {"a": "number", "b": "number"}, ("Multiply two numbers.", "Multiplies a and b.")
)
OTHER_TOOLS = (
    DemonstrationTool("run_python", {"code": "string"}, ("Run a Python program and see what it prints.",)),
    DemonstrationTool("search", {"query": "string"}, ("Search for a text and return what was found.",)),
    DemonstrationTool("get_weather", {"city": "string", "day": "integer"}, ("The weather in a city.",)),
    DemonstrationTool("send_message", {"to": "string", "text": "string"}, ("Send a message to another person.",)),
    DemonstrationTool(
        "percentage", {"part": "number", "whole": "number"}, ("How many per cent of the whole a part is.",)
    ),
)
"""Distractor tools."""
USELESS_SHARE = 0.1
"""Share of toolboxes without calculating tools."""
MOST_OTHER_TOOLS = 2
USUAL_SHARE = 0.7
"""Share of tools with one of their descriptions; the others have random prose."""
LONGEST_DESCRIPTION = 20
PARAMETER_WORDS = (
    "",
    "",
    "The expression.",
    "What to calculate, for example (2+3)*4.",
    "A number.",
    "the first.",
    "the second.",
)
EXTRA_KEYS: tuple[Schema, ...] = (
    {},
    {},
    {"additionalProperties": False},
    {"title": "arguments"},
    {"$schema": "draft", "title": "Args"},
)
EXTRA_SHARE = 0.25
"""Share of tools with titles, and of strict ones."""
RESPONSES = ("{}", "{}", "{}", "{}.0", "{}.0", "The result is {}.", '{{"result": {}}}')
"""Formats of tool responses."""


class Call(msgspec.Struct, frozen=True):
    """A tool call and its response."""

    name: str
    arguments: dict[str, Any]
    response: str


class Toolbox(msgspec.Struct, frozen=True):
    """The tools of one conversation."""

    schemas: list[Schema]
    useful: tuple[DemonstrationTool, ...]
    """Calculating tools."""
    response: str
    """Response format, one of `RESPONSES`."""

    def calls(self, problem: WordProblem) -> list[Call]:
        """Returns the tool calls that solve the problem, in order; none if no tool helps."""
        if CALCULATE in self.useful:
            return [Call(CALCULATE.name, {"expression": problem.expression}, self.response.format(problem.result))]
        return [self._step(step) for step in problem.steps] if self.useful else []

    def _step(self, step: Calculation) -> Call:
        """Returns one calculation as a call of `add` or `multiply`."""
        name = MULTIPLY.name if step.sign == "*" else ADD.name
        right = -step.right if step.sign == "-" else step.right
        return Call(name, {"a": step.left, "b": right}, self.response.format(step.result))


def toolbox(calculating: tuple[DemonstrationTool, ...], rng: random.Random, *, plain: bool) -> Toolbox:
    """Returns a toolbox of these tools, rarely without them.

    It is plainly described if `plain`, else varied and with distractors.
    """
    useful = () if rng.random() < USELESS_SHARE else calculating
    if plain:
        return Toolbox([_schema(tool, tool.words[0]) for tool in useful], useful, rng.choice(RESPONSES))
    tools = [*useful, *rng.sample(OTHER_TOOLS, rng.randint(0, MOST_OTHER_TOOLS))]
    rng.shuffle(tools)
    return Toolbox([_vary_tool(tool, rng) for tool in tools], useful, rng.choice(RESPONSES))


def _schema(tool: DemonstrationTool, words: str) -> Schema:
    properties = {name: {"type": kind} for name, kind in tool.parameters.items()}
    parameters = {"type": "object", "properties": properties, "required": [*tool.parameters]}
    return {"type": "function", "function": {"name": tool.name, "description": words, "parameters": parameters}}


def _vary_tool(tool: DemonstrationTool, rng: random.Random) -> Schema:
    usual = rng.random() < USUAL_SHARE
    schema = _schema(tool, rng.choice(tool.words) if usual else prose(rng, rng.randint(3, LONGEST_DESCRIPTION)))
    parameters, titled = schema["function"]["parameters"], rng.random() < EXTRA_SHARE
    for name, described in parameters["properties"].items():
        if titled:
            described["title"] = name.capitalize()
        if words := rng.choice(PARAMETER_WORDS):
            described["description"] = words
    parameters |= rng.choice(EXTRA_KEYS)
    if rng.random() < EXTRA_SHARE:
        schema["function"]["strict"] = True
    return schema
