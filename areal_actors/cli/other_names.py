"""Names of commands that are not among ours: earlier names of ours, names in other programs, and typing errors."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from areal_actors.core.command import COMMAND

EARLIER_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "gateway": ("serve", "gateway"),
    "launch": ("run",),
    "monitor": ("view", "--terminal"),
    "promote": ("serve", "promote"),
    "push": ("export", "--hub"),
    "replay": ("audit", "--replay"),
    "state": ("show", "--at", "end"),
    "tinker": ("serve", "tinker"),
    "trace": ("show", "--trace"),
    "track": ("export",),
    "verify": ("audit", "--verify"),
}
"""Commands of earlier releases, with the words that do the same. The words behind them stay as they are."""
OTHER_NAMES: Final[Mapping[str, str]] = {
    "train": "run",
    "start": "run",
    "validate": "check",
    "dry-run": "check",
    "plan": "check",
    "settings": "explain",
    "watch": "view --terminal",
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
    "upload": "export --hub",
    "completion": "--completion bash",
}
"""Names of commands in other programs, and ours."""


def with_new_name(words: Sequence[str]) -> list[str]:
    """Returns the words with the present name of a command in place of an earlier one, and prints it."""
    present = EARLIER_NAMES.get(words[0]) if words else None
    if present is None:
        return list(words)
    print(f"`{COMMAND} {words[0]}` is now `{COMMAND} {' '.join(present)}`", file=sys.stderr)
    return [*present, *words[1:]]


def no_command(word: str, names: Sequence[str]) -> str:
    """Returns the error for a word that is no command, with the one that is meant."""
    if word.endswith(".toml"):
        return f"found a recipe instead of a command; write `{COMMAND} run {word}`"
    near = difflib.get_close_matches(word, [*names, *OTHER_NAMES], n=1)
    hint = f"did you mean `{COMMAND} {OTHER_NAMES.get(near[0], near[0])}`?" if near else f"commands: {', '.join(names)}"
    return f"no command `{word}`; {hint}"
