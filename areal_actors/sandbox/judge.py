"""The tests' side: executes a task's statements.

Their names of the program stand for objects in the program's own process. Imported by `guest.py` in a process of its
own. It believes nothing that the program's process sends except as data: what is equal, less, or contained is decided
here, by values; an object of the program never sees what it is compared with.
"""

from __future__ import annotations

import sys
from types import ModuleType

from areal_actors.sandbox.plain_values import (
    BadMessage,
    Channel,
    ValueReader,
    ValueWriter,
    pure_name,
    value_of_pure_name,
)
from areal_actors.sandbox.remote_objects import BASED, Remote, RemoteClass, remote_exception

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

TEST_NAME = "tests"
"""`__name__` of the statements."""
ONLY_SYNTAX = 0x400
"""Flag of `compile` for a syntax tree: `ast` takes too long to import."""


class Judge:
    """Asks the program's process, and turns its answers into values."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._remotes: dict[int, Any] = {}
        self._exported: list[Any] = []
        self.is_broken = False
        """True once the program's process is gone, or has sent what is no message: no test passes from then on."""

    def ask(self, operation: str, /, *arguments: Any, **keywords: Any) -> Any:
        """Let the program's process do something; returns the value, or raises what the program raised.

        Raises:
            BadMessage: there is no valid answer.
        """
        try:
            return self._ask(operation, arguments, keywords)
        except BadMessage:
            self.is_broken = True
            raise

    def _ask(self, operation: str, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
        if self.is_broken:
            raise BadMessage("the program's process is gone")
        writer = ValueWriter(self._export)
        written = [writer.write(argument) for argument in arguments]
        self._channel.send([operation, written, [[key, writer.write(value)] for key, value in keywords.items()]])
        reader = ValueReader(self._resolve, writer.containers)
        while True:
            match self._channel.receive():
                case ["ok", content, list(changed)]:
                    result = reader.read(content)
                    _apply(reader, writer.containers, changed)
                    return result
                case ["error", kind, error_arguments, str(text), state, list(changed)]:
                    error = self._error(reader, kind, error_arguments, text, state)
                    _apply(reader, writer.containers, changed)
                    raise error
                case ["callback", int(number), str(name), list(callback_arguments), list(named)]:
                    self._channel.send(self._answer_callback(number, name, callback_arguments, named))
                case _:
                    raise BadMessage("not an answer")

    def _error(self, reader: ValueReader, kind: Any, arguments: Any, text: str, state: Any) -> BaseException:
        error_class, values = reader.read(kind), reader.read(arguments)
        if not (isinstance(error_class, type) and issubclass(error_class, BaseException) and isinstance(values, tuple)):
            raise BadMessage("not an exception")
        try:
            error = error_class(*values)
        except Exception:  # noqa: BLE001 - one with a constructor of its own
            error = RuntimeError(text)
        attributes = reader.read(state)
        if isinstance(attributes, dict):
            error.__dict__.update((key, value) for key, value in attributes.items() if isinstance(key, str))
        if hasattr(error_class, "remote_text"):
            error.__dict__["remote_text"] = text
        return error

    def _answer_callback(self, number: int, name: str, arguments: list[Any], named: list[Any]) -> list[Any]:
        reader = ValueReader(self._resolve)
        given = [reader.read(argument) for argument in arguments]
        keywords = {str(key): reader.read(value) for key, value in named}
        try:
            target = self._exported[number]
            if name == "call" and callable(target):
                result = target(*given, **keywords)
            elif name in ("get", "set") and type(target).__module__ == TEST_NAME and not str(given[0]).startswith("_"):
                result = (getattr if name == "get" else setattr)(target, *given)
            else:
                raise TypeError(
                    "the object of a test that the program has been given can be called, and has public attributes only"
                )
            return ["returned", ValueWriter(self._export).write(result)]
        except BadMessage:
            raise
        except Exception as error:  # noqa: BLE001 - it is raised where the program has called
            kind = next(base for base in type(error).__mro__ if base.__module__ == "builtins")
            return ["raised", ["name", "builtins", kind.__name__], ["tuple", [str(error)]]]

    def _export(self, value: Any) -> list[Any]:
        if isinstance(type(value), type) and hasattr(type(value), "remote_number"):
            return ["yours", object.__getattribute__(value, "remote_number")]
        if (name := pure_name(value)) is not None:
            return name
        if isinstance(value, dict):
            return ValueWriter(self._export).write(dict(value))  # type: ignore[no-any-return]
        if callable(value) or type(value).__module__ == TEST_NAME:
            for number, exported in enumerate(self._exported):
                if exported is value:
                    return ["mine", number, callable(value)]
            self._exported.append(value)
            return ["mine", len(self._exported) - 1, callable(value)]
        raise TypeError(
            f"a test can pass plain data and functions to the program, and no {type(value).__name__}: it runs in"
            " another process"
        )

    def _resolve(self, content: list[Any], reader: ValueReader) -> Any:
        match content:
            case ["name", str(module), str(name)]:
                return value_of_pure_name(module, name)
            case ["keys", list(items)]:
                return dict.fromkeys(reader.read(item) for item in items).keys()
            case ["items", list(items)]:
                return dict(reader.read(item) for item in items).items()
            case ["mine", int(number)]:
                return self._exported[number]
            case [("object" | "class" | "exception" | "based") as kind, int(number), *rest]:
                if kind == "based":  # a value may change, its number stays
                    return self._make_based(number, reader.read(rest[0]))
                if number not in self._remotes:
                    self._remotes[number] = self._remote(kind, number, rest, reader)
                return self._remotes[number]
        raise BadMessage("not a value")

    def _remote(self, kind: str, number: int, rest: list[Any], reader: ValueReader) -> Any:
        if kind == "exception":
            bases = [reader.read(base) for base in rest[1]]
            return remote_exception(number, str(rest[0]), [base for base in bases if isinstance(base, type)])
        return (RemoteClass if kind == "class" else Remote)(self.ask, number)

    def _make_based(self, number: int, value: Any) -> Any:
        if type(value) not in BASED:
            raise BadMessage("not a value")
        based = BASED[type(value)](value)
        based.remote_ask, based.remote_number = self.ask, number
        return based


def _apply(reader: ValueReader, containers: list[Any], changed: list[Any]) -> None:
    """Give the arguments of a call the content that it has left them with."""
    for number, items in changed:
        if not 0 <= number < len(containers):
            raise BadMessage("not an argument")
        reader.fill(containers[number], items)


class Names(dict[str, "Any"]):
    """Global names of the statements; those that they do not define are the program's."""

    def __init__(self, judge: Judge, subjects: frozenset[str]) -> None:
        super().__init__(__name__=TEST_NAME, __builtins__=vars(sys.modules["builtins"]))
        self._judge, self._subjects = judge, subjects
        self._theirs = frozenset(
            name for name in judge.ask("names") if isinstance(name, str) and not name.startswith("__")
        )

    def __missing__(self, name: str) -> Any:
        if name not in self._theirs or (name in self["__builtins__"] and name not in self._subjects):
            raise KeyError(name)
        return self._judge.ask("global", name)


class _Program(ModuleType):
    """The module `answer`, as `from answer import f` of a test imports it."""

    def __init__(self, names: Names) -> None:
        super().__init__("answer")
        self.__dict__["names"] = names

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["names"].__missing__(name)
        except KeyError:
            raise AttributeError(name) from None


def run_checks(channel: Channel, checks: Sequence[str]) -> bool:
    """Execute the statements in turn; returns True if none raised.

    The program's process has to have answered properly all the time.
    """
    judge = Judge(channel)
    codes = [compile(check, "check.py", "exec") for check in checks]
    names = Names(judge, subjects_of(checks))
    sys.modules["answer"] = _Program(names)
    for code in codes:
        exec(code, names)  # noqa: S102 - the task's own statements
    return not judge.is_broken


def subjects_of(checks: Sequence[str]) -> frozenset[str]:
    """Names of built-in functions that the statements mean as the program's.

    The only name that they call, such as `assert sum(1, 2) == 3`.
    Otherwise a program that defines `all` or `abs` would decide what its tests find.
    """
    builtin = vars(sys.modules["builtins"])
    loaded: set[str] = set()
    bound: set[str] = set()
    called: set[str] = set()
    nodes: list[Any] = [compile(check, "check.py", "exec", ONLY_SYNTAX) for check in checks]
    while nodes:
        node = nodes.pop()
        kind = type(node).__name__
        if kind == "Name":
            (loaded if type(node.ctx).__name__ == "Load" else bound).add(node.id)
        elif kind in ("FunctionDef", "AsyncFunctionDef", "ClassDef"):
            bound.add(node.name)
        elif kind == "arg":
            bound.add(node.arg)
        elif kind == "alias":
            bound.add((node.asname or node.name).partition(".")[0])
        elif kind == "ExceptHandler" and node.name:
            bound.add(node.name)
        elif kind == "Call" and type(node.func).__name__ == "Name":
            called.add(node.func.id)
        for field in node._fields:
            value = getattr(node, field, None)
            nodes += [child for child in (value if isinstance(value, list) else [value]) if hasattr(child, "_fields")]
    names = called & builtin.keys() - bound
    is_other = any(name not in builtin and name not in bound for name in loaded) or "answer" in bound
    return frozenset(names if len(names) == 1 and not is_other else ())
