"""A small image with Python for tests of containers: Debian's, made here once, since tests reach no registry."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

IMAGE = "localhost/areal-actors-test:1"
PACKAGES = "python3-minimal,libpython3-stdlib"


@cache
def image() -> str:
    """Its name; the test is skipped where it can be neither found nor made."""
    for program in ("podman", "debootstrap"):
        if shutil.which(program) is None:
            pytest.skip("`apt-get install podman debootstrap`")
    if not subprocess.run(["podman", "image", "exists", IMAGE], check=False).returncode:
        return IMAGE
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "stable", str(root)]
        made = subprocess.run(command, capture_output=True, check=False)
        if made.returncode:
            pytest.skip(f"debootstrap makes no image here: {made.stdout.decode(errors='replace')[-300:]}")
        shutil.rmtree(root / "var" / "cache" / "apt")
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as packed:
            subprocess.run(["podman", "import", "-", IMAGE], stdin=packed.stdout, check=True, capture_output=True)
    started = subprocess.run(
        ["podman", "run", "--rm", "--ulimit", "nproc=1024:1024", "--ulimit", "nofile=1024:1024", IMAGE, "true"],
        capture_output=True,
        check=False,
    )
    if started.returncode:
        pytest.skip(f"podman starts no container here: {started.stderr.decode(errors='replace')[-300:]}")
    return IMAGE
