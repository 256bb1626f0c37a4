"""Model lookup: a folder on this machine, or a repository of the Hugging Face hub, downloaded once and cached."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from areal_actors.core.errors import SetupError
from areal_actors.weights.manifest import verify_model

UNAVAILABLE = (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError)
HUB_SECONDS = 20.0
WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


def model_folder(model: str) -> str:
    """Returns the Hugging Face folder of a model named by path or hub id.

    Raises:
        SetupError: there is no such folder, and the hub does not have it or cannot be reached; or it is a damaged checkpoint.
    """
    if (folder := Path(model).expanduser()).is_dir():
        verify_model(folder)
        return str(folder.resolve())
    try:
        return snapshot_download(model, allow_patterns=WANTED)
    except UNAVAILABLE as error:
        raise _unavailable(model, error) from error


def check_on_hub(model: str) -> None:
    """Check that a model of the hub is cached, or that the hub has it and allows access to it.

    Raises:
        SetupError: the hub does not have it, refuses it, or cannot be reached.
    """
    try:
        if not isinstance(try_to_load_from_cache(model, "config.json"), str):
            HfApi().model_info(model, timeout=HUB_SECONDS)
    except Exception as error:  # which HTTP library raises it depends on the version of huggingface_hub
        raise _unavailable(model, error) from error


def _unavailable(model: str, error: Exception) -> SetupError:
    return SetupError(
        f"model '{model}' is neither a local folder nor available from the Hugging Face hub ({type(error).__name__}); "
        'set model to the path of a downloaded model, or to "embedded"'
    )
