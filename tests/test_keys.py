from __future__ import annotations

import pytest

from areal_actors.gateway.sessions.keys import admin_key, is_admin, session_key, weakness


def test_keys_follow_from_the_secret_and_differ():
    keys = {session_key(secret, name) for secret in (b"a", b"b") for name in ("s-0", "s-1")} | {
        admin_key(b"a"),
        admin_key(b"b"),
    }
    assert len(keys) == 6
    assert session_key(b"a", "s-0") == session_key(b"a", "s-0")
    assert len(session_key(b"a", "s-0")) == 3 + 64


def test_an_admin_key_may_be_given():
    assert admin_key(b"a", "mine") == "mine"
    assert is_admin("mine", "mine")
    for other in ("", "min", "mine ", "MINE", "\udcff"):
        assert not is_admin(other, "mine")


@pytest.mark.parametrize(
    ("given", "host", "complaint"),
    [
        ("", "0.0.0.0", ""),
        ("admin", "127.0.0.1", ""),
        ("admin", "localhost", ""),
        ("admin", "::1", ""),
        ("areal-admin-key", "0.0.0.0", "a well-known key, on 0.0.0.0"),
        ("Admin", "gateway.lab", "a well-known key, on gateway.lab"),
        ("0123456789", "10.0.0.1", "a key of 10 characters"),
        ("0123456789abcdef", "10.0.0.1", ""),
    ],
)
def test_a_key_that_others_guess_is_for_this_machine_only(given, host, complaint):
    found = weakness(given, host)
    assert found.startswith(complaint)
    assert bool(found) == bool(complaint)
