"""Measures fresh installations: `python scripts/install_sizes.py [--extras train,embedded] [--beside]`.

Builds both wheels, and installs them with uv into an environment for the base and for each extra: MB on the disk,
seconds of the installation (with uv's cache as it is), CPU seconds and modules of `areal-actors --help`. `--beside`
installs a module called `bus` and AReaL's distribution (without its dependencies) beside the base.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXTRAS = ("train", "embedded", "tinker", "inspect", "hosts", "all")
TORCH = next(
    line.split()[0] for line in (ROOT / "scripts/locks/dev.txt").read_text().splitlines() if line.startswith("torch==")
)
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
WITHOUT_TORCH = ("", "inspect", "hosts")
MODULES = """
import sys
from areal_actors.cli import main
try:
    main(["--help"])
except SystemExit:
    sys.stderr.write(str(len(sys.modules)))
"""


def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command; its output is shown if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done  # type: ignore[no-any-return]


def build_wheels(folder: Path) -> None:
    """Build the wheels of the bus and of the package."""
    for place in (ROOT / "bus", ROOT):
        run("uv", "build", "--wheel", "--quiet", "--out-dir", str(folder), str(place))


def install_cpu_torch(python: str) -> None:
    """Install torch's build for the CPU, from its index, or from a folder of wheels in pip's settings."""
    links = [f"--find-links={place}" for place in os.environ.get("PIP_FIND_LINKS", "").split()]
    common = ["uv", "pip", "install", "--quiet", "--python", python, "--no-deps"]
    for source in (["--index-url", CPU_INDEX], ["--no-index", *links]):
        if subprocess.run([*common, *source, TORCH], capture_output=True, check=False).returncode == 0:
            return
    sys.exit(f"{TORCH} for the CPU is neither at {CPU_INDEX} nor in a folder of PIP_FIND_LINKS")


def megabytes(folder: Path) -> float:
    """Returns the size of all files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*")) / 1e6


def measure(extra: str, wheels: Path, folder: Path) -> str:
    """Returns a row of the table."""
    run("uv", "venv", "--quiet", "--python", sys.executable, str(folder))
    python = str(folder / "bin/python")
    began = time.monotonic()
    if extra not in WITHOUT_TORCH:
        install_cpu_torch(python)
    named = f"areal-actors[{extra}]" if extra else "areal-actors"
    run("uv", "pip", "install", "--quiet", "--python", python, "--find-links", str(wheels), named)
    seconds = time.monotonic() - began
    size = megabytes(folder)
    run(python, "-c", MODULES)  # compiles
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    modules = run(python, "-c", MODULES).stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    packages = len(run("uv", "pip", "list", "--quiet", "--python", python, "--format", "freeze").stdout.splitlines())
    return f"| `{named}` | {packages} | {size:,.0f} | {seconds:.0f} | {modules} | {cpu:.2f} |"


def beside(wheels: Path, folder: Path) -> str:
    """Install others of the names that were ours beside the base; returns what they are then."""
    run("uv", "venv", "--quiet", "--python", sys.executable, str(folder))
    python = str(folder / "bin/python")
    other = folder / "other"
    (other / "bus").mkdir(parents=True)
    (other / "bus/areal_bus/__init__.py").write_text("NAME = 'another bus'\n")
    (other / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n[project]\nname ='
        ' "another-bus"\nversion = "1"\n[project.scripts]\nareal ='
        ' "bus:main"\n[tool.hatch.build.targets.wheel]\npackages = ["bus"]\n'
    )
    run("uv", "pip", "install", "--quiet", "--python", python, "--find-links", str(wheels), "areal-actors", str(other))
    run("uv", "pip", "install", "--quiet", "--python", python, "--no-deps", "areal")
    program = "import importlib.util, bus, areal_bus, areal_actors; assert importlib.util.find_spec('areal'); "
    program += "print(bus.NAME, areal_bus.__version__, areal_actors.__version__)"
    shown = run(python, "-c", program)
    version = run(str(folder / "bin/areal-actors"), "--version").stdout.strip()
    return f"beside another `bus` with a command `areal`, and AReaL: {shown.stdout.strip()}; {version}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", default=",".join(EXTRAS), help="names with commas; empty for the base only")
    parser.add_argument("--beside", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="areal-install-") as place:
        wheels = Path(place, "wheels")
        build_wheels(wheels)
        print(
            "| installed | packages | MB | seconds | modules of `--help` | CPU s of `--help`"
            " |\n|---|---|---|---|---|---|",
            flush=True,
        )
        for extra in ["", *filter(None, options.extras.split(","))]:
            print(measure(extra, wheels, Path(place, f"venv-{extra or 'base'}")), flush=True)
        if options.beside:
            print(beside(wheels, Path(place, "venv-beside")), flush=True)


if __name__ == "__main__":
    main()
