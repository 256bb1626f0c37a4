"""The class of transformers that loads the language model of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers import __version__ as transformers_version

from areal_actors.core.errors import SetupError
from areal_actors.core.model_config import has_vision


def language_model_class(folder: str | Path) -> Any:
    """The automatic class for this folder.

    It has a vision tower only if images are supported, or if there is no other class.

    Raises:
        SetupError: the folder holds no configuration that transformers knows.
    """
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise SetupError(f"{folder}: cannot load a model from this folder: {error}") from error
    classes = {
        kind
        for kind in (AutoModelForCausalLM, AutoModelForImageTextToText)
        if type(config) in kind._model_mapping  # noqa: SLF001
    }
    if not classes and not hasattr(config, "auto_map"):
        raise SetupError(
            f"{folder}: transformers {transformers_version} has no language model of type {config.model_type}"
        )
    sees = has_vision(folder) or classes == {AutoModelForImageTextToText}
    return AutoModelForImageTextToText if sees else AutoModelForCausalLM
