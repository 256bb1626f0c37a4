"""`areal-actors export RUN REPO --hub`.

It pushes a checkpoint with card, recipe and curve as a model of the Hugging Face hub, or episodes as a dataset.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from huggingface_hub import CommitOperationAdd, HfApi

from areal_actors.core.errors import SetupError
from areal_actors.display.run_state import RunState
from areal_actors.reader.model_card import dataset_card, model_card
from areal_actors.reader.run import open_run
from areal_actors.reader.run_files import find_run_files
from areal_actors.recipe.plan import to_toml
from areal_actors.recipe.recipe import recorded_recipe
from areal_actors.weights.manifest import verify_model
from areal_actors.weights.model_hub import WANTED

CURVES = ("reward.png", "loss.png")
NOT_OF_THE_MODEL = ("manifest.json", "cursor")
TABLES = ("episodes", "interactions")
Kind = Literal["model", "dataset"]


def push(
    run: str,
    repo: str,
    *,
    folder: Path,
    checkpoint: str = "",
    episodes: bool = False,
    private: bool = False,
    dry_run: bool = False,
) -> int:
    """Upload a run in one commit, and print its address; returns the exit status.

    Args:
        run: name or folder of the run; empty for the latest.
        repo: `owner/name`; it is made if it is missing.
        folder: where runs are written.
        checkpoint: `step-N`; empty for the best or newest.
        episodes: upload tables of episodes and calls as a dataset instead.
        private: make a new repository private.
        dry_run: print the files and their sizes, and send nothing.

    Raises:
        SetupError: there is no such run or checkpoint, a library is missing, or the hub refuses or cannot be reached.
        CheckpointError: the checkpoint is damaged.
    """
    with tempfile.TemporaryDirectory() as scratch:
        files = _episodes(run, repo, folder, Path(scratch)) if episodes else _model(run, repo, folder, checkpoint)
        kind: Kind = "dataset" if episodes else "model"
        if dry_run:
            sys.stdout.write("\n".join(_describe_upload(repo, files, kind, private=private)) + "\n")
            return 0
        url = _upload(repo, files, kind, private=private)
    sys.stdout.write(f"{len(files)} files of the run are at {url}\n")
    return 0


def _describe_upload(repo: str, files: dict[str, Path | bytes], kind: Kind, *, private: bool) -> Iterator[str]:
    yield f"would upload to the {'private ' * private}{kind} {repo}, if it is new; nothing was sent:"
    for name, content in files.items():
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        yield f"  {size:>14,} bytes  {name}"


def _model(run: str, repo: str, folder: Path, checkpoint: str) -> dict[str, Path | bytes]:
    """Returns the files of a model's repository."""
    run_files = find_run_files(run, folder)
    if run_files.folder is None:
        raise SetupError(
            f"{run} is an exported log, which has no checkpoints; name the run, or push its episodes: --episodes"
        )
    place = _checkpoint(run_files.folder.path, run_files.state, checkpoint)
    verify_model(place)
    recipe = to_toml(recorded_recipe(run_files.state.started.recipe if run_files.state.started else {}))
    curve = next((name for name in CURVES if (run_files.folder.path / name).is_file()), "")
    step = int(place.resolve().name.removeprefix("step-"))
    files: dict[str, Path | bytes] = {path.name: path for pattern in WANTED for path in sorted(place.glob(pattern))}
    for name in NOT_OF_THE_MODEL:
        files.pop(name, None)
    files["README.md"] = model_card(repo, run_files.state, step=step, recipe=recipe, curve=curve).encode()
    files["recipe.toml"] = f"{recipe}\n".encode()
    return files | ({curve: run_files.folder.path / curve} if curve else {})


def _checkpoint(run: Path, state: RunState, name: str) -> Path:
    kept = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    best = state.best_checkpoint or state.checkpoint
    chosen = run / "checkpoints" / name if name else run / best.folder if best else None
    if chosen is None or not chosen.is_dir():
        hint = f"it has {', '.join(kept)}" if kept else "it has none"
        raise SetupError(f"run '{run.name}' has no checkpoint {name or 'yet'}; {hint}")
    return chosen


def _episodes(run: str, repo: str, folder: Path, scratch: Path) -> dict[str, Path | bytes]:
    """Returns the files of a dataset's repository."""
    opened = open_run(run, folder=folder)
    files: dict[str, Path | bytes] = {
        f"{name}.parquet": getattr(opened, name).parquet(scratch / f"{name}.parquet") for name in TABLES
    }
    files["README.md"] = dataset_card(
        repo, opened.state, {name: len(getattr(opened, name)) for name in TABLES}
    ).encode()
    return files


def _upload(repo: str, files: dict[str, Path | bytes], kind: Kind, *, private: bool) -> str:
    api = HfApi(library_name="areal-actors")
    additions = [
        CommitOperationAdd(name, content if isinstance(content, bytes) else str(content))
        for name, content in files.items()
    ]
    try:
        api.create_repo(repo, repo_type=kind, private=private, exist_ok=True)
        return str(
            api.create_commit(repo, additions, commit_message="Upload with areal-actors", repo_type=kind).commit_url
        )
    except Exception as error:  # which HTTP library raises it depends on the version of huggingface_hub
        reason = str(error).strip().partition("\n")[0]
        raise SetupError(
            f"'{repo}' at {api.endpoint} did not take the upload ({type(error).__name__}: {reason}); write the"
            " repository as owner/name, and log in with `hf auth login` or set HF_TOKEN to a token that may write"
        ) from error
