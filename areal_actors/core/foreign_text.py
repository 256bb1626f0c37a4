"""Text of models, agents and data sets, made harmless where a person reads it.

Such text may hold escape sequences that write to the clipboard, rename or clear the terminal, and marks that change the
direction of what follows. Files and messages keep it as it is; what is shown has a visible character in place of each
(Unicode TR 36, section 3).
"""

from __future__ import annotations

import re

CONTROL_PICTURES = 0x2400
"""The picture of the control character n is n characters further."""
SPACE = 0x20
DELETE, DELETE_PICTURE = 0x7F, "\u2421"
UNKNOWN = "\ufffd"
HARMFUL = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but the tab and the line feed
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of text
    "\u2028\u2029"  # ends of lines for some readers
    "\ud800-\udfff"  # halves of characters, which no terminal can be given
    "\U000e0000-\U000e007f"  # tags: a second text that is not seen
    "]"
)


def show_controls(text: str) -> str:
    """Return the text with one visible character for each that would change the terminal or the direction of text."""
    return HARMFUL.sub(_picture, text)


def escape_controls(text: str) -> str:
    """Return JSON with an escape for each of these characters: what is read from it is the same."""
    return HARMFUL.sub(_escape, text)


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code == DELETE:
        return DELETE_PICTURE
    return chr(CONTROL_PICTURES + code) if code < SPACE else UNKNOWN


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))
