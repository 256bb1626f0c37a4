"""The wheels put one import name each into an environment, and commands that no other package installs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {"areal_actors": ROOT, "areal_bus": ROOT / "bus"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    for place in PACKAGES.values():
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(place)]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    return {path.name.partition("-")[0]: zipfile.ZipFile(path) for path in folder.glob("*.whl")}


@pytest.mark.slow
def test_each_wheel_has_one_import_name(wheels):
    assert set(wheels) == set(PACKAGES)
    for name, wheel in wheels.items():
        tops = {entry.partition("/")[0] for entry in wheel.namelist()}
        assert {top for top in tops if not top.endswith(".dist-info")} == {name}


@pytest.mark.slow
def test_the_commands_are_ours_alone(wheels):
    (entry,) = [entry for entry in wheels["areal_actors"].namelist() if entry.endswith("entry_points.txt")]
    declared = ConfigParser()
    declared.read_string(wheels["areal_actors"].read(entry).decode())
    assert dict(declared["console_scripts"]) == dict.fromkeys(("areal-actors", "areala"), "areal_actors.cli:main")
    assert not any(entry.endswith("entry_points.txt") for entry in wheels["areal_bus"].namelist())


@pytest.mark.slow
def test_what_the_bus_shares_with_no_product_stays_with_the_product(wheels):
    names = wheels["areal_bus"].namelist()
    assert not [entry for entry in names if entry.endswith(".bin")]
    code = "\n".join(wheels["areal_bus"].read(entry).decode() for entry in names if entry.endswith(".py"))
    assert "areal_actors" not in code
    assert [entry for entry in wheels["areal_actors"].namelist() if entry.endswith("dictionary_3.bin")]
