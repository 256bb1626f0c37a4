"""Hints for words that are no command: names of commands in other programs, and typing errors."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from areal_actors.core.command import COMMAND

OTHER_NAMES = {
    "train": "run",
    "start": "run",
    "validate": "check",
    "dry-run": "check",
    "plan": "check",
    "settings": "explain",
    "watch": "monitor",
    "list": "runs",
    "ls": "runs",
    "web": "view",
    "dashboard": "view",
    "plot": "compare",
    "diff": "compare",
    "new": "init",
    "create": "init",
    "download": "model get",
    "convert": "model convert",
}
"""Names of commands in other programs, and ours."""


def no_command(word: str, names: Sequence[str]) -> str:
    """Returns the error for a word that is no command, with the one that is meant."""
    if word.endswith(".toml"):
        return f"found a recipe instead of a command; write `{COMMAND} run {word}`"
    near = difflib.get_close_matches(word, [*names, *OTHER_NAMES], n=1)
    hint = f"did you mean `{COMMAND} {OTHER_NAMES.get(near[0], near[0])}`?" if near else f"commands: {', '.join(names)}"
    return f"no command `{word}`; {hint}"
