"""Strangers send whatever they like: no failure of the gateway's own, no silence, errors in the shape of the protocol
called.

The described requests come from the gateway's own OpenAPI description (valid and invalid ones), the others are made by
hand and by chance. `FUZZ_EXAMPLES=2000 pytest tests/test_gateway_fuzz.py --timeout 0 -s` runs for long, and differently
each time.
"""

from __future__ import annotations

import gzip
import http.client
import os
import sys
from collections import Counter
from contextlib import suppress

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import checks
from schemathesis.core.errors import InvalidSchema
from schemathesis.generation import GenerationMode
from support.fuzz_harness import DEADLINE, assert_answered, embedded, opened_fuzz_gateway
from support.fuzz_requests import BODIES, CHAT, NEARLY, headers, nearly_right

import areal_actors
from areal_actors.gateway.protocols.openapi import GATEWAY_ENDPOINTS, openapi
from areal_actors.gateway.protocols.session_requests import ENDPOINTS

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
DESCRIPTION = openapi(areal_actors.__version__, [*GATEWAY_ENDPOINTS, *ENDPOINTS], "refuse")  # as the harness has it
DESCRIBED = schemathesis.openapi.from_dict(DESCRIPTION)
OPERATIONS = {result.ok().label: result.ok() for result in DESCRIBED.get_all_operations()}
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]
ADMINS = ("/grant_capacity", "/rl/start_session", "/export_trajectories")


def report(what, seen):
    """Print the number of calls by status, shown with `-s`."""
    sys.stdout.write(f"\n{what}: {seen.total()} calls {dict(sorted(seen.items()))}\n")


def chances(examples):
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # each call stands for itself: what came before is part of what it meets
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module", params=["letters", "embedded"])
def harness(request):
    """Afterwards it still serves, and no call is left in flight."""
    with opened_fuzz_gateway(embedded() if request.param == "embedded" else None) as harness:
        yield harness


@pytest.fixture(autouse=True)
def _still_serves(harness):
    yield
    harness.check_alive()


# ---------------------------------------------------------------- as described


def test_the_description_is_served_and_is_valid_openapi(harness):
    status, described = harness.call("GET", "/openapi.json")
    assert (status, described) == (200, DESCRIPTION)
    DESCRIBED.validate()
    for schema in described["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    served = {(route.method, route.resource.canonical) for route in harness.manager.gateway._runner.app.router.routes()}
    assert {(method.upper(), path) for path, methods in described["paths"].items() for method in methods} <= served
    undescribed = {path for _, path in served if not path.startswith(("/{session}", "/v1/v1/"))} - described[
        "paths"
    ].keys()
    assert undescribed == {path.removeprefix("/v1") for path in described["paths"] if path.startswith("/v1/")}


@pytest.mark.slow
@pytest.mark.parametrize("mode", GenerationMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_requests_as_described_are_answered_and_others_refused(harness, operation, mode):
    if mode is GenerationMode.NEGATIVE and operation.path in {"/", "/health", "/openapi.json", "/ready", "/metrics"}:
        return  # they ask for nothing that could be wrong
    session = harness.started()
    assert (
        harness.call("POST", "/v1/chat/completions", {"messages": CHAT["messages"][:2]}, key=session["api_key"])[0]
        == 200
    )
    if operation.path == "/export_trajectories":
        for path, body in (("/rl/set_reward", {"reward": 1}), ("/rl/end_session", {})):
            assert harness.call("POST", path, body, key=session["api_key"])[0] == 200
    key = harness.admin if operation.path in ADMINS else session["api_key"]
    seen = Counter()

    @chances(8)
    @given(operation.as_strategy(generation_mode=mode), st.booleans())
    def call(case, to_ours):
        body_is_wrong = any(
            place.name == "BODY" and part.mode.is_negative for place, part in case.meta.components.items()
        )
        if isinstance(case.body, dict) and not body_is_wrong and "session_id" in case.body:
            case.body |= {"wait_seconds": 0.01} | ({"session_id": session["session_id"]} if to_ours else {})
        answer = case.call(
            base_url=f"http://{harness.host}:{harness.port}",
            headers={"Authorization": f"Bearer {key}"},
            timeout=DEADLINE,
        )
        seen[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)
        assert not (body_is_wrong and answer.status_code < 400), case.body

    with suppress(InvalidSchema):  # schemathesis cannot always make the wrong body that it has in mind
        call()
    report(f"{operation.label} {mode.value}", seen)


# ---------------------------------------------------------------- nearly right


class Caller:
    """Calls on one connection after the other, in the name of one session."""

    def __init__(self, harness):
        self.harness = harness
        self.opened = harness.inside(harness.fresh())
        self.connection = http.client.HTTPConnection(harness.host, harness.port, timeout=DEADLINE)
        self.seen = Counter()

    def __call__(self, method, path, body, headers=None, key=None):
        key = self.opened.api_key if key is None else key
        status, reply = self.harness.call_on(self.connection, method, path, body, key=key, headers=headers)
        self.seen[status] += 1
        return status, reply


@pytest.fixture
def caller(harness, request):
    caller = Caller(harness)
    yield caller
    caller.connection.close()
    report(request.node.name, caller.seen)


@pytest.mark.parametrize("path", NEARLY)
def test_the_bodies_that_are_nearly_right_begin_as_right_ones(caller, path):
    status, reply = caller("POST", f"/v1/{path.strip()}", NEARLY[path])
    forced = NEARLY[path].get("tool_choice", "auto") != "auto"
    assert status == (400 if forced and "tools" not in caller.harness.chat.template.source else 200), reply


@pytest.mark.slow
@pytest.mark.parametrize("path", NEARLY)
def test_requests_that_are_nearly_right_are_answered_or_refused(caller, path):
    @chances(40)
    @given(nearly_right(NEARLY[path]), st.booleans())
    def call(body, stream):
        body = body.replace(b'"stream": false', b'"stream": true') if stream else body
        path_called = f"/v1/{path.strip()}"
        assert_answered(path_called, *caller("POST", path_called, body))

    call()


# ---------------------------------------------------------------- anything


@pytest.mark.slow
def test_any_body_under_any_headers_is_answered_or_refused(caller):
    @chances(150)
    @given(st.sampled_from(sorted({path.strip() for path in NEARLY})), BODIES, headers())
    def call(path, body, odd):
        path = f"/v1/{path}"
        assert_answered(path, *caller("POST", path, body, odd))

    call()


@pytest.mark.slow
def test_any_method_at_any_path_is_answered_or_refused(harness, caller):
    other = harness.other
    segment = st.sampled_from(
        [
            *(
                "v1",
                "rl",
                "chat",
                "completions",
                "messages",
                "count_tokens",
                "responses",
                "models",
                "session",
                "health",
                "",
                ".",
                "..",
            ),
            *(
                "%2e%2e",
                "%2F",
                "%00",
                "%ff",
                "%ed%a0%80",
                "%",
                "%zz",
                "%25",
                "%e2%80%ae",
                "a" * 300,
                "{session}",
                "%7Bsession%7D",
                "~",
                ";x=1",
            ),
            *(
                "set_reward",
                "grant_capacity",
                "openapi.json",
                "metrics",
                "me%73sages",
                "MESSAGES",
                other.session,
                caller.opened.session,
            ),
        ]
    )
    path = st.lists(segment, max_size=5).map(lambda parts: "/" + "/".join(parts))
    query = st.sampled_from(["", "", "?", "?beta=true", "?session_id=%ff", "?a=%zz&a", "?" + "x" * 3000])
    keys = st.sampled_from([None, None, "", "x", "\xff", other.api_key, harness.admin, "x" * 5000, " "])
    methods = st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])

    @chances(150)
    @given(methods, path, query, keys, st.sampled_from([None, b"", b"{}", b"[]", b'{"messages": []}']))
    def call(method, path, query, key, body):
        status, reply = caller(method, path + query, body, key=key)
        assert_answered(path, status, reply)
        if method in {"PUT", "DELETE", "PATCH", "OPTIONS"}:
            assert status in {404, 405}, (method, path, status)

    call()


def test_a_schema_that_nothing_can_follow_is_refused_and_the_worker_lives(harness, caller):
    for schema in (
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}]},
        {"enum": []},
        {"type": "string", "minLength": 5, "maxLength": 3},
    ):
        asked = {
            "messages": CHAT["messages"][:2],
            "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
        }
        status, reply = caller("POST", "/v1/chat/completions", asked)
        assert status == 400, reply
        assert reply["error"]["param"] == "response_format"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_the_sessions_of_others_stay_theirs(harness, caller, path):
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
    for key in (
        harness.other.api_key,
        harness.admin,
        "sk-",
        f"{caller.opened.api_key} ",
        f" {caller.opened.api_key}",
        caller.opened.api_key[:-1],
    ):
        named = f"/{caller.opened.session}{path}"
        status, reply = caller("POST", named, body, key=key)
        mine = key.strip() == caller.opened.api_key
        assert status == (200 if mine else 401), (key, reply)
        assert_answered(named, status, reply)
    for prefix in ("", "%2e%2e%2f", "%00", "{session}"):
        status, _ = caller("POST", f"/{prefix}{harness.other.session}{path}", body)
        assert status in {401, 404}


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "x"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/rl/set_reward"])
def test_a_compressed_body_is_refused_unread(caller, path, encoding):
    bomb = gzip.compress(b" " * 20 * 2**20)
    for body in (bomb, bomb[:1000], b"2", b""):
        status, reply = caller("POST", path, body, {"Content-Encoding": encoding})
        assert status == 415
        assert_answered(path, status, reply)
        assert "without Content-Encoding" in reply["error"]["message"]
