"""The program's side of its tests: runs what the tests ask for, and answers with values.

Nothing here is trusted by the tests' side.
Imported by `guest.py` in the process of the program.
"""

from __future__ import annotations

import operator
import os

from areal_actors.sandbox.plain_values import (
    BadMessage,
    Channel,
    ValueReader,
    ValueWriter,
    pure_name,
    value_of_pure_name,
)
from areal_actors.sandbox.remote_objects import BASES, BINARY, ORDER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PLACE: dict[type, str] = {type({}.keys()): "keys", type({}.items()): "items"}


class ProgramServer:
    """Answers requests about the names of one module."""

    def __init__(self, channel: Channel, names: dict[str, Any]) -> None:
        self._channel, self._names = channel, names
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._operations: dict[str, Callable[..., Any]] = OPERATIONS | {
            "global": self._names.__getitem__,
            "names": lambda: list(self._names),
        }

    def serve(self) -> None:
        """Answer until the other side is gone."""
        try:
            while True:
                self._channel.send(self._answer(self._channel.receive()))
        except BadMessage:
            os._exit(0)

    def _answer(self, request: Any) -> list[Any]:
        operation, arguments, keywords = request
        reader = ValueReader(self._resolve)
        given = [reader.read(argument) for argument in arguments]
        named = {key: reader.read(value) for key, value in keywords}
        before = [(container, _parts(container)) for container in reader.containers.values()]
        writer = ValueWriter(self._export)
        for container in reader.containers.values():
            writer.number(container)
        try:
            result = writer.write(self._operations[operation](*given, **named))
            status = ["ok", result]
        except BadMessage:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the program raises is what its test sees
            status = ["error", *self._describe(error, writer)]
        changed = [
            [number, writer.write_items(container)]
            for number, (container, parts) in enumerate(before)
            if _is_changed(container, parts)
        ]
        return [*status, changed]

    def _describe(self, error: BaseException, writer: ValueWriter) -> list[Any]:
        state = {key: value for key, value in vars(error).items() if isinstance(key, str)}
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 - the program's own method
            text = ""
        return [writer.write(type(error)), writer.write(tuple(error.args)), text, writer.write(state)]

    def _export(self, value: Any) -> list[Any]:  # noqa: PLR0911 - one branch for each kind
        if type(value) in (_OfTheTests, _FunctionOfTheTests):
            return ["mine", value.number]
        if (name := pure_name(value)) is not None:
            return name
        if type(value) in PLACE:
            writer = ValueWriter(self._export)
            return [PLACE[type(value)], [writer.write(item) for item in value]]
        number = self._number(value)
        if isinstance(value, type):
            if issubclass(value, BaseException):
                bases = [base for base in value.__bases__ if issubclass(base, BaseException)]
                return ["exception", number, value.__name__, [ValueWriter(self._export).write(base) for base in bases]]
            return ["class", number]
        for base in BASES:
            if isinstance(value, base):
                return ["based", number, ValueWriter(self._export).write(_plain(base, value))]
        return ["object", number]

    def _number(self, value: Any) -> int:
        if (number := self._numbers.get(id(value))) is not None:
            return number
        self._objects.append(value)
        self._numbers[id(value)] = len(self._objects) - 1
        return len(self._objects) - 1

    def _resolve(self, content: list[Any], _reader: ValueReader) -> Any:
        match content:
            case ["yours", int(number)]:
                return self._objects[number]
            case ["name", str(module), str(name)]:
                return value_of_pure_name(module, name)
            case ["mine", int(number), bool(is_callable)]:
                return (_FunctionOfTheTests if is_callable else _OfTheTests)(self, number)
        raise BadMessage("not a value")

    def ask_the_tests(self, number: int, operation: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a function that a test has passed, or read or set an attribute of its object."""
        writer = ValueWriter(self._export)
        written = [writer.write(argument) for argument in arguments]
        self._channel.send(
            ["callback", number, operation, written, [[key, writer.write(value)] for key, value in keywords.items()]]
        )
        while True:
            match self._channel.receive():
                case ["returned", content]:
                    return ValueReader(self._resolve).read(content)
                case ["raised", content, arguments_of_error]:
                    kind = ValueReader(self._resolve).read(content)
                    raise kind(*ValueReader(self._resolve).read(arguments_of_error))
                case request:
                    self._channel.send(self._answer(request))


class _OfTheTests:
    """An object of a test, whose public attributes the program may use."""

    def __init__(self, server: ProgramServer, number: int) -> None:
        self.__dict__["server"], self.__dict__["number"] = server, number

    def __getattr__(self, name: str) -> Any:
        return self.server.ask_the_tests(self.number, "get", name)

    def __setattr__(self, name: str, value: object) -> None:
        self.server.ask_the_tests(self.number, "set", name, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OfTheTests) and other.number == self.number

    def __hash__(self) -> int:
        return int(self.number)


class _FunctionOfTheTests(_OfTheTests):
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.server.ask_the_tests(self.number, "call", *arguments, **keywords)


def _parts(container: Any) -> list[Any]:
    """Content of a container, to find out later whether it has changed."""
    kind = type(container)
    return [part for pair in container.items() for part in pair] if issubclass(kind, dict) else list(container)


def _is_changed(container: Any, before: list[Any]) -> bool:
    now = _parts(container)
    return len(now) != len(before) or any(new is not old for new, old in zip(now, before, strict=True))


def _plain(base: type, value: Any) -> Any:
    """The value of an instance of a subclass, in its built-in type."""
    if base is dict:
        return dict(value.items())
    if base in (str, bytes):
        return base.__str__(value) if base is str else bytes(memoryview(value))
    if base in (int, float):
        return base.__int__(value) if base is int else base.__float__(value)
    return base(base.__iter__(value))  # type: ignore[attr-defined]


def _state(value: Any) -> list[Any]:
    """Class, whether that defines an equality of its own, and attributes, of an object."""
    kind = type(value)
    attributes = dict(getattr(value, "__dict__", {}))
    for owner in kind.__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                attributes[name] = getattr(value, name)
    return [kind, getattr(kind, "__eq__", None) is not getattr(object, "__eq__", None), attributes]


UNARY = ("neg", "pos", "invert", "abs", "index")
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in (*BINARY, *ORDER, *UNARY, "getitem", "setitem", "delitem")},
    **{kind.__name__: kind for kind in (int, float, complex, bool, str, bytes)},
    **{
        function.__name__: function
        for function in (iter, next, len, repr, hash, reversed, round, format, isinstance, issubclass, dir)
    },
    "getattr": getattr,
    "setattr": setattr,
    "delattr": delattr,
    "call": operator.call,
    "enter": lambda value: type(value).__enter__(value),
    "exit": lambda value: type(value).__exit__(value, None, None, None),
    "state": _state,
}
