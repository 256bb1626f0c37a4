"""Tries one chat template: in which syntax its tool calls are read back, or why they are not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import jinja2

from areal_actors.core.errors import RequestError
from areal_actors.tokenization.chat_template import ChatTemplate
from areal_actors.tokenization.tool_parsers.base import Answer, AnswerFormat, ToolCall, ToolDefinition
from areal_actors.tokenization.tool_parsers.probes import Probe, ProbeCall, probe_tools
from areal_actors.tokenization.tool_parsers.round_trip import tool_support
from areal_actors.tokenization.tool_parsers.stream_parser import DelimitedFormat

TOKENS = {
    name: f"<{name.removesuffix('_token')}>"
    for name in ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token")
}
"""For templates that stand alone; the texts of genuine tokens do not matter to the calls."""
READ, WITHOUT_TOOLS, REJECTED, UNREAD = "read", "without tools", "no chat", "not read"
"""Outcomes; a template of `REJECTED` does not render a conversation of one question, so it is not one for chats."""
REJECTS = "the model's chat template rejects these messages: "
HAS_NO_TOOLS = ("the template does not support tools", "there is no chat template")
STORE = ProbeCall(
    "store",
    {
        "quotes": 'he wrote "no" \\ & left',
        "lines": "one\ntwo\n\nthree",
        "script": "Zürich – 東京",
        "looks": "2020",
        "count": 12,
        "ratio": -0.5,
        "flag": False,
        "words": ["a", "b <c>"],
        "inner": {"since": 2020, "deep": {"tags": ["x"], "ratio": 2.5}},
    },
    "callS1t2o",
)
"""A call with arguments of all types, besides those of the test at the start."""
REASON = "First the price, then the sum."


class Trial(NamedTuple):
    """Result of one template."""

    name: str
    outcome: str
    syntax: str = ""
    """Name of the format, with the delimiter that opens its calls where it was learned or described."""
    parallel: bool = False
    """True if several calls in one answer are read back."""
    lists_tools: bool = True
    """False if the template leaves the list of tools out of the prompt."""
    reason: str = ""
    """Reason for another outcome than `READ`."""


def try_template(name: str, source: str) -> Trial:
    """Try one template."""
    try:
        template = ChatTemplate(source, TOKENS)
    except jinja2.TemplateSyntaxError as error:
        return Trial(name, REJECTED, reason=f"does not compile: {error}")
    form, support = tool_support(template, [TOKENS["eos_token"]])
    if not support.error:
        problem = _difference(template, form)
        return Trial(
            name, UNREAD if problem else READ, _syntax_of(form), support.parallel, support.lists_tools, problem
        )
    if rejection := _rejection(template):
        return Trial(name, REJECTED, reason=_short(rejection))
    outcome = WITHOUT_TOOLS if support.error.startswith(HAS_NO_TOOLS) else UNREAD
    return Trial(name, outcome, reason=_short(support.error))


def _rejection(template: ChatTemplate) -> str:
    """Return why the template renders no conversation of one question, with tools or without; empty if it does."""
    rejection = ""
    for tools in (None, probe_tools([STORE])):
        try:
            template.render([{"role": "user", "content": "u"}], tools)
        except RequestError as error:
            rejection = rejection or str(error)
        else:
            return ""
    return rejection


def _syntax_of(form: AnswerFormat) -> str:
    if form.name == "learned" and isinstance(form, DelimitedFormat):
        opening = form.syntax.openings[0] if form.syntax.openings else form.syntax.bare
        return f"learned: {' '.join(opening.split())}"
    return form.name


def _short(reason: str) -> str:
    """Return a reason on one line, without what all of them have, and without the rendered call."""
    case, found, rest = reason.partition(" is rendered as ")
    if found:
        _, parsed, why = rest.rpartition(" and does not parse as ")
        reason = (
            f"the template renders {case} that does not parse as {why}"
            if parsed
            else f"the template changes the arguments of {case}"
        )
    return " ".join(reason.replace(REJECTS, "").split())


def _difference(template: ChatTemplate, form: AnswerFormat) -> str:
    """Return how values of all types, a stream and reasoning differ from what was rendered; empty if they do not."""
    tools = probe_tools([STORE])
    try:
        prompt, text = Probe(template, [TOKENS["eos_token"]], tools).render([STORE])
    except RequestError as error:
        return f"rejects a call with arguments of all types: {_short(str(error))}"
    in_reasoning = form.opens_reasoning(prompt) or form.closes_reasoning(text)
    answer = form.parse(text, tools, in_reasoning=in_reasoning)
    read = [json.loads(call.arguments) for call in answer.tool_calls]
    if read != [STORE.arguments]:
        changed = [
            key for key, value in STORE.arguments.items() if not read or key not in read[0] or read[0][key] != value
        ]
        return f"changes the arguments {', '.join(changed)} of a call"
    if stream_answer(form, text, tools, in_reasoning=in_reasoning) != answer:
        return "is read differently one character at a time"
    return "" if in_reasoning else _reasoning_difference(form, text, tools, answer.tool_calls)


def _reasoning_difference(
    form: AnswerFormat, text: str, tools: Sequence[ToolDefinition], calls: Sequence[ToolCall]
) -> str:
    """Return the delimiters of reasoning which are not split from a call; empty if all are."""
    if isinstance(form, DelimitedFormat) and form.frame is not None:
        return ""  # the delimiters of its reasoning depend on what follows
    for opening, closing in form.reasoning:
        answer = form.parse(f"{opening}\n{REASON}\n{closing}\n\n{text.lstrip()}", tools)
        if answer.reasoning.strip() != REASON or list(answer.tool_calls) != list(calls):
            return f"does not split reasoning in {opening} from a call"
    return ""


def stream_answer(form: AnswerFormat, text: str, tools: Sequence[ToolDefinition], *, in_reasoning: bool) -> Answer:
    """Return an answer that comes in one character at a time."""
    stream = form.stream(tools, in_reasoning=in_reasoning)
    deltas = [delta for character in text for delta in stream.push(character)]
    rest, problem = stream.finish()
    deltas += rest
    calls: dict[int, ToolCall] = {}
    for delta in deltas:
        if delta.call is not None:
            begun = calls.get(delta.call, ToolCall(name=delta.name, arguments="", id=delta.id))
            calls[delta.call] = ToolCall(name=begun.name, arguments=begun.arguments + delta.arguments, id=begun.id)
    return Answer(
        reasoning="".join(delta.reasoning for delta in deltas),
        text="".join(delta.text for delta in deltas),
        tool_calls=tuple(calls.values()),
        tool_call_error=problem,
    )
