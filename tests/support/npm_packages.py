"""Packages from npm for tests of programs in JavaScript."""

from __future__ import annotations

import shutil
import subprocess

INSTALL_SECONDS = 300
OPTIONS = ("--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=60000")


def install(folder, *packages):
    """Install packages, by default those of the folder's `package.json`; returns why it failed, if it did."""
    if shutil.which("npm") is None:
        return "this needs node and npm"
    command = ["npm", "install", "--prefix", str(folder), *OPTIONS, *packages]
    try:
        subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=True)
    except subprocess.CalledProcessError as error:
        problems = [
            line.removeprefix("npm error ") for line in error.stderr.splitlines() if line.startswith("npm error ")
        ]
        return f"npm cannot install {', '.join(packages) or 'the packages'}: {'; '.join(problems[:3])}"
    except subprocess.TimeoutExpired:
        return f"npm did not install {', '.join(packages) or 'the packages'} in {INSTALL_SECONDS} seconds"
    return ""
