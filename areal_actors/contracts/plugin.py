"""Options of pytest for the contracts; loaded through the entry point `pytest11` of this distribution."""

from __future__ import annotations

import pytest

GROUP = "areal-actors: contracts of parts"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--areal-part` and `--areal-model`."""
    group = parser.getgroup(GROUP)
    group.addoption(
        "--areal-part",
        action="append",
        default=[],
        metavar="KIND:NAME",
        help=(
            "an installed part, or `KIND:path.py:Name`, to test; may be repeated: `pytest --pyargs"
            " areal_actors.contracts`"
        ),
    )
    group.addoption(
        "--areal-model",
        default="",
        metavar="FOLDER",
        help=(
            "model for the contract of an engine: a Hugging Face folder (default: a small one of random weights, which"
            " needs torch)"
        ),
    )
