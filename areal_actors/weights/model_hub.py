"""Model lookup: a folder on this machine, or a repository of the Hugging Face hub, downloaded once and cached."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from areal_actors.core.errors import SetupError
from areal_actors.weights.manifest import verify_model

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
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise SetupError(
            f"model '{model}' is neither a local folder nor available from the Hugging Face hub ({type(error).__name__}); "
            "set model to the path of a downloaded model, or profile=embedded"
        ) from error
