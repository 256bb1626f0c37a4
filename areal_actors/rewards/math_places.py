r"""Finds where an answer states its result outside of a box, and strips what decorates it.

    <answer>73</answer>      Answer:73      Final answer: `73`      答案：73      <b>73</b>      (73)      "73"

Everything is text processing: nothing is evaluated.
"""

from __future__ import annotations

import re

_TAG = re.compile(r"<(answer|final_answer|final-answer)\s*>(.*?)(?:</\1\s*>|\Z)", re.IGNORECASE | re.DOTALL)
_MARKS = (
    r"\b(?:final[\s_]+)?answer\b[\"'*_`]*\s*(?:is\b\s*[:：]?|[:：=])"
    r"|(?:最终)?(?:答案|结果)\s*(?:应?该?选|是|为|[:：=])+|(?:故|应)选\s*[:：]?|(?:答え|解答|정답|답)\s*(?:は|은|는|[:：])"
    r"|\b(?:respuesta|réponse|antwort|risposta|resposta|ответ)\b[*_`]*\s*[:：]"
)
_MARK = re.compile(_MARKS, re.IGNORECASE)
_END_OF_EMPHASIS = re.compile(r"^[ \t]*[*_]+(?=\s|$)")
_JSON_VALUE = re.compile(r'"(?:[^"\\]|\\.)*"|[^,}\n]+')
_END_OF_SENTENCE = re.compile(r"[.!?。](?=\s|$)|[;；。\n]")
_PAIRS = {"`": "`", '"': '"', "'": "'", "“": "”", "‘": "’", "「": "」", "『": "』", "«": "»", "<": ">"}
_HTML = re.compile(
    r"</?(?:b|strong|i|em|u|code|p|span|div|mark|big|center)(?:\s[^<>]{0,80})?>|<br\s*/?>", re.IGNORECASE
)
_FENCE = re.compile(r"^```[A-Za-z]*\n(.*?)\n?```$", re.DOTALL)
_TICKS = re.compile(r"^(`+)([^`]+)\1$")
_EMPHASIS = re.compile(r"^(\*\*|__|\*|_)(?=\S)(.*\S)\1$", re.DOTALL)
_IN_BRACKETS = re.compile(r"^\(([^(),;]*)\)$|^（([^()（），；]*)）$")
_FULL_WIDTH = str.maketrans(
    {chr(code): chr(code - 0xFEE0) for code in (*range(0xFF10, 0xFF1A), *range(0xFF21, 0xFF3B), *range(0xFF41, 0xFF5B))}
    | {
        "（": "(",
        "）": ")",
        "，": ",",
        "：": ":",
        "＝": "=",
        "＋": "+",
        "－": "-",
        "％": "%",
        "．": ".",
        "−": "-",
        "、": ",",
    }
)
LONGEST_LINE = 200
"""Characters of an output that may be its result alone, without words about it."""


def find_tagged(text: str) -> tuple[int, str] | None:
    """Returns the end and the content of the last `<answer>`, also of one that is never closed."""
    tags = list(_TAG.finditer(text))
    return (tags[-1].end(), tags[-1][2]) if tags else None


def after_mark(text: str) -> str | None:
    """Returns what follows the last `Answer:`, `the answer is`, `答案：` or the like.

    That is the rest of its sentence, or the next line.
    """
    marks = list(_MARK.finditer(text))
    if not marks:
        return None
    rest = _END_OF_EMPHASIS.sub("", text[marks[-1].end() :]).lstrip(" \t")
    if '"' in marks[-1][0] and (value := _JSON_VALUE.match(rest)):
        return value[0].strip().replace("\\\\", "\\")
    rest = rest.lstrip() if rest.startswith(("\n", "\r")) else rest
    if fence := re.match(r"```.*?```", rest, re.DOTALL):
        return fence[0]
    line = rest.partition("\n")[0].strip()
    if line.count("**") % 2 and line.endswith("**"):
        line = line[:-2].rstrip()  # the mark is emphasised with its result
    return line or None


def first_sentence(line: str) -> str:
    """Returns the line up to the end of its first sentence; a decimal point ends none."""
    return _END_OF_SENTENCE.split(line, maxsplit=1)[0].strip()


def remove_decoration(text: str) -> str:
    """Returns a result without code ticks, quotes, emphasis, markup, full-width signs and brackets around all of it."""
    text = _HTML.sub(" ", text.translate(_FULL_WIDTH)).strip()
    for _ in range(4):
        before = text
        if fence := _FENCE.match(text):
            text = fence[1].strip()
        if ticks := _TICKS.match(text):
            text = ticks[2].strip()
        if len(text) > 1 and _PAIRS.get(text[0]) == text[-1] and text[0] not in text[1:-1]:
            text = text[1:-1].strip()
        if emphasis := _EMPHASIS.match(text):
            text = emphasis[2]
        if brackets := _IN_BRACKETS.match(text):
            text = (brackets[1] or brackets[2] or "").strip()
        if text == before:
            break
    return text


def is_one_line(text: str) -> bool:
    """True for an output that may be nothing but its result."""
    text = text.strip()
    return 0 < len(text) <= LONGEST_LINE and "\n" not in text
