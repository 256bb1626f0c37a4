"""Locks: every package has the hashes of its files, and another file of the same name and version is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCKS = sorted((ROOT / "scripts" / "locks").glob("*.txt"))
INSTALL = """
set -euo pipefail
fail() { printf '%s\\n' "$1" >&2; exit 1; }
venv_python=$1/bin/python log=$1/log
: >"$log"
source scripts/install.sh
install_locked "$2" cpu || { cat "$log"; exit 1; }
"""


def packages(text):
    """Each package of a lock with the lines that belong to it."""
    return re.findall(r"^([A-Za-z0-9][^ ]*==[^ ]*)((?:[^\n]*\\\n)*[^\n]*)$", text, re.MULTILINE)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_package_of_a_lock_has_hashes(lock):
    found = packages(lock.read_text())
    assert len(found) > 5
    assert [name for name, rest in found if "--hash=sha256:" not in rest] == []


def test_everything_that_is_installed_has_a_lock():
    wanted = {
        path.stem for folder in ("agents/environments", "scripts/engines") for path in (ROOT / folder).glob("*.txt")
    }
    assert {path.stem for path in LOCKS} == wanted | {"build", "dev", "docs", "image", "sbom"}


def test_no_script_lets_a_further_index_win():
    scripts = [*(ROOT / "scripts").glob("*.sh"), ROOT / "Dockerfile", ROOT / "justfile"]
    text = "\n".join(path.read_text() for path in scripts)
    assert "install.sh" in text
    assert not re.search(r"--index-strategy|--extra-index-url", text)
    assert re.findall(r"--index-url \S+ (\S+)", text) == ['"$torch"', '"$(grep'], "torch's own index is for torch only"


@pytest.mark.parametrize(
    ("kind", "left_out"), [("cpu", {"torch", "triton", "nvidia-nccl-cu13", "cuda-toolkit"}), ("cuda", set())]
)
def test_a_machine_without_a_gpu_gets_all_but_torch_and_the_libraries_of_cuda(kind, left_out):
    lock = ROOT / "scripts" / "locks" / "dev.txt"
    printed = subprocess.run(
        ["bash", "scripts/locked.sh", kind, str(lock)], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    every, here = ({name.partition("==")[0] for name, _ in packages(text)} for text in (lock.read_text(), printed))
    assert left_out <= every
    missing = every - here
    assert all(re.fullmatch(r"torch|triton|nvidia-.*|cuda-.*", name) for name in missing)
    assert left_out <= missing
    assert bool(missing) == (kind == "cpu")


@pytest.mark.parametrize("name", ["torch", "uv"])
def test_one_package_of_a_lock_can_be_installed_first(name):
    command = ["bash", "scripts/locked.sh", name, "scripts/locks/dev.txt"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [found.partition("==")[0] for found, _ in packages(printed)] == [name]
    assert "--hash=sha256:" in printed


def test_an_environment_with_uv_is_filled_by_it(tmp_path):
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (programs / "uv").write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/called\n')
    (programs / "uv").chmod(0o755)
    (tmp_path / "lock.txt").write_text("areal-sample==1.0\n")
    command = ["bash", "-c", INSTALL, "install", str(tmp_path / "venv"), str(tmp_path / "lock.txt")]
    subprocess.run(command, cwd=ROOT, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}, check=True)
    called = (tmp_path / "called").read_text()
    assert called.startswith(f"pip install --python {programs / 'python'} ")
    assert "--require-hashes" in called


def wheel(folder, content):
    """A wheel of one module."""
    path = folder / "areal_sample-1.0-py3-none-any.whl"
    about = "areal_sample-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("areal_sample.py", content)
        file.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: areal-sample\nVersion: 1.0\n")
        file.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{about}/RECORD", f"areal_sample.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n")
    return path


@pytest.mark.slow
def test_another_file_of_the_same_name_and_version_is_refused(tmp_path):
    """With pip, which is everywhere; the folder of wheels is the only source."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    genuine = sha256(wheel(tmp_path, "GENUINE = True").read_bytes()).hexdigest()
    lock = tmp_path / "lock.txt"
    lock.write_text(f"areal-sample==1.0 \\\n    --hash=sha256:{genuine}\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment = kept | {
        "PATH": "/usr/bin:/bin",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
    }

    def install():
        command = ["bash", "-c", INSTALL, "install", str(tmp_path / "venv"), str(lock)]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    wheel(tmp_path, "GENUINE = False")
    refused = install()
    assert refused.returncode == 1
    assert "DO NOT MATCH THE HASHES" in refused.stdout
    wheel(tmp_path, "GENUINE = True")
    lock.write_text(
        "areal-sample==1.0 \\\n   "
        f" --hash=sha256:{sha256((tmp_path / 'areal_sample-1.0-py3-none-any.whl').read_bytes()).hexdigest()}\n"
    )
    accepted = install()
    assert accepted.returncode == 0, accepted.stdout
