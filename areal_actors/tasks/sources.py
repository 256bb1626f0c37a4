"""Resolves the name of a dataset in a recipe to the rows of its splits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.core.installed_parts import InstalledPart, installed_parts
from areal_actors.core.loading import load_named
from areal_actors.tasks import huggingface as library
from areal_actors.tasks.jsonl import JsonLines
from areal_actors.tasks.rows import DatasetRows, JoinedRows, ListedRows
from areal_actors.tasks.table_files import load_table

READERS: dict[str, Callable[[Path], DatasetRows]] = {
    ".jsonl": JsonLines,
    ".parquet": library.load_parquet,
    **dict.fromkeys((".json", ".csv", ".tsv", ".jsonl.gz", ".json.gz", ".csv.gz", ".tsv.gz"), load_table),
}
"""Readers by the end of a file's name, as `ending` returns it."""
SAVED = ("dataset_info.json", "dataset_dict.json")
"""Files that identify a folder saved by the `datasets` library (either one)."""
HUB_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?::(?P<config>[\w.-]+))?")
GSM8K = "openai/gsm8k"
GSM8K_REMEDY = (
    ". Without it: task.dataset=PATH names a .jsonl file with `question` and `answer`, and profile=embedded trains on"
    " generated problems"
)
IN_CODE = re.compile(r".+\.py:\w+")
KNOWN = (
    "`owner/name` on the Hugging Face hub, the path of a .jsonl, .json, .csv, .tsv or .parquet file, of a folder of"
    " them, or of a saved dataset, or `path.py:function` that returns the rows"
)


class Source(msgspec.Struct, frozen=True):
    """A dataset: training rows, and the test split if it has one."""

    name: str
    """Short name, for task ids."""
    train: DatasetRows
    test: DatasetRows | None = None


def ending(path: Path) -> str:
    """Returns the suffix of a file's name, with the one before it if it is compressed."""
    return "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix


def readers() -> Mapping[str, Callable[[Path], DatasetRows]]:
    """Returns the readers by the end of a file's name.

    They are ours, and those of other distributions, which return a list of rows.
    """
    brought = {end: partial(_read_with, part) for end, part in installed_parts("reader").items()}
    return {**brought, **READERS}


def _read_with(part: InstalledPart, path: Path) -> DatasetRows:
    rows = part.load()(path)
    if not isinstance(rows, Sequence) or not all(isinstance(row, Mapping) for row in rows):
        raise SetupError(f"{path}: the reader {part} returned {type(rows).__name__}; expected a list of rows")
    return ListedRows(rows, path.name)


def is_in_code(spec: str) -> bool:
    """True if the spec names a function that returns the rows."""
    return IN_CODE.fullmatch(spec) is not None


def is_on_disk(spec: str) -> bool:
    """True if the spec is a path, existing or not."""
    if is_in_code(spec):
        return False
    return (
        "*" in spec
        or ending(Path(spec)) in readers()
        or Path(spec).expanduser().exists()
        or spec.startswith(("/", "./", "../", "~"))
    )


def has_files(spec: str) -> bool:
    """True if the path has files of a known kind."""
    known = readers()
    return is_saved(Path(spec).expanduser()) or any(ending(file) in known and file.is_file() for file in files(spec))


def is_on_hub(spec: str) -> bool:
    """True if the spec is a dataset of the hub."""
    return not is_in_code(spec) and not is_on_disk(spec) and HUB_NAME.fullmatch(spec) is not None


def needs_library(spec: str) -> bool:
    """True if the dataset is read by the `datasets` library."""
    path = Path(spec).expanduser()
    return is_on_hub(spec) or is_saved(path) or any(file.suffix == ".parquet" for file in files(spec))


def is_saved(path: Path) -> bool:
    """True if this is a folder saved by the `datasets` library."""
    return any((path / name).is_file() for name in SAVED)


def files(spec: str) -> list[Path]:
    """Returns the files of a path, a folder or a glob pattern, sorted by name."""
    path, known = Path(spec).expanduser(), readers()
    if "*" in spec:
        root = Path(path.anchor or ".")
        return sorted(file for file in root.glob(str(path.relative_to(root))) if ending(file) in known)
    if path.is_dir():
        return sorted(file for file in path.iterdir() if ending(file) in known)
    return [path]


def open_source(spec: str) -> Source:
    """Open a dataset without checking its rows.

    Raises:
        RecipeError: the name has none of the known forms.
        SetupError: it cannot be read.
    """
    if is_in_code(spec):
        return _from_code(spec)
    if is_on_disk(spec):
        return _from_disk(spec)
    if (named := HUB_NAME.fullmatch(spec)) is None:
        raise RecipeError(f"there is no dataset `{spec}`; write `arithmetic`, {KNOWN}")
    name, config = named["name"], named["config"] or ""
    if name == GSM8K:
        train, test = (library.from_hub(name, config or "main", split, GSM8K_REMEDY) for split in ("train", "test"))
        return Source(name="gsm8k", train=train, test=test)
    splits = library.splits_on_hub(name, config)
    first = next((split for split in ("train", *splits) if split in splits), "train")
    other = next((split for split in ("test", "validation") if split in splits and split != first), None)
    return Source(
        name=name.rpartition("/")[2],
        train=library.from_hub(name, config, first),
        test=library.from_hub(name, config, other) if other else None,
    )


def _from_code(spec: str) -> Source:
    value = load_named(spec, Path.cwd())
    try:
        dataset = value() if callable(value) else value
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # such as pytest's Skipped
        raise SetupError(f"{spec}: raised {type(error).__name__}: {error}") from error
    splits = dataset if isinstance(dataset, Mapping) else {"train": dataset}
    if not splits or not all(isinstance(rows, Sequence) for rows in splits.values()):
        kinds = ", ".join(type(rows).__name__ for rows in splits.values()) or "no split"
        raise SetupError(
            f"{spec}: expected a list of rows, or a dictionary of `train` and `test` with a list each; got {kinds}"
        )
    if "train" not in splits or splits.keys() - {"train", "test"}:
        raise SetupError(
            f"{spec}: expected the splits `train` and, if there is one, `test`; got {', '.join(map(repr, splits))}"
        )
    rows = {split: ListedRows(listed, spec) for split, listed in splits.items()}
    return Source(name=spec.rpartition(":")[2], train=rows["train"], test=rows.get("test"))


def _from_disk(spec: str) -> Source:
    path = Path(spec).expanduser()
    if is_saved(path):
        splits = library.load_saved(path)
        train = splits["train"] if "train" in splits else next(iter(splits.values()))
        return Source(name=path.name, train=train, test=splits.get("test") or splits.get("validation"))
    paths = files(spec)
    if not paths:
        raise SetupError(f"{spec}: no {' or '.join(readers())} file found (looked in {Path.cwd()}); fix the path")
    if len(endings := {ending(file) for file in paths}) > 1:
        raise SetupError(
            f"{spec}: found files of two kinds ({' and '.join(sorted(endings))}); name one kind:"
            f" {spec.rstrip('/')}/*.jsonl"
        )
    name = path.parent.name if "*" in spec else path.stem if len(paths) == 1 and paths[0] == path else path.name
    return Source(name=name, train=_join_rows([_read(file) for file in paths]))


def _read(path: Path) -> DatasetRows:
    read = readers().get(ending(path))
    if read is None:
        raise RecipeError(f"there is no dataset `{path}`; write `arithmetic`, {KNOWN}")
    if not path.is_file():
        raise SetupError(
            f"{path}: cannot be read: No such file or directory; name an existing {ending(path)} file (looked in"
            f" {Path.cwd()})"
        )
    return read(path)


def _join_rows(parts: Sequence[DatasetRows]) -> DatasetRows:
    return parts[0] if len(parts) == 1 else JoinedRows(parts)
