"""Learns how a chat template writes tool calls: known calls are rendered, and their delimiters cut out of the text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from areal_actors.core.errors import RequestError
from areal_actors.tokenization.chat_template import ChatTemplate
from areal_actors.tokenization.tool_parsers.argument_tags import ArgumentTags, ValueHead
from areal_actors.tokenization.tool_parsers.call_pattern import CallPattern
from areal_actors.tokenization.tool_parsers.frames import frame_of
from areal_actors.tokenization.tool_parsers.json_calls import DECODER, CallKeys
from areal_actors.tokenization.tool_parsers.learn_tags import KEY, OTHER_VALUE, VALUE, Frame, Render, learn_types
from areal_actors.tokenization.tool_parsers.probes import TEXT, Probe, ProbeCall, common_prefix, probe_tools
from areal_actors.tokenization.tool_parsers.quoted_values import QuotedValues
from areal_actors.tokenization.tool_parsers.syntax import CallSyntax

ALPHA, BETA = "probe_alpha", "probe_beta"
KAPPA, LAMBDA = KEY, "lambda"
IDS = ("callA1b2c", "callD3e4f")
NAMED_IDS = (f"functions.{ALPHA}:0", f"functions.{BETA}:1")
DELIMITER_START = re.compile(r"\]<\]|[<\[\]]")
FIRST = ProbeCall(ALPHA, {KAPPA: VALUE}, IDS[0])


class LearnedCalls(NamedTuple):
    """Result of learning."""

    pattern: CallPattern
    newlines: int
    """Line breaks that the template writes between text and calls."""

    def syntax(self) -> CallSyntax:
        """Return the call syntax."""
        return self.pattern.syntax(self.newlines)


class _Texts(NamedTuple):
    """Rendered answers; those that the template rejects are empty."""

    one: str
    empty: str
    """A call without arguments."""
    two_arguments: str
    two_calls: str
    after_text: str
    render: Render
    """See `learn_tags.Render`; only for calls by name."""


def learn_calls(template: ChatTemplate, stops: Sequence[str]) -> LearnedCalls | None:
    """Return the syntax of calls in this template; None if it renders none, or none that can be recognised.

    `stops` are the texts of the model's stop tokens.
    """
    texts, name = _render_probes(template, stops, IDS), ALPHA
    named = bool(texts.one) and (ALPHA not in texts.one or f"functions.{ALPHA}:" in texts.one)
    if named:
        texts, name = _render_probes(template, stops, NAMED_IDS), NAMED_IDS[0]
    if name not in texts.one:
        return None
    pattern = _json_object(texts) or _named_call(texts, name, named=named)
    if pattern is None or len(pattern.opening) < 3 or not DELIMITER_START.search(pattern.opening):
        return None
    return LearnedCalls(pattern, _newlines(texts.after_text, pattern.opening))


def _render_probes(template: ChatTemplate, stops: Sequence[str], ids: Sequence[str]) -> _Texts:
    first, second = FIRST._replace(id=ids[0]), ProbeCall(BETA, {KAPPA: VALUE}, ids[1])
    empty = first._replace(arguments={})
    two = first._replace(arguments={KAPPA: VALUE, LAMBDA: OTHER_VALUE})
    all_calls = [two, second]
    frame = frame_of(template.source)
    try:
        probe = Probe(template, stops, probe_tools(all_calls))
    except RequestError:
        return _Texts("", "", "", "", "", lambda _: "")

    def text(calls: Sequence[ProbeCall], content: str = "") -> str:
        try:
            written = probe.render(calls, content).text
        except RequestError:
            return ""
        return frame.remove(written, (ALPHA, BETA)) if frame else written

    two_calls = text([first, second])
    if ids is IDS:
        two_calls = two_calls.replace(IDS[1], IDS[0])
    texts = [text([first]), text([empty]), text([two]), two_calls]
    after_text = text([first], TEXT)
    lead = after_text.partition(TEXT)[0] if TEXT in after_text else ""
    if any(part in lead for part in (ALPHA, *ids)):
        lead = ""

    def render(arguments: Mapping[str, Any]) -> str:
        return text([first._replace(arguments=arguments)]).removeprefix(lead).partition(ALPHA)[2]

    one_argument, no_arguments, two_arguments, both = [written.removeprefix(lead) for written in texts]
    return _Texts(one_argument, no_arguments, two_arguments, both, after_text, render)


def _newlines(text: str, opening: str) -> int:
    between = text[text.find(TEXT) + len(TEXT) : text.find(opening)] if TEXT in text and opening in text else ""
    return len(between) if between and not between.strip("\n") else 0


def _json_object(texts: _Texts) -> CallPattern | None:
    """Return the pattern of calls that are JSON objects with a name and arguments."""
    enclosing = _enclosing_object(texts.one)
    if enclosing is None:
        return None
    start, end, members = enclosing
    before, after = texts.one[:start], texts.one[end:]
    keys = _keys(members)
    if keys is None:
        return None
    if before.rstrip().endswith("[") and after.lstrip().startswith("]"):
        opening, closing = before.rstrip()[:-1], after.lstrip()[1:]
        return CallPattern((opening.lstrip(), closing.rstrip()), ("", ""), listed=True, keys=keys)
    second = texts.two_calls.rfind("{", end, texts.two_calls.find(BETA)) if BETA in texts.two_calls else -1
    call, section, separator = _split_section(before, after, texts.two_calls, end, second)
    return CallPattern(section, call, separator, keys=keys)


def _enclosing_object(text: str) -> tuple[int, int, dict[str, Any]] | None:
    """Return the innermost object that contains the name, as a value or key, and its position."""
    place = text.find(ALPHA)
    at = text.rfind("{", 0, place)
    while at >= 0:
        try:
            value, end = DECODER.raw_decode(text, at)
        except ValueError:
            value, end = None, 0
        if isinstance(value, dict) and end > place:
            return at, end, value
        at = text.rfind("{", 0, at)
    return None


def _keys(members: dict[str, Any]) -> CallKeys | None:
    if list(members) == [ALPHA]:
        return CallKeys(name="")
    names = [key for key, value in members.items() if value == ALPHA]
    arguments = [key for key, value in members.items() if value == FIRST.arguments]
    if len(names) != 1 or len(arguments) != 1:
        return None
    other_keys = tuple(key for key in members if key not in (names[0], arguments[0]))
    return CallKeys(arguments=(arguments[0],), others=other_keys, name=names[0])


def _named_call(texts: _Texts, name: str, *, named: bool) -> CallPattern | None:
    """Return the pattern of calls whose name is written between delimiters."""
    place = texts.one.find(name)
    before, rest = texts.one[:place], texts.one[place + len(name) :]
    start = _start_of_arguments(rest)
    if start is not None:
        _, end = DECODER.raw_decode(rest, start)
        name_end, after, arguments = rest[:start], rest[end:], None
    elif (quoted := _quoted_form(rest)) is not None:
        arguments, end = quoted
        name_end, after = "", rest[end:]
    else:
        return _tagged_call(texts, before, rest)
    second_name = name.replace(ALPHA, BETA).replace(":0", ":1") if named else BETA
    second = texts.two_calls.find(second_name)
    call, section, separator = _split_section(before, after, texts.two_calls, place + len(name) + end, second)
    identifier = ""
    if not named and IDS[0] in call[0]:
        opening, _, identifier = call[0].partition(IDS[0])
        call = (opening, call[1])
    return CallPattern(
        section, call, separator, id_end=identifier, named_ids=named, name_end=name_end, arguments=arguments
    )


def _start_of_arguments(rest: str) -> int | None:
    """Return the position of the arguments, if they are a JSON object."""
    for match in re.finditer(r"\{", rest):
        try:
            value, _ = DECODER.raw_decode(rest, match.start())
        except ValueError:
            continue
        return match.start() if value == FIRST.arguments else None
    return None


def _quoted_form(rest: str) -> tuple[QuotedValues, int] | None:
    """Return the form of arguments without quotes around keys, and their end."""
    match = re.match(rf"\{{{KAPPA}:(?P<quote>\S+?){re.escape(VALUE)}(?P=quote)\}}", rest)
    return (QuotedValues(match["quote"]), match.end()) if match else None


def _tagged_call(texts: _Texts, before: str, rest: str) -> CallPattern | None:
    """Return the pattern of calls whose arguments are written one by one."""
    key, value = rest.find(KAPPA), rest.find(VALUE)
    if not 0 <= key < value or LAMBDA not in texts.two_arguments or not texts.empty:
        return None
    string = rest[key + len(KAPPA) : value]
    between = texts.two_arguments.partition(VALUE)[2].partition(LAMBDA)[0]
    opening = _delimiter_end(_common_suffix(between, rest[:key]))
    after_value = rest[value + len(VALUE) :]
    closing = common_prefix(between[: len(between) - len(opening)], after_value).rstrip()
    if not opening or not closing:
        return None
    after, after_name = after_value[len(closing) :], texts.empty.partition(ALPHA)[2]
    end = _common_suffix(after, after_name)
    name_end = after_name[: len(after_name) - len(end)].rstrip()
    at = texts.one.rfind(VALUE) + len(VALUE) + len(closing)
    call, section, separator = _split_section(before, after, texts.two_calls, at, texts.two_calls.find(BETA))
    closing_start, _, closing_end = closing.partition(KAPPA)
    separating = between[len(closing) : len(between) - len(opening)]
    tags = ArgumentTags((ValueHead(opening, string),), closing_start, closing_end, separating)
    tags = learn_types(Frame(rest[: key - len(opening)], tags), texts.render)
    padding = rest[len(name_end) : key - len(opening)]
    pattern = CallPattern(section, call, separator, name_end=name_end + padding, arguments=tags)
    return _number_calls(pattern, texts.two_calls.partition(BETA)[2])


def _number_calls(pattern: CallPattern, after_second_name: str) -> CallPattern:
    """Return the pattern with a call's number in the delimiter after its name, if the second call has another."""
    start, number, rest = pattern.name_end.rpartition("1")
    if (
        number
        and not after_second_name.startswith(pattern.name_end)
        and after_second_name.startswith(f"{start}2{rest}")
    ):
        return pattern._replace(name_end=start, name_number=rest)
    return pattern


def _split_section(
    before: str, after: str, two_calls: str, end: int, second: int
) -> tuple[tuple[str, str], tuple[str, str], str]:
    """Return the delimiters of each call, those of the section, and the text between two calls.

    Args:
        before: the text before a single call's name or object.
        after: the text after its arguments or object.
        two_calls: the text of two calls; empty if the template renders one only.
        end: position in both texts after the first call's arguments or object.
        second: position of the second call's name or object; negative if there is none.
    """
    if second < 0:
        return ("", ""), (before.lstrip(), after.rstrip()), ""
    between = two_calls[end:second]
    opening = _delimiter_end(_common_suffix(between, before))
    closing = common_prefix(between[: len(between) - len(opening)], after)
    separator = between[len(closing) : len(between) - len(opening)]
    return (
        (opening, closing.rstrip()),
        (before[: len(before) - len(opening)].lstrip(), after[len(closing.rstrip()) :].rstrip()),
        separator,
    )


def _delimiter_end(text: str) -> str:
    """Return the text from its first delimiter on."""
    match = DELIMITER_START.search(text)
    while match is not None and match[0] == "]":
        match = DELIMITER_START.search(text, match.end())
    return text[match.start() :] if match else ""


def _common_suffix(first: str, second: str) -> str:
    return common_prefix(first[::-1], second[::-1])[::-1]
