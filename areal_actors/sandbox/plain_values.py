"""Values that cross the border between a program and its tests.

They are plain data as JSON, in a closed set of types; objects are numbers. Imported by both processes of `guest.py`, so
only the standard library, and little of it. What arrives is data of exactly these types: no class and no code of the
other side takes effect here. Lists, dictionaries, sets, deques and byte arrays are numbered within a message, so that
two names of one list stay one list, and an answer names the arguments that the call has changed.

    1, "a", 0.5, None, True             themselves
    [tag, ...]                          everything else, see `ValueWriter.write`
"""

from __future__ import annotations

import builtins
import os
import sys
from _collections import OrderedDict, deque  # type: ignore[import-not-found]
from _json import (
    encode_basestring_ascii,
    make_encoder,
    make_scanner,
)  # `json` itself takes as long to import as the interpreter to start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MUTABLE: dict[type, str] = {list: "list", dict: "dict", set: "set", deque: "deque", bytearray: "bytearray"}
MUTABLE[OrderedDict] = "ordered"
TYPE_OF = {tag: kind for kind, tag in MUTABLE.items()}
MAPPINGS = frozenset({"dict", "counter", "ordered"})
LARGEST = 1 << 62
"""Integers beyond it travel in hexadecimal: a decimal text of them is limited by the interpreter."""
TIMES = ("date", "time", "datetime", "timedelta")
PURE = frozenset(
    {
        *(
            "math",
            "cmath",
            "itertools",
            "functools",
            "operator",
            "collections",
            "heapq",
            "bisect",
            "string",
            "statistics",
        ),
        *("fractions", "decimal", "re", "copy", "datetime", "typing", "json", "random"),
    }
)
"""Modules whose functions each side has itself; every other module of the program stays on its side."""
TYPES = frozenset(
    kind
    for name in (
        *(
            "bool",
            "int",
            "float",
            "complex",
            "str",
            "bytes",
            "bytearray",
            "list",
            "tuple",
            "dict",
            "set",
            "frozenset",
            "range",
            "object",
        ),
        *("slice", "type"),
    )
    if isinstance(kind := getattr(builtins, name), type)
)
"""Built-in types that may travel by name, besides exceptions."""


class BadMessage(BaseException):
    """The other side sent what is no message.

    Not an `Exception`, so that no test takes it for one that the program raised.
    """


class _ScannerSettings:
    strict = False
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(
        {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.__getitem__
    )
    memo: dict[str, str] = {}


def _no_default(value: object) -> None:
    raise TypeError(f"{type(value).__name__} is not part of a message")


_encode = make_encoder(None, _no_default, encode_basestring_ascii, None, ":", ",", False, False, True)
_scan = make_scanner(_ScannerSettings())  # type: ignore[arg-type]


def _learn_counter() -> None:
    """Make `collections.Counter` a known type; `collections` is imported only where it is needed."""
    counter = __import__("collections").Counter
    MUTABLE[counter] = "counter"
    TYPE_OF["counter"] = counter


class Channel:
    """Two pipes that carry whole messages."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing

    def send(self, message: list[Any]) -> None:
        """Write one message.

        Raises:
            BadMessage: the other side is gone.
        """
        content = "".join(_encode(message, 0)).encode()
        view = memoryview(len(content).to_bytes(8, "little") + content)
        try:
            while view:
                view = view[os.write(self._writing, view) :]
        except OSError as error:
            raise BadMessage("the other side is gone") from error

    def receive(self) -> Any:
        """Read one message.

        Raises:
            BadMessage: the other side is gone, or wrote something else.
        """
        content = self._read(int.from_bytes(self._read(8), "little"))
        try:
            return _scan(content.decode(), 0)[0]
        except (ValueError, StopIteration, RecursionError) as error:
            raise BadMessage("not a message") from error

    def _read(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            if not (more := os.read(self._reading, min(size - len(received), 1 << 20))):
                raise BadMessage("the other side is gone")
            received += more
        return bytes(received)


class ValueWriter:
    """Turns values into what a message holds; `export` turns those that are not plain."""

    def __init__(self, export: Callable[[Any], list[Any]]) -> None:
        self._export = export
        self.containers: list[Any] = []
        """By their number in the message."""
        self._numbers: dict[int, int] = {}

    def number(self, container: Any) -> int:
        """Give a container the next number."""
        self._numbers[id(container)] = len(self.containers)
        self.containers.append(container)
        return len(self.containers) - 1

    def write(self, value: Any) -> Any:  # noqa: C901, PLR0911 - one branch for each type
        """A value as JSON."""
        kind = type(value)
        if value is None or kind in (bool, float, str):
            return value
        if kind is int:
            return value if -LARGEST < value < LARGEST else ["int", hex(value)]
        if kind.__name__ == "Counter" and kind.__module__ == "collections":
            _learn_counter()
        if kind in MUTABLE:
            number = self._numbers.get(id(value))
            if number is not None:
                return ["ref", number]
            return [MUTABLE[kind], self.number(value), self.write_items(value)]
        if kind is tuple or kind is frozenset:
            return [kind.__name__, [self.write(item) for item in value]]
        if kind is complex:
            return ["complex", value.real, value.imag]
        if kind is bytes:
            return ["bytes", value.hex()]
        if kind is range:
            return ["range", *(self.write(part) for part in (value.start, value.stop, value.step))]
        if kind is slice:
            return ["slice", *(self.write(part) for part in (value.start, value.stop, value.step))]
        if value is NotImplemented or value is Ellipsis:
            return ["constant", repr(value)]
        if (text := _text_of_number(kind, value)) is not None:
            return text
        return self._export(value)

    def write_items(self, container: Any) -> Any:
        """The content of a container."""
        kind = MUTABLE[type(container)]
        if kind in MAPPINGS:
            return [[self.write(key), self.write(value)] for key, value in container.items()]
        if kind == "bytearray":
            return container.hex()
        return [self.write(item) for item in container]


def _text_of_number(kind: type, value: Any) -> list[Any] | None:
    """Numbers and times of the standard library, by their exact type."""
    decimal, fractions, datetime = (sys.modules.get(name) for name in ("decimal", "fractions", "datetime"))
    if decimal is not None and kind is decimal.Decimal:
        return ["decimal", str(value)]
    if fractions is not None and kind is fractions.Fraction:
        return ["fraction", hex(value.numerator), hex(value.denominator)]
    if (
        datetime is not None
        and kind.__module__ == "datetime"
        and kind.__name__ in TIMES
        and kind is getattr(datetime, kind.__name__)
    ):
        if kind is datetime.timedelta:
            return ["timedelta", value.days, value.seconds, value.microseconds]
        return [kind.__name__, value.isoformat()] if getattr(value, "tzinfo", None) is None else None
    return None


class ValueReader:
    """Turns what a message holds into values; `resolve` turns those that are not plain."""

    def __init__(self, resolve: Callable[[list[Any], ValueReader], Any], containers: list[Any] | None = None) -> None:
        self._resolve = resolve
        self.containers: dict[int, Any] = dict(enumerate(containers or ()))

    def read(self, content: Any) -> Any:
        """A value from JSON.

        Raises:
            BadMessage: it is none.
        """
        if not isinstance(content, list):
            return content
        try:
            return self._read_tagged(content)
        except (IndexError, KeyError, AttributeError, ArithmeticError, ValueError) as error:
            raise BadMessage(f"not a value: {error!r:.100}") from error

    def _read_tagged(self, content: list[Any]) -> Any:  # noqa: C901, PLR0911 - one branch for each type
        tag = content[0]
        if tag == "counter":
            _learn_counter()
        if tag in TYPE_OF:
            container = self.containers[content[1]] = TYPE_OF[tag]()
            self.fill(container, content[2])
            return container
        match tag:
            case "ref":
                return self.containers[content[1]]
            case "int":
                return int(content[1], 16)
            case "tuple":
                return tuple(self.read(item) for item in content[1])
            case "frozenset":
                return frozenset(self.read(item) for item in content[1])
            case "complex":
                return complex(content[1], content[2])
            case "bytes":
                return bytes.fromhex(content[1])
            case "range":
                return range(*(self.read(part) for part in content[1:]))
            case "slice":
                return slice(*(self.read(part) for part in content[1:]))
            case "constant":
                return {"NotImplemented": NotImplemented, "Ellipsis": Ellipsis}[content[1]]
            case "decimal" | "fraction" | "date" | "time" | "datetime" | "timedelta":
                return _number_of_text(content)
        return self._resolve(content, self)

    def fill(self, container: Any, items: Any) -> None:
        """Replace the content of a container."""
        if type(container) is bytearray:
            container[:] = bytes.fromhex(items)
            return
        if MUTABLE[type(container)] in MAPPINGS:
            content = [(self.read(key), self.read(value)) for key, value in items]
            container.clear()
            for key, value in content:
                container[key] = value
            return
        values = [self.read(item) for item in items]
        container.clear()
        (container.update if isinstance(container, set) else container.extend)(values)


def _number_of_text(content: list[Any]) -> Any:
    tag, *parts = content
    if tag == "decimal":
        return _module("decimal").Decimal(parts[0])
    if tag == "fraction":
        return _module("fractions").Fraction(int(parts[0], 16), int(parts[1], 16))
    kind = getattr(_module("datetime"), tag)
    return kind(*parts) if tag == "timedelta" else kind.fromisoformat(parts[0])


def _module(name: str) -> Any:
    return __import__(name)


def pure_name(value: Any) -> list[Any] | None:
    """The name of a type, an exception, a module or a function that both sides have; None if it is none of these."""
    if isinstance(value, type):
        if value in TYPES or (issubclass(value, BaseException) and value.__module__ == "builtins"):
            return ["name", "builtins", value.__name__]
    elif type(value) is type(sys):
        return ["name", value.__name__, ""] if value.__name__ in PURE else None
    module = getattr(value, "__module__", None)
    name = getattr(value, "__name__", None)
    if module == "_operator":
        module = "operator"
    if (
        isinstance(module, str)
        and isinstance(name, str)
        and module in PURE
        and getattr(sys.modules.get(module), name, None) is value
    ):
        return ["name", module, name]
    return None


def value_of_pure_name(module: str, name: str) -> Any:
    """Return the object that `pure_name` named.

    Raises:
        BadMessage: it is none of these.
    """
    if module == "builtins":
        kind = getattr(_module("builtins"), name, None)
        if isinstance(kind, type) and (kind in TYPES or issubclass(kind, BaseException)):
            return kind
    elif module in PURE:
        if not name:
            return _module(module)
        value = getattr(_module(module), name, None)
        if isinstance(value, type) or (callable(value) and not name.startswith("_")):
            return value
    raise BadMessage(f"no such name: {module!r:.40}.{name!r:.40}")
