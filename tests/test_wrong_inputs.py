"""`areal-actors check` refuses each of a hundred wrong inputs, with the place, what was found, and the remedy; a run
then refuses none."""

import socket

import pytest
from support.wrong_inputs import AGENT, RECIPE, ROWS, WRONG

from areal_actors.cli import main

SURPRISES = ("Traceback", "msgspec", "NoneType", "object has no attribute")


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("AREAL_ENVIRONMENTS", raising=False)
    for name, content in (("agent.py", AGENT), ("recipe.toml", RECIPE), ("tasks.jsonl", "\n".join(ROWS))):
        (tmp_path / name).write_text(content)
    return tmp_path


def test_there_are_a_hundred():
    assert len(WRONG) >= 100


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_input_is_refused(project, capsys, name):
    refusal, arguments, files = WRONG[name]
    for path, content in files.items():
        file = project / path
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["check", *arguments]) != 0
    error = capsys.readouterr().err
    assert not [surprise for surprise in SURPRISES if surprise in error]
    after = 0
    for part in refusal.split(" ... "):
        found = error.find(part, after)
        assert found >= 0, error
        after = found + len(part)
    assert not (project / "runs").exists()


def test_the_input_without_a_fault_passes(project, capsys):
    assert main(["check", "recipe.toml"]) == 0
    assert "with the answer 'I do not know.': reward 0" in capsys.readouterr().out


def test_a_port_in_use_is_refused(project, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["check", "recipe.toml", f"gateway.port={port}"]) != 0
    assert (
        f"gateway.port: cannot listen on 127.0.0.1:{port} (Address already in use); set another port"
        in capsys.readouterr().err
    )


def test_replicas_of_a_single_bus_server_are_refused(project, capsys):
    assert main(["check", "recipe.toml", "bus.replicas=3"]) != 0
    assert "bus.replicas: found 3 for a single server; name a cluster in bus.url, or set 1" in capsys.readouterr().err


@pytest.mark.long
def test_a_bus_server_that_does_not_answer_is_refused(project, capsys):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert main(["check", "recipe.toml", f"bus.url=nats://127.0.0.1:{port}"]) != 0
    assert f"bus.url: no NATS server answers at nats://127.0.0.1:{port} within 5 s" in capsys.readouterr().err
