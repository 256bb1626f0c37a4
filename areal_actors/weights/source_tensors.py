"""Tensors of the folder from which a model was loaded: their names there, and those that the model does not have.

transformers renames tensors when it loads them, joins the experts of a mixture, and leaves out what a class does not
compute: the vision tower of a model that is loaded as a language model, and heads for the prediction of several tokens
(MTP). A checkpoint has every tensor of that folder under its name there: trained ones with their present values, the
others as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    dot_natural_key,
    rename_source_key,
    revert_weight_conversion,
)

from areal_actors.core.errors import EngineError, SetupError
from areal_actors.weights.weight_files import StoredTensor, stored_tensors

ATTRIBUTE = "areal_source_tensors"
"""Attribute of a loaded model with its `SourceTensors`; wrappers that change a model in place keep it."""
CONVERSIONS = "_weight_conversions"
"""Attribute in which transformers keeps the conversions with which it loaded a model."""
SHOWN = 3


class SourceTensors:
    """The tensors of a model's folder, by their relation to the model's own."""

    def __init__(self, model: Any, folder: str | Path) -> None:
        """Match the folder's tensors with the model's by name; weights are not read.

        Raises:
            EngineError: the folder's files are damaged.
        """
        self.folder = Path(folder)
        self._stored = stored = stored_tensors(folder)
        own = model.state_dict()
        self._targets: dict[str, str] = {}
        """By name in the folder the name in the model; without tensors that transformers joins."""
        self._joined: set[str] = set()
        """Names in the folder of tensors that transformers joins to fewer."""
        carried: dict[str, StoredTensor] = {}
        rename = _Renamer(model, own)
        for name, tensor in stored.items():
            target, pattern = rename(name)
            if target not in own:
                carried[name] = tensor
            elif pattern is not None:
                self._joined.add(name)
            else:
                self._targets[name] = target
        self.carried = carried
        """Tensors that the model does not have, by their names in the folder."""

    def to_checkpoint(self, model: Any, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of a checkpoint by the folder's names.

        Those of `state`, which has the model's names, and those carried over.

        Raises:
            EngineError: the folder has changed.
        """
        return self._from_model(model, state) | self._read_carried()

    def without_carried(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of a checkpoint without those that the model does not have."""
        return {name: tensor for name, tensor in tensors.items() if name not in self.carried}

    def _from_model(self, model: Any, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tensors = {name: state[target] for name, target in self._targets.items() if target in state}
        used = set(self._targets.values())
        rest = {name: tensor for name, tensor in state.items() if name not in used}
        if self._joined and rest:
            converted = revert_weight_conversion(model, rest)
            tensors |= {name: tensor for name, tensor in converted.items() if name in self._joined}
        return _each_its_own(tensors)

    def _read_carried(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        try:
            for file in sorted({tensor.file for tensor in self.carried.values()}):
                with safe_open(file, framework="pt") as opened:
                    tensors |= {
                        name: opened.get_tensor(name) for name, tensor in self.carried.items() if tensor.file == file
                    }
        except (OSError, ValueError, RuntimeError) as error:
            raise EngineError(
                f"the tensors in {self.folder} that are carried over cannot be read ({error}): restore the folder"
            ) from error
        return tensors

    def check(self, model: Any) -> None:
        """Compare what a checkpoint would have with what the folder has; nothing is computed.

        Raises:
            SetupError: a checkpoint of this model would lack tensors, or have them in another shape.
        """
        written = self._from_model(
            model, {name: torch.empty_like(tensor, device="meta") for name, tensor in model.state_dict().items()}
        )
        expected = {name: tensor for name, tensor in self._stored.items() if name not in self.carried}
        lacking = sorted(expected.keys() - written.keys())
        shaped = sorted(
            name for name in expected.keys() & written.keys() if tuple(written[name].shape) != expected[name].shape
        )
        for names, what in ((lacking, "lack"), (shaped, "have in another shape")):
            if names:
                raise SetupError(
                    f"{self.folder}: a checkpoint of {type(model).__name__} would {what} {list_names(names)} of this"
                    " folder; choose a model that transformers writes as it reads it"
                )


def note_source(model: Any, folder: str | Path) -> SourceTensors | None:
    """Keep the source tensors of a loaded model with it; None if its folder has no safetensors.

    Raises:
        EngineError: the folder's files are damaged.
    """
    if not any(Path(folder).glob("*.safetensors")):
        return None
    if isinstance(model, PreTrainedModel) and not hasattr(model, CONVERSIONS):
        setattr(
            model, CONVERSIONS, _conversions(model)
        )  # as `from_pretrained` does, for ranks whose model is on the meta device
    source = SourceTensors(model, folder)
    setattr(model, ATTRIBUTE, source)
    return source


def source_of(model: Any) -> SourceTensors | None:
    """The source tensors of a loaded model; None if nothing is noted."""
    source: SourceTensors | None = getattr(model, ATTRIBUTE, None)
    return source


def checkpoint_tensors(model: Any, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Tensors of a model by the names of its Hugging Face checkpoint, and those carried over.

    Without noted source they have the names that transformers writes.
    """
    if (source := source_of(model)) is not None:
        return source.to_checkpoint(model, state)
    if not _conversions(model):
        return state
    converted: dict[str, Tensor] = revert_weight_conversion(model, dict(state))
    return converted


def model_tensors(model: Any, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Tensors of a Hugging Face checkpoint by the names of the model, without those carried over.

    Inverse of `checkpoint_tensors`.
    """
    source = source_of(model)
    given = tensors if source is None else source.without_carried(tensors)
    rename = _Renamer(model, model.state_dict())
    by_name: dict[str, Tensor] = {}
    fused: dict[str, Any] = {}
    for name in sorted(given, key=dot_natural_key):
        renamed, pattern = rename(name)
        if pattern is None:
            by_name[renamed] = given[name]
            continue
        converter = next(converter for converter in rename.converters if pattern in converter.source_patterns)
        fused.setdefault(renamed, deepcopy(converter)).add_tensor(renamed, name, pattern, given[name])
    for name, converter in fused.items():
        for target, value in converter.convert(name, model=model, config=model.config).items():
            by_name[target] = value[0] if isinstance(value, list) else value
    return by_name


class _Renamer:
    """The renaming of tensors with which transformers loads a model."""

    def __init__(self, model: Any, own: Mapping[str, Tensor]) -> None:
        conversions = _conversions(model)
        self.converters = [conversion for conversion in conversions if isinstance(conversion, WeightConverter)]
        self._renamings = [conversion for conversion in conversions if not isinstance(conversion, WeightConverter)]
        self._prefix = getattr(model, "base_model_prefix", None)
        self._own = dict(own)

    def __call__(self, name: str) -> tuple[str, str | None]:
        """Name in the model of a tensor of the folder, and the pattern of the converter that joins or splits it."""
        renamed, pattern = rename_source_key(name, self._renamings, self.converters, self._prefix, self._own)
        if renamed not in self._own and name in self._own:
            return name, None
        return renamed, pattern


def _conversions(model: Any) -> list[Any]:
    """The conversions with which transformers loaded a model, or would load it; none for most models."""
    if not isinstance(model, PreTrainedModel):
        return []
    noted = getattr(model, CONVERSIONS, None)
    return list(noted) if noted else get_model_conversion_mapping(model, add_legacy=False)


def _each_its_own(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies tensors of tied weights: a folder that has both under their names has both in its checkpoints."""
    first: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}

    def is_first(name: str, tensor: Tensor) -> bool:
        return tensor.is_meta or first.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride()), name) == name

    return {name: tensor if is_first(name, tensor) else tensor.clone() for name, tensor in tensors.items()}


def list_names(names: Iterable[str]) -> str:
    """The first names in order, and their number."""
    each = sorted(names)
    return f"{', '.join(each[:SHOWN])}{', …' if len(each) > SHOWN else ''} ({len(each)} in all)"
