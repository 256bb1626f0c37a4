"""Rows of JSON, CSV and TSV files, and of compressed ones.

They are read as a whole, since such files cannot be read from the middle.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.tasks.rows import ListedRows

ROW_KEYS = ("train", "data", "rows", "examples", "instances")
"""Keys under which a JSON file may have its list of rows, in order of preference."""
LONGEST_CELL = 16 * 2**20
"""Maximum size of a cell in characters."""
SEPARATORS = {".csv": ",", ".tsv": "\t"}


def load_table(path: Path) -> ListedRows:
    """Returns the rows of a `.json`, `.jsonl`, `.csv` or `.tsv` file, compressed if its name ends with `.gz`.

    Raises:
        SetupError: it cannot be read; the message has the place and the remedy.
    """
    kind = path.suffixes[-2] if path.suffix == ".gz" else path.suffix
    text = _text(path)
    rows = _read_separated(text, path, SEPARATORS[kind]) if kind in SEPARATORS else _json(text, path)
    if not rows:
        raise SetupError(f"{path}: the file has no rows")
    return ListedRows(rows, str(path))


def _text(path: Path) -> str:
    try:
        body = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SetupError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SetupError(f"{path}: cannot be decompressed ({error}); compress it again") from error
    except OSError as error:
        raise SetupError(f"{path}: cannot be read: {error.strerror}; fix the path") from error


def _json(text: str, path: Path) -> Sequence[Mapping[str, Any]]:
    """The rows of a list, of an object with a list of rows, or of one object per line."""
    try:
        decoded = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return _lines(text, path)
    if isinstance(decoded, dict):
        lists = {
            key: value
            for key, value in decoded.items()
            if isinstance(value, list) and all(isinstance(row, dict) for row in value)
        }
        key = next((key for key in (*ROW_KEYS, *lists) if key in lists), "")
        if not key or (key not in ROW_KEYS and len(lists) > 1):
            return [decoded]
        decoded = lists[key]
    if not isinstance(decoded, list) or not all(isinstance(row, dict) for row in decoded):
        raise SetupError(f"{path}: expected a list of objects, or an object with one under `{'`, `'.join(ROW_KEYS)}`")
    return decoded


def _lines(text: str, path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line and not line.isspace():
            try:
                rows.append(msgspec.json.decode(line, type=dict[str, Any]))
            except msgspec.DecodeError as error:
                raise SetupError(f"{path}:{number}: not JSON: {error}") from error
    return rows


def _read_separated(text: str, path: Path, separator: str) -> list[dict[str, Any]]:
    csv.field_size_limit(LONGEST_CELL)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows: list[dict[str, Any]] = []
    try:
        for row in reader:
            if None in row or None in row.values():
                names = len(reader.fieldnames or ())
                raise SetupError(
                    f"{path}:{reader.line_num}: the line has another number of cells than the header, which has {names}"
                )
            rows.append(dict(row))
    except csv.Error as error:
        raise SetupError(f"{path}:{reader.line_num}: {error}; write it again") from error
    return rows
