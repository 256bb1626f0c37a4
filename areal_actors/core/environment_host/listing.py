"""Writes the tasks of an environment to a file.

The programs of this folder use it in the environment's own interpreter.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

ERROR = "environment error: "
"""Beginning of the line that has what the environment raised."""


def write_tasks(
    request: Mapping[str, Any],
    load: Callable[[str, Mapping[str, Any]], Any],
    rows: Callable[[Any, int], Iterable[Mapping[str, Any]]],
) -> None:
    """Write the tasks of an environment to `request["path"]`, one JSON object a line.

    Whatever it raises ends the program with its text.
    """
    try:
        environment = load(request["environment"], request["args"])
        with Path(request["path"]).open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows(environment, request["limit"]))
    except BaseException as error:  # noqa: BLE001 - the environment is the user's code and may raise anything
        where = f" in Python {platform.python_version()}" if isinstance(error, ModuleNotFoundError) else ""
        sys.exit(f"{ERROR}{type(error).__name__}: {error}{where}")
