"""Parsers of the reasoning and tool calls that model families write: one table of formats."""

from areal_actors.tokenization.tool_parsers.base import Answer, AnswerFormat, Delta, StreamParser, ToolCall, ToolDefinition
from areal_actors.tokenization.tool_parsers.families import detect_format, format_by_name, format_for_template
from areal_actors.tokenization.tool_parsers.grammar import resolve_delimiters

__all__ = [
    "Answer",
    "AnswerFormat",
    "Delta",
    "StreamParser",
    "ToolCall",
    "ToolDefinition",
    "detect_format",
    "format_by_name",
    "format_for_template",
    "resolve_delimiters",
]
