"""Prints the version of both distributions, and refuses a state in which a file has another one.

`__version__` of both packages, the newest release of CHANGELOG.md, CITATION.cff, docs/asyncapi.json, and the range of
areal-bus in pyproject.toml are one.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def find_version(path: str, pattern: str) -> str:
    """Returns what the group of a pattern matches in a file; empty if it matches nowhere."""
    match = re.search(pattern, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else ""


def versions() -> dict[str, str]:
    """Returns the version that each file has."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    bus = next(entry for entry in requires if entry.startswith("areal-bus"))
    own = find_version("areal_actors/__init__.py", r'^__version__ = "(.+)"$')
    major, minor, _ = own.split(".")
    expected_bus = f"areal-bus>={major}.{minor},<{major}.{int(minor) + 1}"
    return {
        "areal_actors/__init__.py": own,
        "bus/areal_bus/__init__.py": find_version("bus/areal_bus/__init__.py", r'^__version__ = "(.+)"$'),
        "CHANGELOG.md": find_version("CHANGELOG.md", r"^## (\d+\.\d+\.\d+)"),
        "CITATION.cff": find_version("CITATION.cff", r"^version: (.+)$"),
        "docs/asyncapi.json": json.loads((ROOT / "docs/asyncapi.json").read_text(encoding="utf-8"))["info"]["version"],
        "pyproject.toml": own if bus == expected_bus else f"{bus}, expected {expected_bus}",
    }


def main() -> int:
    """Print the version; returns 1 if files differ."""
    stated = versions()
    if len(set(stated.values())) > 1:
        sys.stderr.write("".join(f"{path}: {version or 'none'}\n" for path, version in stated.items()))
        return 1
    sys.stdout.write(f"{stated['CHANGELOG.md']}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
