"""The OpenAPI description of the gateway, generated from the structs that decode the requests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from areal_actors.core.command import COMMAND
from areal_actors.gateway.protocols import DIALECTS, MESSAGES, dialect_of_path
from areal_actors.gateway.protocols.lenient_openapi import REFERENCE, allow_unknown
from areal_actors.gateway.settings import UnknownFields

JSON_TYPE = "application/json"
EVENTS_TYPE = "text/event-stream"
DESCRIPTION = (
    "Paths under /v1 are also served without /v1, and under a session's name: /{session}/v1/chat/completions; "
    "so are /rl/set_reward, /rl/select_trained, /rl/end_session, /rl/session and /rl/interaction. "
    "A path may have the session's key in place of its name; such a request needs no other key."
)
KEYS = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "The session's key, or the admin key."},
    "api_key": {
        "type": "apiKey",
        "in": "header",
        "name": "x-api-key",
        "description": "The same key, as Anthropic's clients send it.",
    },
}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


TEXT, NULLABLE_TEXT = {"type": "string", "minLength": 1}, {"type": ["string", "null"]}
MODELS = _object(object={"const": "list"}, data={"type": "array", "items": _object(id={"type": "string"})})
OPENAI_ERROR, ANTHROPIC_ERROR = "OpenAIError", "AnthropicError"
ERRORS = {
    OPENAI_ERROR: _object(error=_object(message=TEXT, type=TEXT, param=NULLABLE_TEXT, code=NULLABLE_TEXT)),
    ANTHROPIC_ERROR: _object(type={"const": "error"}, error=_object(type=TEXT, message=TEXT)),
}


class Endpoint(NamedTuple):
    """An HTTP endpoint of the gateway."""

    method: str
    """In lower case."""
    path: str
    """Names in braces are parameters."""
    summary: str
    request: type[msgspec.Struct] | None = None
    """Struct of the request's body; None if there is no body."""
    response: dict[str, Any] | None = None
    """JSON schema of the answer; None for any object."""
    answers: tuple[str, ...] = (JSON_TYPE,)
    """Content types of the answer."""
    needs_key: bool = True
    needs_body: bool = True
    """If false, an empty body is the same as `{}`."""
    query: tuple[str, ...] = ()
    """Names of the query parameters."""


GATEWAY_ENDPOINTS = (
    Endpoint("get", "/v1/models/{model}", "The model, under any name"),
    Endpoint("get", "/", "The same as /health, for probes of the base URL", needs_key=False),
    Endpoint("get", "/health", "Is the gateway up?", needs_key=False),
    Endpoint("get", "/openapi.json", "This description", needs_key=False),
)


MODEL_ENDPOINTS = (
    *[
        Endpoint(
            "post",
            f"/v1/{dialect.path}",
            dialect.summary,
            dialect.request_type,
            answers=(JSON_TYPE, EVENTS_TYPE) if "stream" in dialect.request_type.__struct_fields__ else (JSON_TYPE,),
        )
        for dialect in DIALECTS
    ],
    Endpoint("get", "/v1/models", "The one model behind this gateway", response=MODELS),
)
"""Endpoints of the dialects, and the list of models."""


def openapi(version: str, endpoints: Iterable[Endpoint] = (), unknown_fields: UnknownFields = "list") -> dict[str, Any]:
    """Return the OpenAPI description of the model endpoints and these; `version` is the package's.

    Requests of the model endpoints are described with what `unknown_fields` accepts.
    """
    everything = [*MODEL_ENDPOINTS, *endpoints]
    requests = list(dict.fromkeys(endpoint.request for endpoint in everything if endpoint.request is not None))
    schemas, components = msgspec.json.schema_components(requests, ref_template=f"{REFERENCE}{{name}}")
    _relax_tags(components)
    if unknown_fields == "list":
        names = [str(reference["$ref"]).removeprefix(REFERENCE) for reference in schemas]
        _, ours = msgspec.json.schema_components(
            [dialect.request_type for dialect in DIALECTS], ref_template=f"{REFERENCE}{{name}}"
        )
        allow_unknown({name: schema for name, schema in components.items() if name in ours}, names)
    references = dict(zip(requests, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in everything:
        paths.setdefault(one.path, {})[one.method] = _operation(one, references)
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{COMMAND} serve gateway", "version": version, "description": DESCRIPTION},
        "paths": paths,
        "components": {"schemas": {**components, **ERRORS}, "securitySchemes": KEYS},
    }


def _relax_tags(components: dict[str, dict[str, Any]]) -> None:
    """Make a tag optional outside of tagged unions: msgspec decodes objects without it, but its schema requires it."""
    mappings = re.findall(r'"mapping":{(.*?)}', msgspec.json.encode(components).decode())
    discriminated = set(re.findall(r"#/components/schemas/(\w+)", "".join(mappings)))
    for name, schema in components.items():
        if name not in discriminated and "required" in schema:
            tags = {
                field
                for field, field_schema in schema["properties"].items()
                if field_schema.keys() == {"enum"} and len(field_schema["enum"]) == 1
            }
            schema["required"] = [field for field in schema["required"] if field not in tags]


def _operation(endpoint: Endpoint, references: dict[type[msgspec.Struct], dict[str, Any]]) -> dict[str, Any]:
    answer_content = {JSON_TYPE: {"schema": endpoint.response or {"type": "object"}}}
    shape = ANTHROPIC_ERROR if dialect_of_path(endpoint.path) is MESSAGES else OPENAI_ERROR
    error = {JSON_TYPE: {"schema": {"$ref": f"#/components/schemas/{shape}"}}}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method}{endpoint.path}").strip("_"),
        "parameters": [
            *[_parameter(name, "path", required=True) for name in re.findall(r"{(\w+)}", endpoint.path)],
            *[_parameter(name, "query", required=False) for name in endpoint.query],
        ],
        "responses": {
            "200": {
                "description": "The answer",
                "content": {kind: answer_content.get(kind, {}) for kind in endpoint.answers},
            },
            "4XX": {"description": "An error in the format of the called protocol", "content": error},
            "503": {"description": "Temporarily unavailable, in the same format", "content": {JSON_TYPE: {}}},
        },
    }
    if endpoint.request is not None:
        content = {JSON_TYPE: {"schema": references[endpoint.request]}}
        operation["requestBody"] = {"required": endpoint.needs_body, "content": content}
    if endpoint.needs_key:
        operation["security"] = [{name: []} for name in KEYS]
    return operation


def _parameter(name: str, place: str, *, required: bool) -> dict[str, Any]:
    return {"name": name, "in": place, "required": required, "schema": TEXT}
