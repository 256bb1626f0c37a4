"""A joined worker reads the files that its role needs, and adds its own new ones; it replaces and removes none that the
log needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.object_matrix import ANOTHER, BEGIN, BODY, END, ROLES, RunFiles, table, undeclared
from support.permission_matrix import TABLE_IN

from areal_actors.core.objects import BLOBS
from areal_actors.messages import KINDS, EpisodeAbandoned, EpisodeScored
from areal_bus.claims import blob_name, is_name_of, subject_of


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path)


@pytest.mark.parametrize("role", ROLES)
def test_a_worker_reaches_the_bodies_of_the_messages_that_its_actor_declares_and_no_other(
    files: RunFiles, role: str
) -> None:
    assert undeclared(role, files) == []


def test_no_body_is_replaced(files: RunFiles) -> None:
    name = files.store(EpisodeScored)
    assert files.ask("reward_worker", "PUT", BLOBS + name, ANOTHER) == 400
    assert files.ask("reward_worker", "PUT", BLOBS + name, BODY) == 200, "publishing it again leaves it as it is"
    older = f"{EpisodeAbandoned.subject}-{'a' * 32}.msgpack"
    (files.folder / "blobs" / older).write_bytes(BODY)
    assert files.ask("reward_worker", "PUT", BLOBS + older, ANOTHER) == 400
    assert files.content(name) == files.content(older) == BODY
    assert files.ask("session_manager", "GET", BLOBS + older) == 200, "a log of an earlier version is read"


@pytest.mark.parametrize(
    "name",
    ["secret", "..%2Fsecret", "..%2F..%2Fetc%2Fpasswd", "%2E%2E", ".x-1.msgpack", "episode.scored", "a-b.msgpack"],
)
def test_names_that_are_none_of_a_body_are_not_there(files: RunFiles, name: str) -> None:
    (files.folder / "secret").write_text("secret")
    before = sorted(path.name for path in files.folder.rglob("*"))
    for role in ROLES:
        for method, body in (("GET", b""), ("PUT", BODY), ("DELETE", b"")):
            assert files.ask(role, method, BLOBS + name, body) == 404
    assert sorted(path.name for path in files.folder.rglob("*")) == before


def test_the_name_of_a_body_has_subject_id_and_content() -> None:
    for kind in KINDS:
        name = blob_name(kind.subject, "id", BODY)
        assert subject_of(name) == kind.subject
        assert is_name_of(name, BODY)
        assert not is_name_of(name, ANOTHER)
        assert len({name, blob_name(kind.subject, "id", ANOTHER), blob_name(kind.subject, "another id", BODY)}) == 3
        assert len(name.encode()) < 255


@pytest.mark.slow
def test_the_table_of_the_docs_is_what_workers_can_do(files: RunFiles) -> None:
    written = TABLE_IN.read_text().partition(BEGIN)[2].partition(END)[0]
    assert written == table(files), "run PYTHONPATH=.:tests python tests/support/permission_matrix.py"
