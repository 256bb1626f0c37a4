"""Validates the name of a model.

A folder, a hub id or the name of a fetched model; other values are answered with the next command.
"""

from __future__ import annotations

import difflib
import shlex
from pathlib import Path

from areal_actors.core.command import COMMAND
from areal_actors.core.known_models import CONFIG, KNOWN, fetched_folder
from areal_actors.core.layers import Key
from areal_actors.core.problems import Problems, is_installed, toml_value
from areal_actors.core.programs import program

GGUF = ".gguf"
ADAPTER = "adapter_config.json"
INNER = ("*", "snapshots/*", "checkpoints/*")
"""Subfolders in which folders of several models keep them: a folder of downloads, the cache of the hub's library, a
run."""


def is_local_model(name: str) -> bool:
    """Returns True if a model is named by a path rather than by a hub id."""
    path = Path(name).expanduser()
    return (
        name.startswith(("/", "./", "../", "~", "runs/", "models/"))
        or path.suffix == GGUF
        or path.exists()
        or name.count("/") > 1
    )


def model_problems(key: Key, model: str, or_else: str) -> Problems:
    """Check a model named by its hub id, its short name or its folder.

    `or_else` is another value that the setting may have.
    """
    if is_local_model(model):
        yield from ((key, f"found {toml_value(model)}, {problem}") for problem in _path_problems(model, or_else))
    elif fetched_folder(model) is None and model not in KNOWN:
        yield from _hub_problems(key, model, or_else)


def _path_problems(model: str, or_else: str) -> list[str]:
    path = Path(model).expanduser()
    if path.is_file():
        return [_of_file(path)]
    if not path.is_dir():
        looked = f"but there is no such folder (looked beside the recipe and in {Path.cwd()})"
        remedy = f"name a checkpoint (runs/NAME/checkpoints/step-N), a hub id, or {or_else}"
        if path.name in KNOWN:
            remedy = f"`{_areal('model', 'get', path.name, '--folder', str(path.parent))}` fetches it"
        return [f"{looked}; {remedy}"]
    return [] if (path / CONFIG).is_file() else [_of_folder(path)]


def _of_file(path: Path) -> str:
    if path.suffix != GGUF:
        return "which is a file; name the folder of a Hugging Face model, with its config.json"
    folder = path.with_suffix("")
    write = f"write model = {toml_value(str(folder))}"
    if (folder / CONFIG).is_file():
        return f"which is a GGUF file; it is converted: {write}"
    return (
        f"which is a GGUF file, and a run needs a folder; `{_areal('model', 'convert', str(path))}` makes it once, then"
        f" {write}"
    )


def _of_folder(path: Path) -> str:
    missing = "but no config.json in that folder"
    if inner := next((config.parent for pattern in INNER for config in sorted(path.glob(f"{pattern}/{CONFIG}"))), None):
        return f"{missing}; a model is in {inner}: write model = {toml_value(str(inner))}"
    if files := sorted(path.glob(f"*{GGUF}")):
        folder = files[0].with_suffix("")
        return (
            f"{missing}, and {files[0].name}; `{_areal('model', 'convert', str(files[0]))}`, then write model ="
            f" {toml_value(str(folder))}"
        )
    if (path / ADAPTER).is_file():
        return (
            f"{missing}, which holds an adapter ({ADAPTER}); name the folder of a whole model, with the adapter merged"
            " into it"
        )
    if any(path.glob("*.safetensors")):
        return (
            f"{missing} beside the weights; copy the other files of the model into it: config.json, tokenizer.json,"
            " tokenizer_config.json"
        )
    return f"{missing}; name a Hugging Face model folder"


def _hub_problems(key: Key, model: str, or_else: str) -> Problems:
    fault = f"found {toml_value(model)}"
    if model.count("/") != 1 or not all(model.split("/")):
        near = difflib.get_close_matches(model, KNOWN, n=1)
        hint = f"did you mean {toml_value(near[0])}? Or " if near else ""
        yield (
            key,
            f'{fault}; {hint}write {or_else}, a hub id such as "Qwen/Qwen2.5-1.5B-Instruct", or an existing folder',
        )
    elif not is_installed("huggingface_hub"):
        remedy = f"pip install huggingface_hub, or write a local folder or {or_else}"
        yield key, f"{fault}, but huggingface_hub is not installed; {remedy}"


def _areal(*words: str) -> str:
    return f"{program(COMMAND)} {shlex.join(words)}"
