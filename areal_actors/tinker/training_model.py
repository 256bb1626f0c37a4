"""A model that one client trains.

Gradients add up over forward and backward passes until the client takes an optimizer step.
Loading, adapters, scoring, optimizer and checkpoint files are those of the trainer; losses are Tinker's. Everything
blocks and runs in the one thread that trains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from areal_actors.core.errors import RequestError
from areal_actors.core.values import WeightsLocation
from areal_actors.sequences.sequence_check import SequenceLimits
from areal_actors.tinker.batches import TARGETS, check_datum, make_batch, micro_batches
from areal_actors.tinker.datums import Datum, ForwardOutput, ForwardRequest
from areal_actors.tinker.losses import loss_function, loss_inputs
from areal_actors.tinker.requests import AdamParams, LoraRequest
from areal_actors.training import trainer_state
from areal_actors.training.engine import sequence_limits
from areal_actors.training.lora import Lora
from areal_actors.training.models import load_model, write_model
from areal_actors.training.optimization import make_optimizer
from areal_actors.training.packing.scoring import TokenScorer
from areal_actors.training.ranks import SINGLE_PROCESS, trainable_parameters
from areal_actors.training.settings import LoraSettings, OptimizerSettings
from areal_actors.weights.source_tensors import checkpoint_tensors
from areal_actors.weights.transfer import write_weights

ALPHA = 32
"""Scale of an adapter's update, as Tinker has it: `ALPHA / rank`."""
ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
"""Names of linear layers of the blocks, in models of the Llama family."""
NO_UNEMBEDDING = (
    "train_unembed alone is not supported: this server adapts the layers of the blocks; set train_attn or train_mlp"
)


def lora_settings(lora: LoraRequest) -> LoraSettings:
    """Settings of the trainer's adapter.

    Raises:
        RequestError: the rank is not positive, or no layer of the blocks is trained.
    """
    if lora.rank < 1:
        raise RequestError(f"lora_config.rank is {lora.rank}: write a positive number", "lora_config")
    if not (lora.train_mlp or lora.train_attn):
        raise RequestError(NO_UNEMBEDDING, "lora_config")
    both = lora.train_mlp and lora.train_attn
    return LoraSettings(rank=lora.rank, alpha=ALPHA, targets=() if both else MLP if lora.train_mlp else ATTENTION)


def check_adam(params: AdamParams) -> None:
    """Check the ranges.

    Raises:
        RequestError: names the value that AdamW cannot take.
    """
    for name in ("learning_rate", "eps", "weight_decay", "grad_clip_norm"):
        if not (math.isfinite(value := getattr(params, name)) and value >= 0):
            raise RequestError(f"adam_params.{name} is {value}: write 0 or a positive number", "adam_params")
    for name in ("beta1", "beta2"):
        if not 0 <= (value := getattr(params, name)) < 1:
            raise RequestError(f"adam_params.{name} is {value}: write a number from 0 to below 1", "adam_params")


class TrainingModel:
    """Weights, adapter if any, optimizer, and the gradient so far."""

    def __init__(self, folder: str, lora: LoraRequest | None, device: Literal["cpu", "cuda", "auto"] = "auto") -> None:
        """Load the model of a Hugging Face folder.

        Raises:
            SetupError: the folder contains no such model.
            EngineError: the model cannot be trained.
            RequestError: the adapter cannot be made as requested.
        """
        self.limits: SequenceLimits = sequence_limits(folder)
        self._folder = folder
        self._device = SINGLE_PROCESS.device(device)
        settings = lora_settings(lora) if lora else None
        model = load_model(folder, "tokens")
        self._lora = Lora(model, folder, settings, lora.seed or 0) if lora and settings else None
        self._model: Any = model.to(self._device)
        self._scorer = TokenScorer(self._model, 1.0)
        self._parameters = trainable_parameters(self._model)
        self._optimizer = make_optimizer(self._parameters, OptimizerSettings())
        self._optimizer.zero_grad(set_to_none=True)
        self._has_gradient = False

    # ------------------------------------------------------------ training

    def forward(self, request: ForwardRequest) -> ForwardOutput:
        """Log-probabilities and loss of some datums.

        Unless `forward_only`, the gradient of the loss is added to the present one.

        Raises:
            RequestError: a datum does not fit the model or the loss, or the loss is not finite, which discards the
                present gradient.
        """
        if not request.data:
            raise RequestError("the request has no data: send at least one datum", "data")
        loss, options = loss_function(request.loss, request.loss_config)
        needed, read = loss_inputs(request.loss)
        for number, datum in enumerate(request.data):
            check_datum(datum, number, needed, self.limits)
        total = 0.0
        outputs: list[dict[str, Any]] = [{} for _ in request.data]
        with torch.set_grad_enabled(not request.forward_only):
            for indices in micro_batches(request.data):
                batch, parts = make_batch([request.data[index] for index in indices], self._device)
                logp, _ = self._scorer(batch)
                part = torch.zeros((), device=self._device)
                for index, flat in zip(indices, logp.split(parts), strict=True):
                    datum = request.data[index]
                    inputs = {name: self._tensor(datum, name) for name in read & datum.inputs.keys()}
                    elementwise = loss(flat.view(datum.inputs[TARGETS].shape), inputs, options)
                    part = part + elementwise.sum()
                    shape = datum.inputs[TARGETS].shape
                    outputs[index] = {"logprobs": _array(flat, shape), "elementwise_loss": _array(elementwise, shape)}
                total += self._backward(part, request)
        return ForwardOutput(outputs, {"loss:sum": total})

    def _backward(self, part: Tensor, request: ForwardRequest) -> float:
        """Add the gradient of a part of the loss; returns its value."""
        value = float(part.detach())
        if not math.isfinite(value):
            self._discard_gradient()
            raise RequestError(
                f"the loss {request.loss} is {value}: the gradient since the last optimizer step is discarded; "
                "lower the learning rate, or check logprobs and advantages"
            )
        if not request.forward_only:
            part.backward()  # type: ignore[no-untyped-call]
            self._has_gradient = True
        return value

    def optim_step(self, params: AdamParams) -> dict[str, float]:
        """One step of AdamW with the gradient so far, which is then 0; returns its metrics.

        Raises:
            RequestError: there is no gradient, it is not finite (it is then discarded), or a parameter is out of range.
        """
        check_adam(params)
        if not self._has_gradient:
            raise RequestError(
                "optim_step has no gradient: no forward_backward of this model succeeded since the last step"
            )
        norm = SINGLE_PROCESS.clip(self._parameters, params.grad_clip_norm or math.inf)
        if not math.isfinite(norm):
            self._discard_gradient()
            raise RequestError(f"the norm of the gradient is {norm}: it is discarded, and the weights are unchanged")
        for group in self._optimizer.param_groups:
            group["lr"], group["betas"] = params.learning_rate, (params.beta1, params.beta2)
            group["eps"], group["weight_decay"] = params.eps, params.weight_decay
        self._optimizer.step()
        self._discard_gradient()
        return {"grad_norm": norm}

    def _discard_gradient(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._has_gradient = False

    def _tensor(self, datum: Datum, name: str) -> Tensor:
        return torch.from_numpy(np.array(datum.inputs[name], dtype=np.float32)).to(self._device)

    # ------------------------------------------------------------ weights in and out

    def publish(self, folder: Path) -> WeightsLocation:
        """Write the present weights, an adapter merged, into a new folder for a sampler."""
        return write_weights(dict(checkpoint_tensors(self._model, self._merge_adapter())), folder, self._folder)

    def save_model(self, folder: Path) -> None:
        """Write a Hugging Face folder with the present weights, an adapter merged."""
        write_model(self._model, self._merge_adapter(), str(folder), self._folder)

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder with the merged weights, and adapter and optimizer, which `load` reads."""
        self.save_model(folder)
        SINGLE_PROCESS.save_state(folder, self._model, self._optimizer, {})

    def load(self, folder: Path, *, optimizer: bool) -> None:
        """Load what `save` wrote; without `optimizer` the optimizer starts anew. The gradient so far is discarded.

        Raises:
            CheckpointError: something is missing, damaged or does not fit.
        """
        if optimizer:
            SINGLE_PROCESS.load_state(folder, self._model, self._optimizer)
        else:
            trainer_state.restore(self._model, folder, trainer_state.read(folder)["adapter"])
            self._optimizer = make_optimizer(self._parameters, OptimizerSettings())
        self._discard_gradient()

    def _merge_adapter(self) -> Mapping[str, Tensor]:
        state = SINGLE_PROCESS.full_state_dict(self._model)
        return self._lora.merge(state) if self._lora else state


def _array(values: Tensor, shape: tuple[int, ...]) -> Any:
    return values.detach().float().cpu().numpy().reshape(shape)
