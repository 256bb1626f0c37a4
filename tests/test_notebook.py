"""The notebook of the first run: without outputs in the repository, and executed as it is, by a kernel that has the
package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from support.live_run import ROOT

NOTEBOOK = ROOT / "docs" / "notebooks" / "first_run.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
PYTHONS = (str(ROOT / ".environments" / "docs" / "bin" / "python"), os.environ.get("AREAL_NBCLIENT_PYTHON", ""))
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=1500, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


def code():
    return ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]


def test_it_is_short_and_has_no_outputs():
    assert 4 <= len(code()) <= 8
    assert all(
        cell["outputs"] == [] and cell["execution_count"] is None for cell in CELLS if cell["cell_type"] == "code"
    )
    for source in code():
        compile(source, "cell", "exec")


@pytest.mark.long
@pytest.mark.timeout(2000)
def test_every_cell_runs(tmp_path):
    """The kernel is that of an environment with nbclient; the package and its libraries are those of this
    interpreter."""
    found = [
        one
        for one in PYTHONS
        if one and not subprocess.run([one, "-c", "import nbclient, ipykernel"], check=False).returncode
    ]
    if not found:
        pytest.skip(
            "nbclient and ipykernel are not installed: `just environments docs`, or AREAL_NBCLIENT_PYTHON has them"
        )
    libraries = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])
    environment = os.environ | {"PYTHONPATH": libraries}
    environment["AREAL_NATS_SERVER"] = str(
        Path(sys.executable).parent / "nats-server"
    )  # of this environment, not of the kernel's
    environment |= {
        "JUPYTER_DATA_DIR": str(tmp_path / "jupyter"),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    made = tmp_path / "made.ipynb"
    subprocess.run([found[0], "-c", EXECUTE, str(NOTEBOOK), str(made)], cwd=tmp_path, env=environment, check=True)
    outputs = [output for cell in json.loads(made.read_text())["cells"] for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs), "the curve"
    assert (tmp_path / "runs" / "gsm8k-grpo" / "summary.txt").is_file()
