"""Reads the cause of a failure from an agent's exception.

An error that the model brought about is no failure of the agent.
Only the classes and texts of the exception are looked at here; whether the model has caused it is decided with the
gateway's record of the episode (`rollout/model_end.py`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from json import JSONDecodeError
from pathlib import Path
from typing import Any, NamedTuple, Optional

KNOWN = (
    "agents.exceptions:MaxTurnsExceeded",
    "agents.exceptions:ModelBehaviorError",
    "dspy.utils.exceptions:AdapterParseError",
    "google.adk.agents.invocation_context:LlmCallsLimitExceededError",
    "instructor.core.exceptions:IncompleteOutputException",
    "langchain_core.exceptions:OutputParserException",
    "langgraph.errors:GraphRecursionError",
    "openai:LengthFinishReasonError",
    "pydantic_ai.exceptions:UnexpectedModelBehavior",
    "pydantic_ai.exceptions:UsageLimitExceeded",
    "smolagents.utils:AgentMaxStepsError",
    "smolagents.utils:AgentParsingError",
    "strands.types.exceptions:MaxTokensReachedException",
)
"""Exceptions of frameworks for a model that takes too many turns or tokens, or writes what the framework cannot
read."""
TOO_LONG = (
    "context_length_exceeded",
    "context length",
    "context window",
    "contextwindow",
    "contextoverflow",
    "prompt is too long",
)
"""Parts of texts, in lower case, in which a client or a framework reports that the context is full."""
DEEPEST = 32
"""Maximum number of exceptions followed from one to its cause."""
LONGEST_DOCUMENT = 65_536
"""Maximum length, in characters, of a text that was not JSON, as it is sent to the gateway for comparison."""
TRACEBACK = "Traceback (most recent call last)"


class ErrorTraits(NamedTuple):
    """The cause of a failure, as far as an agent's exception has it."""

    model_error: str = ""
    """Name of the exception, if it is one of those that the model brings about."""
    reports_overflow: bool = False
    """True if it, or what the agent last printed, reports that the context is full."""
    document: Optional[str] = None  # noqa: UP045 - evaluated by Python 3.9
    """Text that was not JSON, if the exception is of a JSON parser."""


NO_TRAITS = ErrorTraits()


def traits_of(error: BaseException, names: Sequence[str] = (), root: Path = Path()) -> ErrorTraits:
    """Look at an exception, its causes and the members of groups.

    `names` are those of `task.model_errors`, relative to `root`.
    """
    own = list(_causes(error))
    handled = list(_causes(error, handled=True))
    return ErrorTraits(
        model_error=next((name for kind in own for name in (*KNOWN, *names) if _is_named(kind, name, root)), ""),
        reports_overflow=reports_overflow(" ".join(f"{type(one).__name__} {_text(one)}" for one in handled)),
        document=next((text[:LONGEST_DOCUMENT] for one in own if (text := _document(one)) is not None), None),
    )


def traits_of_output(text: str, names: Sequence[str] = ()) -> ErrorTraits:
    """Look at what a program printed before it failed: the last traceback names the exception."""
    last = text.rpartition(TRACEBACK)[2] if TRACEBACK in text else ""
    raised = [
        name
        for name in (*KNOWN, *names)
        if re.search(rf"^{re.escape(name.replace(':', '.'))}(:|$)", last, re.MULTILINE)
    ]
    return ErrorTraits(model_error=raised[0] if raised else "", reports_overflow=reports_overflow(text))


def reports_overflow(text: str) -> bool:
    """True if a text reports that the context is full."""
    lower = text.lower()
    return any(part in lower for part in TOO_LONG)


def _causes(error: BaseException, *, handled: bool = False) -> Iterator[BaseException]:
    """An exception, those it was raised from, and the members of groups.

    With `handled` also those being handled when it was raised.
    """
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < DEEPEST:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        members = getattr(current, "exceptions", ())
        waiting += (
            [member for member in members if isinstance(member, BaseException)]
            if isinstance(members, (list, tuple))
            else []
        )
        waiting += [
            cause for cause in (current.__cause__, current.__context__ if handled else None) if cause is not None
        ]


def _is_named(error: BaseException, name: str, root: Path) -> bool:
    """True if an exception is of the class `module:Name` or `path.py:Name`, or of a subclass of it."""
    place, _, class_name = name.rpartition(":")
    if place.endswith(".py"):
        path = str((root / place).resolve())
        return any(kind.__qualname__ == class_name and _file(kind) == path for kind in type(error).__mro__)
    named: Any = sys.modules.get(place)
    for part in class_name.split("."):
        named = getattr(named, part, None)
    if isinstance(named, type):
        return isinstance(error, named)
    return any((kind.__module__, kind.__qualname__) == (place, class_name) for kind in type(error).__mro__)


def _file(kind: type) -> str:
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return str(Path(file).resolve()) if file else ""


def _document(error: BaseException) -> Optional[str]:  # noqa: UP045 - evaluated by Python 3.9
    """The text that a JSON parser could not read; None for another exception."""
    if isinstance(error, JSONDecodeError):
        return error.doc if isinstance(error.doc, str) else None
    if type(error).__name__ != "ValidationError" or not type(error).__module__.startswith("pydantic"):
        return None
    try:
        problems = error.errors()  # type: ignore[attr-defined]
        texts = [problem["input"] for problem in problems if problem["type"] == "json_invalid"]
    except Exception:  # noqa: BLE001 - the class is of another package
        return None
    return texts[0] if texts and isinstance(texts[0], str) else None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the class is the user's
        return ""
