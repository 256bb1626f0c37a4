"""Stand-ins for the program's objects in a test, which ask the program's process, and compare as the judge does.

f(3) == 4          f(3) is data: compared here
f(3) == object     False for an object of the program beside data; its own `__eq__` is never asked
point == point     two objects of the program: the same one, or of one class with an `__eq__`, and with equal attributes
object - 0.5       another object of the program, which has seen a value of the test:
                   it never becomes a number or a truth value
object < 0.5       refused, as above
0.5 in object      its items, compared here
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Ask = Callable[..., Any]

BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift")
ORDER = ("lt", "le", "gt", "ge")
BASES: tuple[type, ...] = (tuple, list, dict, str, int, float, set, frozenset, bytes)
"""Built-in types whose subclasses travel as their value with a number, such as named tuples and enumerations of
integers."""
DEPTH = 50
"""Nested objects that are compared."""
SEEN = (
    "an object of the program, combined with a value of the test, has no number and no truth value: the program would"
    " know what is expected"
)


class Remote:
    """An object of the program."""

    __slots__ = ("remote_ask", "remote_has_seen", "remote_number")

    def __init__(self, ask: Ask, number: int) -> None:
        self.remote_ask, self.remote_number, self.remote_has_seen = ask, number, False

    def __getattr__(self, name: str) -> Any:
        return self.remote_ask("getattr", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in Remote.__slots__:
            object.__setattr__(self, name, value)
        else:
            self.remote_ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self.remote_ask("delattr", self, name)

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        """Call it in the program's process."""
        return self.remote_ask("call", self, *arguments, **keywords)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The program's class, for its name; a stand-in's type stays what it is."""
        remote_class = self.remote_ask("getattr", self, "__class__")
        return remote_class if type(remote_class) is RemoteClass else type(self)

    @property
    def __doc__(self) -> Any:  # type: ignore[override]
        return self.remote_ask("getattr", self, "__doc__")

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        return self.remote_ask("getattr", self, "__dict__")

    def __dir__(self) -> Any:
        return self.remote_ask("dir", self)

    def __eq__(self, other: object) -> bool:
        return is_remote(other) and is_same(self, other, DEPTH)

    def __hash__(self) -> int:
        value = self.remote_ask("hash", self)
        return value if type(value) is int else self.remote_number

    def __bool__(self) -> bool:
        return _of_type(bool, _ask_unseen(self, "bool"))  # type: ignore[no-any-return]

    def __int__(self) -> int:
        return _of_type(int, _ask_unseen(self, "int"))  # type: ignore[no-any-return]

    def __float__(self) -> float:
        return _of_type(float, _ask_unseen(self, "float"))  # type: ignore[no-any-return]

    def __complex__(self) -> complex:
        return _of_type(complex, _ask_unseen(self, "complex"))  # type: ignore[no-any-return]

    def __index__(self) -> int:
        return _of_type(int, _ask_unseen(self, "index"))  # type: ignore[no-any-return]

    def __round__(self, *digits: int) -> Any:
        return _ask_unseen(self, "round", *digits)

    def __abs__(self) -> Any:
        return _ask_unseen(self, "abs")

    def __neg__(self) -> Any:
        return _ask_unseen(self, "neg")

    def __pos__(self) -> Any:
        return _ask_unseen(self, "pos")

    def __invert__(self) -> Any:
        return _ask_unseen(self, "invert")

    def __str__(self) -> str:
        return _of_type(str, self.remote_ask("str", self))  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return _of_type(str, self.remote_ask("repr", self))  # type: ignore[no-any-return]

    def __bytes__(self) -> bytes:
        return _of_type(bytes, self.remote_ask("bytes", self))  # type: ignore[no-any-return]

    def __format__(self, form: str) -> str:
        return _of_type(str, _ask_unseen(self, "format", form) if form else self.remote_ask("str", self))  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return _of_type(int, self.remote_ask("len", self))  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Any]:
        items = self.remote_ask("iter", self)
        return items if type(items) is Remote else iter(items)

    def __next__(self) -> Any:
        return self.remote_ask("next", self)

    def __reversed__(self) -> Any:
        return self.remote_ask("reversed", self)

    def __contains__(self, item: object) -> bool:
        return any(item is member or item == member for member in self)

    def __getitem__(self, key: object) -> Any:
        return self.remote_ask("getitem", self, key)

    def __setitem__(self, key: object, value: object) -> None:
        self.remote_ask("setitem", self, key, value)

    def __delitem__(self, key: object) -> None:
        self.remote_ask("delitem", self, key)

    def __enter__(self) -> Any:
        return self.remote_ask("enter", self)

    def __exit__(self, *_: object) -> Any:
        return self.remote_ask("exit", self)


class RemoteClass(Remote):
    """A class of the program."""

    __slots__ = ()

    def __instancecheck__(self, instance: object) -> bool:
        return is_remote(instance) and _of_type(bool, self.remote_ask("isinstance", instance, self))

    def __subclasscheck__(self, other: object) -> bool:
        return is_remote(other) and _of_type(bool, self.remote_ask("issubclass", other, self))


def _ask_unseen(remote: Remote, operation: str, *arguments: Any) -> Any:
    if remote.remote_has_seen:
        raise TypeError(SEEN)
    return remote.remote_ask(operation, remote, *arguments)


def _of_type(kind: Any, value: object) -> Any:
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value


def is_remote(value: object) -> bool:
    """True for an object of the program, without asking it."""
    return type(value) in (Remote, RemoteClass)


def is_same(first: Any, second: Any, depth: int) -> bool:
    """Equality of two objects of the program, by what they hold."""
    if first.remote_number == second.remote_number:
        return True
    if not depth or type(first) is not type(second) or type(first) is RemoteClass:
        return False
    states = [remote.remote_ask("state", remote) for remote in (first, second)]
    if not all(type(state) is list and len(state) == 3 and type(state[2]) is dict for state in states):
        return False
    (kind, compares, attributes), (other_kind, _, other_attributes) = states
    if (
        compares is not True
        or not is_remote(kind)
        or not is_remote(other_kind)
        or kind.remote_number != other_kind.remote_number
    ):
        return False
    return bool(attributes == other_attributes)


def _binary(name: str) -> Callable[[Remote, Any], Any]:
    def operate(self: Remote, other: Any) -> Any:
        return _combine(self, name, self, other)

    return operate


def _reflect(name: str) -> Callable[[Remote, Any], Any]:
    def operate(self: Remote, other: Any) -> Any:
        return _combine(self, name, other, self)

    return operate


def _combine(remote: Remote, name: str, left: Any, right: Any) -> Any:
    """An operator with an object of the program: what comes of it beside a value of the test has seen that value."""
    has_seen = any(not is_remote(side) or side.remote_has_seen for side in (left, right))
    result = remote.remote_ask(name, left, right)
    if has_seen:
        if not is_remote(result):
            raise TypeError(SEEN)
        result.remote_has_seen = True
    return result


def _order(name: str) -> Callable[[Remote, Any], Any]:
    def compare(self: Remote, other: Any) -> Any:
        if not is_remote(other):
            raise TypeError(
                "an object of the program is not ordered beside a value of the test: the program would decide"
            )
        return _ask_unseen(self, name, other)

    return compare


for _name in BINARY:
    setattr(Remote, f"__{_name.rstrip('_')}__", _binary(_name))
    setattr(Remote, f"__r{_name.rstrip('_')}__", _reflect(_name))
for _name in ORDER:
    setattr(Remote, f"__{_name}__", _order(_name))


def _based_class(base: type) -> type:
    """A value of a built-in type with the attributes of the program's object."""

    class Based(base):  # type: ignore[misc]
        remote_ask: Any = None
        remote_number = -1

        def __getattr__(self, name: str) -> Any:
            if name.startswith("remote_"):
                raise AttributeError(name)
            return self.remote_ask("getattr", self, name)

        def __str__(self) -> str:
            return _of_type(str, self.remote_ask("str", self))  # type: ignore[no-any-return]

        def __repr__(self) -> str:
            return _of_type(str, self.remote_ask("repr", self))  # type: ignore[no-any-return]

    return Based


BASED: dict[type, type] = {base: _based_class(base) for base in BASES}


def remote_exception(number: int, name: str, bases: list[type]) -> type:
    """An exception class of the program, as one that a test can catch and raise."""
    kinds = tuple(dict.fromkeys(base for base in bases if issubclass(base, BaseException))) or (Exception,)

    def text(self: BaseException) -> str:
        shown = vars(self).get("remote_text")
        return shown if isinstance(shown, str) else BaseException.__str__(self)

    return type(name, kinds, {"remote_number": number, "remote_text": None, "__str__": text})
