"""Makes a tool of a Python function: JSON schema from signature and docstring, validation of the model's arguments."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

import docstring_parser
import pydantic


class FunctionTool:
    """A function that a model may call."""

    def __init__(self, function: Callable[..., Any], name: str = "", description: str = "") -> None:
        """Read the signature; name and description default to the function's own.

        Raises:
            TypeError: the function cannot be described as a tool; the message has the reason.
        """
        self.function = function
        self.name = name or getattr(function, "__name__", "")
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", self.name):
            raise TypeError(f"invalid tool name {self.name!r}; give it a `name` of letters, digits, _ and -")
        documented = docstring_parser.parse(inspect.getdoc(function) or "")
        self.description = description or (documented.description or "").strip()
        texts = {parameter.arg_name: " ".join((parameter.description or "").split()) for parameter in documented.params}
        self._arguments = _model(function, self.name, texts)

    def definition(self) -> dict[str, Any]:
        """Return the definition in the format of OpenAI's chat completions."""
        return tool_definition(self.name, self.description, _without_titles(self._arguments.model_json_schema()))

    def arguments(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Validate a model's arguments and return them as keyword arguments of the annotated types.

        Raises:
            ValueError: an argument is missing, unknown or of the wrong type; the message names all of them.
        """
        try:
            parsed = self._arguments.model_validate(raw)
        except pydantic.ValidationError as error:
            details = [
                f"{'.'.join(map(str, detail['loc'])) or 'arguments'}: {detail['msg']}" for detail in error.errors()
            ]
            raise ValueError("; ".join(details)) from error
        return {name: getattr(parsed, name) for name in type(parsed).model_fields if name in parsed.model_fields_set}


def tool_definition(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool's definition in OpenAI's format; `parameters` is a JSON schema."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": dict(parameters)}}


def _model(function: Callable[..., Any], name: str, texts: Mapping[str, str]) -> type[pydantic.BaseModel]:
    """Build a pydantic model of the arguments."""
    fields: dict[str, Any] = {}
    try:
        hints = typing.get_type_hints(
            inspect.unwrap(function) if inspect.isroutine(function) else type(function).__call__, include_extras=True
        )
    except NameError as error:
        raise TypeError(
            f"tool {name}: {error} in its annotations; import or define the type in the function's module"
        ) from error
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(
                f"tool {name}: a model can only pass arguments by name; replace `{parameter}` by named parameters"
            )
        required = parameter.default is parameter.empty
        field = pydantic.Field(... if required else parameter.default, description=texts.get(parameter.name))
        fields[parameter.name] = (hints.get(parameter.name, Any), field)
    try:
        return pydantic.create_model(
            name, __config__=pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields
        )
    except (pydantic.errors.PydanticUserError, NameError) as error:
        raise TypeError(f"tool {name}: {str(error).splitlines()[0]}") from error


def _without_titles(schema: Any) -> Any:
    """Remove the titles that pydantic generates: they cost tokens and repeat the names."""
    if isinstance(schema, dict):
        return {
            key: (
                {name: _without_titles(entry) for name, entry in value.items()}
                if key == "properties"
                else _without_titles(value)
            )
            for key, value in schema.items()
            if key != "title"
        }
    return [_without_titles(entry) for entry in schema] if isinstance(schema, list) else schema
