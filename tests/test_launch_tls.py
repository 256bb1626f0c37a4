"""`areal-actors run --on` of runs that encrypt: the certificate that it makes or that a recipe names, and where its key
is, and is not."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from support.authority import Authority
from support.live_run import RECIPE
from test_launch import HOSTS, LAUNCHERS

from areal_actors.cli import main
from areal_actors.core.bus_settings import BusSettings
from areal_actors.folder.certificate_files import bus_certificate, named_certificate
from areal_bus.certificates import make_certificate, read_certificate
from areal_bus.tls import Certificate

TLS = ("bus.tls=true", *HOSTS)
TARGETS = ("slurm", "kubernetes", "ray", "local")
FILES = {"slurm": "gsm8k-grpo.sbatch", "kubernetes": "gsm8k-grpo.yaml", "ray": "gsm8k-grpo-ray.py"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, in which `areal-actors run --on` is called."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines_of(key: Path) -> list[str]:
    """The lines of a key that are secret."""
    return [line for line in key.read_text().splitlines() if not line.startswith("-")]


def named(pair: Certificate, table: str = "bus") -> tuple[str, ...]:
    return (f"{table}.certificate={pair.certificate}", f"{table}.certificate_key={pair.key}")


def launched(capsys: pytest.CaptureFixture[str], target: str, *words: str) -> str:
    """Writes the file of a target; returns what is printed."""
    assert main(["run", "gsm8k_grpo", "--on", target, *TLS, *words]) == 0
    return capsys.readouterr().out


def objects(file: Path) -> dict[tuple[str, str], dict]:
    return {
        (one["kind"], one["metadata"]["name"].removeprefix("areal-gsm8k-grpo-")): one
        for one in yaml.safe_load_all(file.read_text())
    }


@pytest.mark.parametrize("target", FILES)
def test_a_certificate_is_made_once_and_the_hosts_know_its_fingerprint(here, capsys, target):
    printed = launched(capsys, target)
    made = read_certificate(*(here / "launch" / ".gsm8k-grpo-tls" / name for name in ("certificate.pem", "key.pem")))
    assert {path.stat().st_mode & 0o077 for path in (made.key.parent, made.key, here / "launch" / FILES[target])} == {0}
    text = (here / "launch" / FILES[target]).read_text()
    assert f"/gsm8k-grpo#{made.fingerprint}" in text
    assert "nats://" not in text
    assert not any(line in printed for line in lines_of(made.key))
    launched(capsys, target)
    assert f"#{made.fingerprint}" in (here / "launch" / FILES[target]).read_text()
    if target != "kubernetes":
        assert f"bus.certificate_key={made.key}" in text
        assert not any(line in text for line in lines_of(made.key))


@pytest.mark.parametrize("target", TARGETS)
def test_a_dry_run_makes_no_certificate_and_shows_no_key(here, capsys, target):
    assert "/gsm8k-grpo#FINGERPRINT" in launched(capsys, target, "--dry-run")
    assert not (here / "launch").exists()
    pair = make_certificate(here / "own")
    printed = launched(capsys, target, "--dry-run", *named(pair))
    assert f"/gsm8k-grpo#{pair.fingerprint}" in printed
    assert not any(line in printed for line in lines_of(pair.key))


def test_keys_are_in_a_secret_that_only_the_pod_of_the_run_mounts(here, capsys):
    bus, gateway = make_certificate(here / "bus"), Authority().issue(here, "areal-gsm8k-grpo-run")
    # other files that settings name, below this folder, go to a ConfigMap
    own = ("bus.certificate=bus/certificate.pem", "bus.certificate_key=bus/key.pem")
    agents = ("gateway.certificate=host.pem", "gateway.certificate_key=host.key")
    launched(capsys, "kubernetes", *own, *agents)
    found = objects(here / "launch" / FILES["kubernetes"])
    assert not (here / "launch" / ".gsm8k-grpo-tls").exists()
    secret = found["Secret", "tls"]["stringData"]
    assert secret == {
        "bus.certificate": bus.certificate.read_text(),
        "bus.certificate_key": bus.key.read_text(),
        "gateway.certificate": gateway.certificate.read_text(),
        "gateway.certificate_key": gateway.key.read_text(),
    }
    others = json.dumps([one for (kind, _), one in found.items() if kind != "Secret"])
    assert not any(line in others for key in (bus.key, gateway.key) for line in lines_of(key))
    pods = {name: one["spec"]["template"]["spec"] for (kind, name), one in found.items() if kind == "Job"}
    assert [name for name, pod in pods.items() if "areal-gsm8k-grpo-tls" in json.dumps(pod)] == ["run"]
    assert {"name": "tls", "secret": {"secretName": "areal-gsm8k-grpo-tls", "defaultMode": 0o440}} in pods["run"][
        "volumes"
    ]
    assert {"name": "tls", "mountPath": "/tls", "readOnly": True} in pods["run"]["containers"][0]["volumeMounts"]
    assert pods["run"]["containers"][0]["command"][-4:] == [f"{name}=/tls/{name}" for name in secret]
    assert (
        pods["rollout-worker"]["containers"][0]["command"][2]
        == f"tls://areal-gsm8k-grpo-run:4222/gsm8k-grpo#{bus.fingerprint}"
    )


@pytest.mark.skipif(
    not LAUNCHERS.exists(), reason="`just environments launchers` makes the interpreter that this needs"
)
def test_manifests_with_a_certificate_have_the_form_of_kubernetes(here, capsys):
    launched(capsys, "kubernetes")
    program = (
        "import json, sys, kubernetes_validate\n"
        "for one in json.load(sys.stdin):\n"
        "    for version in ('1.31', '1.37'):\n"
        "        kubernetes_validate.validate(one, version, strict=True)\n"
    )
    given = json.dumps([*objects(here / "launch" / FILES["kubernetes"]).values()])
    checked = subprocess.run([LAUNCHERS, "-c", program], input=given, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_ray_program_joins_by_the_fingerprint(here, capsys):
    launched(capsys, "ray")
    (address,) = [
        node.value
        for node in ast.walk(ast.parse((here / "launch" / FILES["ray"]).read_text()))
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "address"
    ]
    written = eval(compile(ast.Expression(address), "address", "eval"), {"host": "h", "port": 1})
    assert re.fullmatch(r"tls://h:1/gsm8k-grpo#[0-9a-f]{64}", written)


def unusable(folder: Path, what: str) -> Certificate:
    """A pair with one fault."""
    pair = make_certificate(folder / "own")
    if what == "missing":
        pair.key.unlink()
    elif what == "folder":
        return Certificate(certificate=folder, key=pair.key, fingerprint="")
    elif what == "damaged":
        pair.certificate.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    elif what == "another":
        pair.key.write_bytes(make_certificate(folder / "another").key.read_bytes())
    elif what == "password":
        key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
        form, locked = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"word")
        pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, locked))
    else:
        return Authority().issue(folder, "host", days=-1)
    return pair


@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        (
            "missing",
            (
                r"bus\.certificate_key: .*key\.pem cannot be read \(No such file or directory\); name a PEM file that"
                r" this host has"
            ),
        ),
        ("folder", r"bus\.certificate: .* cannot be read \(Is a directory\)"),
        ("damaged", r"bus\.certificate: .*certificate\.pem is no PEM file of a certificate; name another"),
        (
            "another",
            r"bus\.certificate_key: .*key\.pem is not the key of .*certificate\.pem; name the key that belongs to it",
        ),
        ("password", r"bus\.certificate_key: .*key\.pem has a password; name a file without one"),
        ("expired", r"bus\.certificate: .*host\.pem is expired \(valid from .* UTC\); renew it"),
    ],
)
def test_files_that_cannot_be_used_are_refused_before_anything_starts(here, capsys, what, complaint):
    words = (*TLS, "bus.host=127.0.0.1", *named(unusable(here, what)), "profile=embedded", "task.dataset=arithmetic")
    for command in (
        ("check", str(RECIPE)),
        ("run", str(RECIPE)),
        *(("launch", str(RECIPE), "--on", target) for target in TARGETS),
    ):
        assert main([*command, *words]) == 1
        assert re.search(complaint, capsys.readouterr().err), command
    assert not (here / "launch").exists()
    assert not (here / "runs" / "gsm8k-grpo").exists()


def test_a_check_of_a_recipe_with_a_certificate_shows_no_key(here, capsys):
    pair = make_certificate(here / "own")
    for form in ((), ("--json",)):
        assert main(["check", "--static", str(RECIPE), *form, *TLS, *named(pair)]) == 0
        printed = capsys.readouterr().out
        assert str(pair.key) in printed
        assert not any(line in printed for line in lines_of(pair.key))


def test_a_run_keeps_a_copy_for_its_user_only_and_makes_one_if_none_is_named(here):
    pair = make_certificate(here / "own")
    copied = bus_certificate(
        BusSettings(tls=True, certificate=str(pair.certificate), certificate_key=str(pair.key)), here / "run"
    )
    assert copied.fingerprint == pair.fingerprint
    assert (copied.key.read_bytes(), copied.key.stat().st_mode & 0o777) == (pair.key.read_bytes(), 0o600)
    assert named_certificate(BusSettings(tls=True)) is None
    assert bus_certificate(BusSettings(tls=True), here / "made").fingerprint != pair.fingerprint


def test_an_output_that_cannot_be_written_is_named(here, capsys):
    (here / "launch").write_text("")
    assert main(["run", "gsm8k_grpo", "--on", "local", *TLS]) == 1
    assert "--output: the certificate of the run cannot be written" in capsys.readouterr().err


def test_gateways_that_a_launch_starts_elsewhere_have_no_certificate(here, capsys):
    words = ("hosts.gateway.count=1", "gateway.certificate=a.pem", "gateway.certificate_key=a.key")
    assert main(["run", "gsm8k_grpo", "--on", "slurm", *words]) == 2
    assert (
        "`hosts.gateway.count`: found 1, but gateway.certificate is not for the addresses of other hosts"
        in capsys.readouterr().err
    )
