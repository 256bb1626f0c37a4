"""Chooses a model's answer format, and tests it.

Known tool calls are rendered through the chat template and read back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from areal_actors.core.errors import RequestError, SetupError
from areal_actors.core.values import Value
from areal_actors.tokenization.chat_template import ChatTemplate, ToolDialect
from areal_actors.tokenization.tool_parsers.base import AnswerFormat
from areal_actors.tokenization.tool_parsers.families import AUTO, LEARNED, detect_format, format_names, format_of
from areal_actors.tokenization.tool_parsers.grammar import MARK
from areal_actors.tokenization.tool_parsers.learn import learn_calls
from areal_actors.tokenization.tool_parsers.probes import TEXT, Probe, ProbeCall, probe_tools
from areal_actors.tokenization.tool_parsers.stream_parser import DelimitedFormat
from areal_actors.tokenization.tool_parsers.tool_places import drops_results, find_dialect, lists_tools
from areal_actors.tokenization.tool_parsers.written_calls import WrittenCalls, written_calls

GENERIC, NONE = "generic_json", "none"

SEARCH = ProbeCall(
    "find_flights",
    {
        "city": 'Zürich "Nord"\nsecond line',
        "count": 3,
        "exact": True,
        "filters": {"since": 2020, "deep": {"tags": ["a", "b <c>"], "ratio": 2.5}},
        "places": ["Łódź", "東京"],
    },
    "callS1e2a",
)
PING = ProbeCall("ping", {}, "callP3i4n")
WORD = ProbeCall("look_up", {"word": "plain"}, "callW5o6r")
NO_CALLS, DROPS_RESULTS = "the template renders no tool calls", "the template leaves out the results of tools"
CASES = (("a call", "", (SEARCH,)), ("a call after text", TEXT, (WORD,)), ("a call without arguments", "", (PING,)))
PARALLEL = ("two calls", "", (SEARCH, WORD))


class ToolSupport(Value):
    """Result of the test of a model's answer format."""

    format: str
    """Name of the answer format."""
    error: str = ""
    """Reason for which requests with tools are refused; empty if calls are read back as they were rendered."""
    parallel: bool = False
    """True if several calls in one answer are read back."""
    lists_tools: bool = True
    """False if the template leaves the list of tools out of the prompt."""


UNTESTED = ToolSupport(format="")
"""For tokenizers whose format was not tested."""


def tool_support(template: ChatTemplate, stops: Sequence[str], name: str = AUTO) -> tuple[AnswerFormat, ToolSupport]:
    """Return the answer format of a model and its test; sets the template's dialect.

    Args:
        template: the model's chat template.
        stops: texts of the model's stop tokens.
        name: one of `format_names()`; `auto` takes the first format that reads back what the template renders.

    Raises:
        SetupError: there is no format of this name.
    """
    if name not in format_names():
        raise SetupError(f"gateway.tool_format is {name!r}; expected one of {', '.join(format_names())}")
    template.dialect = ToolDialect()
    first = format_of(detect_format(template.source) if name in (AUTO, LEARNED) else name, template.source)
    if not template.source or name == NONE:
        return first, ToolSupport(
            format=NONE, error="gateway.tool_format is none" if name == NONE else "there is no chat template"
        )
    problems: list[str] = []
    for dialect, form in _candidates(template, stops, name, first):
        template.dialect = dialect
        problem = _problem(template, form, stops)
        if not problem and drops_results(template):
            problem = DROPS_RESULTS
        if not problem:
            several = not _case_problem(template, form, stops, *PARALLEL)
            return form, ToolSupport(format=form.name, parallel=several, lists_tools=lists_tools(template))
        problems.append(problem)
    template.dialect = ToolDialect()
    if DROPS_RESULTS in problems:
        return first, ToolSupport(format=first.name, error=DROPS_RESULTS)
    return first, ToolSupport(format=first.name, error=problems[0] if problems else _why_none(template))


def _candidates(
    template: ChatTemplate, stops: Sequence[str], name: str, first: AnswerFormat
) -> Iterator[tuple[ToolDialect, AnswerFormat]]:
    """Yield formats to test, with the form in which the template takes calls, the most likely one first."""
    taken = find_dialect(template)
    for null_content, text_arguments in ((False, False), (False, True), (True, False), (True, True)):
        dialect = taken._replace(text_arguments=text_arguments, null_content=null_content)
        if text_arguments and not _takes_text(template, dialect, stops):
            continue
        if name not in (LEARNED, GENERIC) and first.name not in (NONE, GENERIC):
            yield dialect, first
        if name in (AUTO, LEARNED):
            template.dialect = dialect
            learned = learn_calls(template, stops)
            if learned is not None:
                form = format_of(LEARNED, template.source, learned.syntax())
                yield dialect._replace(named_ids=learned.pattern.named_ids), form
        if first.name == GENERIC:
            yield dialect, first
    if name == AUTO:
        template.dialect = taken
        yield from _last_candidates(template, stops, taken, first)


def _last_candidates(
    template: ChatTemplate, stops: Sequence[str], taken: ToolDialect, first: AnswerFormat
) -> Iterator[tuple[ToolDialect, AnswerFormat]]:
    """Yield what is tested after the formats that the template renders.

    That is calls as it describes them, and JSON without delimiters.
    """
    described, written = written_calls(template.source), None
    if described is not None:
        written = taken._replace(write_calls=described.write), format_of(LEARNED, template.source, described.syntax)
        if _is_left_to_text(_case_problem(template, first, stops, "a call", "", (WORD,)), first, described):
            yield written
    template.dialect = taken
    if first.name not in (NONE, GENERIC):
        yield taken, format_of(GENERIC, template.source)
    if described is not None and written is not None and _takes_written_calls(template, described):
        yield written  # the template renders calls, but not as it describes them, or with mistakes


def _is_left_to_text(problem: str, first: AnswerFormat, described: WrittenCalls) -> bool:
    """True if only plain calls are read back.

    The template renders none, or renders them in the described syntax without escapes.
    """
    same = isinstance(first, DelimitedFormat) and first.syntax == described.syntax
    return problem.endswith(NO_CALLS) or (same and not problem)


def _takes_written_calls(template: ChatTemplate, described: WrittenCalls) -> bool:
    """True if the template lists tools, and renders a conversation in which a call is text and has a result."""
    tools, user = probe_tools([WORD]), [{"role": "user", "content": "u"}]
    called = {"role": "assistant", "content": described.write([(WORD.name, json.dumps(WORD.arguments))])}
    result = {"role": "tool", "tool_call_id": WORD.id, "name": WORD.name, "content": "r"}
    try:
        template.render([*user, called, result], tools)
    except RequestError:
        return False
    return lists_tools(template)


def _takes_text(template: ChatTemplate, dialect: ToolDialect, stops: Sequence[str]) -> bool:
    """True if arguments that are text are rendered in the same place and form as an object."""
    texts = []
    for text_arguments in (False, True):
        template.dialect = dialect._replace(text_arguments=text_arguments)
        try:
            texts.append(Probe(template, stops, probe_tools([WORD, PING])).render([PING]).text)
        except RequestError:
            texts.append("")
    return not texts[0] or texts[0] == texts[1]


def _problem(template: ChatTemplate, form: AnswerFormat, stops: Sequence[str]) -> str:
    """Return the first difference between rendered calls and those that are read back; empty if there is none."""
    problems = [_case_problem(template, form, stops, *case) for case in CASES]
    # Some templates render no text beside a call; some render no call without text.
    if problems[1] and not problems[0]:
        problems[1] = _case_problem(template, form, stops, "a call", "", (WORD,))
    return next((problem for problem in problems if problem), "")


def _case_problem(
    template: ChatTemplate,
    form: AnswerFormat,
    stops: Sequence[str],
    case: str,
    content: str,
    calls: Sequence[ProbeCall],
) -> str:
    tools = probe_tools([SEARCH, WORD, PING])
    try:
        probe = Probe(template, stops, tools)
        prompt, text = probe.render(calls, content)
    except RequestError as error:
        return f"the template rejects {case}: {error}"
    if not text:
        return NO_CALLS
    answer = form.parse(text, tools, in_reasoning=form.opens_reasoning(prompt) or form.closes_reasoning(text))
    if len(answer.tool_calls) != len(calls):
        problem = answer.tool_call_error or f"{len(answer.tool_calls)} of {len(calls)} calls were found"
        return f"{case} is rendered as {text[-300:]!r} and does not parse as {form.name}: {problem}"
    for call, read in zip(calls, answer.tool_calls, strict=True):
        if call.name != read.name:
            return f"{case} of {call.name!r} is read back as one of {read.name!r}"
        if json.loads(read.arguments) != call.arguments:
            return f"{case} is rendered as {text[-300:]!r}; its arguments are read back as {read.arguments}"
    rest = answer.text.strip().removeprefix(content)
    # The end of a turn with calls may differ from that of others: it is one token.
    return f"{case} leaves the text {answer.text!r}" if rest and not MARK.fullmatch(rest) else ""


def _why_none(template: ChatTemplate) -> str:
    """Return why there is no format to test."""
    tools, user = probe_tools([WORD]), [{"role": "user", "content": "u"}]
    try:
        same = template.render(user, tools) == template.render(user, None)
    except RequestError as error:
        return f"the template rejects tools: {error}"
    return "the template does not support tools" if same else "the template lists tools, and renders no calls"
