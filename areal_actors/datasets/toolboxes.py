"""Tools that an agent may hand to a model, as schemas, and how a problem is solved with them."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from areal_actors.datasets.arithmetic import Problem, Step
from areal_actors.datasets.surroundings import prose

Schema = dict[str, Any]


class Tool(msgspec.Struct, frozen=True):
    """A tool, and the words in which it may be described."""

    name: str
    parameters: dict[str, str]
    """Their kinds by name."""
    words: tuple[str, ...]
    """The first are the usual ones."""


CALCULATE = Tool(
    "calculate",
    {"expression": "string"},
    (
        "Work out an expression of numbers, + - * / and brackets.",
        "Evaluate an arithmetic expression.",
        "A calculator. Takes an expression such as 2+3*4 and returns its value.",
    ),
)
ADD = Tool("add", {"a": "number", "b": "number"}, ("Add two numbers.", "Adds a and b.", "The sum of two numbers."))
MULTIPLY = Tool("multiply", {"a": "number", "b": "number"}, ("Multiply two numbers.", "Multiplies a and b."))
OTHER_TOOLS = (
    Tool("run_python", {"code": "string"}, ("Run a Python program and see what it prints.",)),
    Tool("search", {"query": "string"}, ("Search for a text and return what was found.",)),
    Tool("get_weather", {"city": "string", "day": "integer"}, ("The weather in a city.",)),
    Tool("send_message", {"to": "string", "text": "string"}, ("Send a message to another person.",)),
    Tool("percentage", {"part": "number", "whole": "number"}, ("How many per cent of the whole a part is.",)),
)
"""Tools that solve none of these problems."""
USELESS_SHARE = 0.1
"""Toolboxes without anything that calculates."""
MOST_OTHER_TOOLS = 2
USUAL_SHARE = 0.7
"""Tools that are described in their words; the others in made-up prose."""
LONGEST_DESCRIPTION = 20
PARAMETER_WORDS = ("", "", "The expression.", "What to calculate, for example (2+3)*4.", "A number.", "the first.", "the second.")
EXTRA_KEYS: tuple[Schema, ...] = ({}, {}, {"additionalProperties": False}, {"title": "arguments"}, {"$schema": "draft", "title": "Args"})
EXTRA_SHARE = 0.25
"""Tools with titles, and those that are strict."""
RESPONSES = ("{}", "{}", "{}", "{}.0", "{}.0", "The result is {}.", '{{"result": {}}}')
"""How tools state a result."""


class Call(msgspec.Struct, frozen=True):
    """A tool called, and what it responded."""

    name: str
    arguments: dict[str, Any]
    response: str


class Toolbox(msgspec.Struct, frozen=True):
    """The tools of one conversation."""

    schemas: list[Schema]
    useful: tuple[Tool, ...]
    """Those that calculate."""
    response: str
    """How they state a result, one of `RESPONSES`."""

    def calls(self, problem: Problem) -> list[Call]:
        """What to call, one after the other, for the problem's result; nothing if these tools are of no use."""
        if CALCULATE in self.useful:
            return [Call(CALCULATE.name, {"expression": problem.expression}, self.response.format(problem.result))]
        return [self._step(step) for step in problem.steps] if self.useful else []

    def _step(self, step: Step) -> Call:
        """One calculation in terms of `add` and `multiply`."""
        name = MULTIPLY.name if step.sign == "*" else ADD.name
        right = -step.right if step.sign == "-" else step.right
        return Call(name, {"a": step.left, "b": right}, self.response.format(step.result))


def toolbox(calculating: tuple[Tool, ...], rng: random.Random, *, plain: bool) -> Toolbox:
    """These tools, seldom without them: in their usual words if `plain`, else in whatever words, and between others."""
    useful = () if rng.random() < USELESS_SHARE else calculating
    if plain:
        return Toolbox([_schema(tool, tool.words[0]) for tool in useful], useful, rng.choice(RESPONSES))
    tools = [*useful, *rng.sample(OTHER_TOOLS, rng.randint(0, MOST_OTHER_TOOLS))]
    rng.shuffle(tools)
    return Toolbox([_varied(tool, rng) for tool in tools], useful, rng.choice(RESPONSES))


def _schema(tool: Tool, words: str) -> Schema:
    """The tool as the chat protocol describes it."""
    properties = {name: {"type": kind} for name, kind in tool.parameters.items()}
    parameters = {"type": "object", "properties": properties, "required": [*tool.parameters]}
    return {"type": "function", "function": {"name": tool.name, "description": words, "parameters": parameters}}


def _varied(tool: Tool, rng: random.Random) -> Schema:
    """The tool as one framework or another might describe it."""
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
