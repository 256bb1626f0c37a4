"""How model families write reasoning and tool calls: one file per format."""

from areal_actors.answer_formats.base import Answer, AnswerFormat, AnswerStream, Piece, Tool, ToolCall
from areal_actors.answer_formats.families import detected, format_named, format_of
from areal_actors.answer_formats.grammar import with_token_marks

__all__ = [
    "Answer",
    "AnswerFormat",
    "AnswerStream",
    "Piece",
    "Tool",
    "ToolCall",
    "detected",
    "format_named",
    "format_of",
    "with_token_marks",
]
