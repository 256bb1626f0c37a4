"""From a Python function to a tool: its JSON schema from signature and docstring, its arguments from what a model wrote."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

import pydantic

SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):?\s*$")
GOOGLE = re.compile(r"^(\s+)\*{0,2}(\w+)(?:\s*\(.*?\))?:\s*(.+)$")
SPHINX = re.compile(r"^\s*:param\s+(?:[\w\[\], |.]+\s+)?(\w+):\s*(.+)$")
NUMPY = re.compile(r"^(\w+)\s*:\s*\S")


class FunctionTool:
    """A function that a model may call."""

    def __init__(self, function: Callable[..., Any], name: str = "", description: str = "") -> None:
        """Read the signature; name and description are the function's own where they are not given.

        Raises:
            TypeError: the function cannot be described as a tool; the message says why.
        """
        self.function = function
        self.name = name or getattr(function, "__name__", "")
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", self.name):
            raise TypeError(f"a tool cannot be called {self.name!r}; give it a `name` of letters, digits, _ and -")
        documented = inspect.getdoc(function) or ""
        self.description = description or summary(documented)
        self._arguments = _model(function, self.name, parameter_texts(documented))

    def definition(self) -> dict[str, Any]:
        """As OpenAI's chat completions want it."""
        return defined(self.name, self.description, _untitled(self._arguments.model_json_schema()))

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments for what a model gave, of the annotated types.

        Raises:
            ValueError: something is missing, unknown or of another type; the message names all of it.
        """
        try:
            read = self._arguments.model_validate(given)
        except pydantic.ValidationError as error:
            faults = [f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}" for fault in error.errors()]
            raise ValueError("; ".join(faults)) from error
        return {name: getattr(read, name) for name in type(read).model_fields if name in read.model_fields_set}


def defined(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A tool's definition in OpenAI's form; `parameters` is a JSON schema."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": dict(parameters)}}


def _model(function: Callable[..., Any], name: str, texts: Mapping[str, str]) -> type[pydantic.BaseModel]:
    """The arguments as a pydantic model."""
    fields: dict[str, Any] = {}
    try:
        hints = typing.get_type_hints(
            inspect.unwrap(function) if inspect.isroutine(function) else type(function).__call__, include_extras=True
        )
    except NameError as error:
        raise TypeError(f"tool {name}: {error} in its annotations; make the type known where the function is defined") from error
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"tool {name}: a model can only give arguments by name; name what stands in `{parameter}`")
        required = parameter.default is parameter.empty
        field = pydantic.Field(... if required else parameter.default, description=texts.get(parameter.name))
        fields[parameter.name] = (hints.get(parameter.name, Any), field)
    try:
        return pydantic.create_model(name, __config__=pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields)
    except (pydantic.errors.PydanticUserError, NameError) as error:
        raise TypeError(f"tool {name}: {str(error).splitlines()[0]}") from error


def summary(documented: str) -> str:
    """What a docstring says before its sections."""
    lines: list[str] = []
    for line in documented.splitlines():
        if SECTION.match(line) or line.lstrip().startswith(":param"):
            break
        lines.append(line)
    return "\n".join(lines).strip()


def parameter_texts(documented: str) -> dict[str, str]:
    """What a docstring says of each parameter, in Google's, NumPy's or Sphinx's way."""
    texts: dict[str, str] = {}
    section, name, indent = "", "", -1
    for line in documented.splitlines():
        if started := SECTION.match(line):
            section, name, indent = started[1], "", -1
        elif found := SPHINX.match(line):
            texts[found[1]] = found[2].strip()
        elif section not in ("Args", "Arguments", "Parameters"):
            continue
        elif (found := GOOGLE.match(line)) and indent in (-1, len(found[1])):
            indent, name = len(found[1]), found[2]
            texts[name] = found[3].strip()
        elif found := NUMPY.match(line):
            name = found[1]
        elif name and line.startswith(" "):
            texts[name] = f"{texts.get(name, '')} {line.strip()}".strip()
    return texts


def _untitled(schema: Any) -> Any:
    """Without the titles that pydantic makes up: they cost tokens and say what the names say."""
    if isinstance(schema, dict):
        return {
            key: {name: _untitled(entry) for name, entry in value.items()} if key == "properties" else _untitled(value)
            for key, value in schema.items()
            if key != "title"
        }
    return [_untitled(entry) for entry in schema] if isinstance(schema, list) else schema
