"""The calls of clients: they create and use sessions, models that are trained, samplers and checkpoints.

One thread trains, so the passes and steps of all models run one after another; sampling runs beside it. A session whose
client is silent for too long ends, and with it its models and samplers; saved checkpoints stay.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar
from uuid import uuid4

import torch

from areal_actors.core.errors import RequestError
from areal_actors.core.values import WeightsLocation
from areal_actors.tinker.checkpoints import Kind, TinkerCheckpoints, TrainingRunRecord
from areal_actors.tinker.datums import ForwardRequest
from areal_actors.tinker.futures import Futures, Result
from areal_actors.tinker.requests import (
    CreateModel,
    CreateSamplingSession,
    LoadWeights,
    LoraRequest,
    OptimStep,
    Sample,
    SaveWeights,
)
from areal_actors.tinker.samplers import MOST_SAMPLES, ModelSampler
from areal_actors.tinker.sessions import LoadedModel, SamplingSession, TinkerSessions
from areal_actors.tinker.training_model import TrainingModel

ADAMW = "adamw"
CHECKPOINTS = "checkpoints"
"""Name of the folder within the server's."""

Output = TypeVar("Output")
Device = Literal["cpu", "cuda", "auto"]


class TinkerService:
    """Call its methods in one event loop."""

    def __init__(
        self,
        names: tuple[str, ...],
        folder: str,
        state: Path,
        temporary: Path,
        sampler: ModelSampler,
        device: Device = "auto",
        threads: int = 1,
    ) -> None:
        """Make the service of one base model.

        Args:
            names: names of the base model; the first is the one that responses have.
            folder: its Hugging Face folder.
            state: folder of checkpoints.
            temporary: folder of weights that are only sampled from while the server runs; exists, and is empty.
            sampler: samples from the base model.
            device: device of the models that are trained.
            threads: CPU threads of the thread that trains.
        """
        self.names = names
        self.folder = folder
        self.sampler = sampler
        self.checkpoints = TinkerCheckpoints(state / CHECKPOINTS)
        self.futures = Futures()
        self.sessions = TinkerSessions()
        self._temporary = temporary
        self._device = device
        self._thread = ThreadPoolExecutor(1, "train", initializer=torch.set_num_threads, initargs=(threads,))

    async def close(self) -> None:
        """Cancel all requests and end the engine; an optimizer step in progress ends first."""
        await self.futures.close()
        self._thread.shutdown(wait=True, cancel_futures=True)
        await self.sampler.close()

    # ------------------------------------------------------------ models

    def create_model(self, request: CreateModel) -> tuple[str, str]:
        """Start to load a model; returns the ids of the request and of the model."""
        self._check_base(request.base_model)
        _check_optimizer(request.optimizer_config.type)
        return self._new_model(
            request.session_id, request.model_seq_id, request.lora_config, request.user_metadata, None, optimizer=False
        )

    def load_weights(self, request: LoadWeights) -> tuple[str, str]:
        """Start to load a checkpoint, into a model or into a new one.

        Returns the ids of the request and of the model.
        """
        run, kind, _ = self.checkpoints.folder(request.path)
        if kind != "weights":
            raise RequestError(
                f"{request.path} is for sampling only: load a checkpoint that save_weights wrote", "path"
            )
        if request.optimizer_config is not None:
            _check_optimizer(request.optimizer_config.type)
        if request.session_id is not None and request.model_seq_id is not None:
            self._check_base(request.base_model or run.base_model)
            return self._new_model(
                request.session_id,
                request.model_seq_id,
                run.lora,
                request.user_metadata,
                request.path,
                optimizer=request.optimizer,
            )
        if request.model_id is None:
            raise RequestError("load_weights needs model_id, or session_id and model_seq_id", "model_id")

        def load(_: LoadedModel, training: TrainingModel) -> Result:
            self._load(training, request.path, optimizer=request.optimizer)
            return {"path": request.path, "type": "load_weights"}

        return self._in_order(request.model_id, request.seq_id, load), request.model_id

    def forward(self, model_id: str, seq_id: int | None, read: Callable[[], ForwardRequest]) -> str:
        """Start a forward pass; `read` parses its data, when its turn has come. Returns the id of the request."""
        return self._in_order(model_id, seq_id, lambda _, training: training.forward(read()))

    def optim_step(self, request: OptimStep) -> str:
        """Start an optimizer step; returns the id of the request."""
        params = request.adam_params

        def step(_: LoadedModel, training: TrainingModel) -> Result:
            if params is None:
                raise RequestError("optim_step needs adam_params: this server has AdamW only", "adam_params")
            return {"metrics": training.optim_step(params)}

        return self._in_order(request.model_id, request.seq_id, step)

    def save_weights(self, request: SaveWeights) -> str:
        """Start to save a training checkpoint; returns the id of the request."""
        return self._save(
            request, request.path or f"step-{uuid4().hex[:8]}", "weights", "save_weights", TrainingModel.save
        )

    def save_weights_for_sampler(self, request: SaveWeights) -> str:
        """Start to save weights for sampling: under a name, or without one as those of a new sampler.

        Returns the id of the request.
        """
        if request.path is None:
            return self._save_temporary(request)
        return self._save(
            request, request.path, "sampler_weights", "save_weights_for_sampler", TrainingModel.save_model
        )

    def _save(
        self, request: SaveWeights, name: str, kind: Kind, answer: str, write: Callable[[TrainingModel, Path], object]
    ) -> str:
        def save(model: LoadedModel, training: TrainingModel) -> Result:
            record = self.checkpoints.save(
                model.run,
                kind,
                name,
                partial(write, training),
                overwrite=request.overwrite,
                ttl_seconds=request.ttl_seconds,
                user_metadata=request.user_metadata,
            )
            return {"path": record.tinker_path, "type": answer}

        return self._in_order(request.model_id, request.seq_id, save)

    def unload_model(self, model_id: str) -> str:
        """Drop a model after its present requests; returns the id of the request."""
        model = self.sessions.model(model_id)

        async def unload() -> Result:
            async with model.order.turn(model.order.number(None)):
                self.sessions.owner_of(model_id).models.pop(model_id, None)
            return {"model_id": model_id, "type": "unload_model"}

        return self.futures.start(f"{model_id}:unload", unload())

    def info(self, model_id: str) -> dict[str, Any]:
        """Base model, adapter and tokenizer of a model."""
        run = self.sessions.model(model_id).run
        data = {"arch": "unknown", "model_name": run.base_model, "tokenizer_id": self.folder}
        rank = run.lora.rank if run.lora else None
        lora = {"is_lora": run.lora is not None, "lora_rank": rank}
        return {"type": "get_info", "model_data": data, "model_id": model_id, "model_name": run.base_model, **lora}

    # ------------------------------------------------------------ samplers

    async def create_sampling_session(self, request: CreateSamplingSession) -> str:
        """Returns the id of a new sampler, of a checkpoint or of the base model."""
        session = self.sessions.session(request.session_id)
        sampler_id = f"{request.session_id}:sample:{request.sampling_session_seq_id}"
        if sampler_id not in session.samplers:
            weights = await self._weights(request.model_path, request.base_model)
            session.samplers[sampler_id] = SamplingSession(weights, request.model_path, temporary=False)
        return sampler_id

    def sample(self, request: Sample) -> tuple[str, list[str]]:
        """Start to sample; returns the id of the request, and one of each completion."""
        sampler = None
        if request.sampling_session_id is None:
            self._check_weights(request.model_path, request.base_model)
            request_id = f"sample:{uuid4()}"
        else:
            sampler = self.sessions.sampler(request.sampling_session_id)
            number = uuid4().hex if request.seq_id is None else request.seq_id
            request_id = f"{request.sampling_session_id}:{number}"
        self.futures.start(request_id, self._sample(request, request_id, sampler))
        return request_id, [
            f"{request_id}:{number}" for number in range(min(max(request.num_samples, 0), MOST_SAMPLES))
        ]

    # ------------------------------------------------------------ within

    def _check_base(self, name: str) -> None:
        if name not in self.names:
            raise RequestError(
                f"base_model '{name}' is not served here; served is {' or '.join(self.names)}", "base_model"
            )

    def _check_weights(self, model_path: str | None, base_model: str | None) -> None:
        if model_path is not None:
            self.checkpoints.folder(model_path)
        elif base_model is None:
            raise RequestError("sampling needs model_path or base_model", "base_model")
        else:
            self._check_base(base_model)

    async def _weights(self, model_path: str | None, base_model: str | None) -> WeightsLocation:
        self._check_weights(model_path, base_model)
        return (
            self.sampler.base if model_path is None else await asyncio.to_thread(self.checkpoints.weights, model_path)
        )

    async def _sample(self, request: Sample, request_id: str, sampler: SamplingSession | None) -> Result:
        weights = sampler.weights if sampler else await self._weights(request.model_path, request.base_model)
        if sampler and sampler.is_removed():
            raise RequestError(
                f"{sampler.model_path} was overwritten or deleted: create another sampler", "sampling_session_id"
            )
        return await self.sampler.sample(weights, request_id, request)

    def _new_model(
        self,
        session_id: str,
        model_seq_id: int,
        lora: LoraRequest | None,
        user_metadata: Mapping[str, Any] | None,
        checkpoint: str | None,
        *,
        optimizer: bool,
    ) -> tuple[str, str]:
        session = self.sessions.session(session_id)
        model_id = f"{session_id}:train:{model_seq_id}"
        if model_id in session.models:
            return f"{model_id}:0", model_id
        run = TrainingRunRecord(
            training_run_id=model_id,
            base_model=self.names[0],
            folder=self.folder,
            lora=lora,
            user_metadata=dict(user_metadata) if user_metadata else None,
            last_request_time=datetime.now(UTC),
        )
        model = session.models[model_id] = LoadedModel(run)

        def load() -> Result:
            training = TrainingModel(self.folder, lora, self._device)
            if checkpoint:
                self._load(training, checkpoint, optimizer=optimizer)
            self.checkpoints.add_run(run)
            model.training = training
            loaded = {"path": checkpoint, "type": "load_weights"} if checkpoint else {"type": "create_model"}
            return {"model_id": model_id, **loaded}

        async def create() -> Result:
            try:
                return await self._train(load)
            except BaseException:
                session.models.pop(model_id, None)
                raise

        return self.futures.start(f"{model_id}:0", create()), model_id

    def _in_order(self, model_id: str, seq_id: int | None, work: Callable[[LoadedModel, TrainingModel], Result]) -> str:
        """Start a request of a model: it runs after those with lower numbers. Returns its id."""
        model = self.sessions.model(model_id)
        number = model.order.number(seq_id)
        return self.futures.start(f"{model_id}:{number}", self._take_turn(model, number, work))

    async def _take_turn(
        self, model: LoadedModel, number: int, work: Callable[[LoadedModel, TrainingModel], Result]
    ) -> Result:
        async with model.order.turn(number):
            if model.training is None:
                raise RequestError("the model is not loaded yet: wait for the result of create_model", "model_id")
            return await self._train(partial(work, model, model.training))

    def _save_temporary(self, request: SaveWeights) -> str:
        model = self.sessions.model(request.model_id)
        session = self.sessions.owner_of(request.model_id)
        number = model.order.number(request.seq_id)
        sampler = request.sampling_session_seq_id
        sampler_id = f"{session.session_id}:sample:{uuid4() if sampler is None else sampler}"
        folder = self._temporary / uuid4().hex

        async def save() -> Result:
            try:
                weights = await self._take_turn(
                    model, number, lambda _, training: {"weights": training.publish(folder)}
                )
                assert isinstance(weights, dict)
                self.sessions.session(session.session_id)  # may have ended meanwhile
            except BaseException:
                self._thread.submit(shutil.rmtree, folder, ignore_errors=True)  # after what the thread may still write
                raise
            session.keep_temporary(sampler_id, weights["weights"])
            return {"path": None, "sampling_session_id": sampler_id, "type": "save_weights_for_sampler"}

        return self.futures.start(f"{request.model_id}:{number}", save())

    def _load(self, training: TrainingModel, tinker_path: str, *, optimizer: bool) -> None:
        """Load a checkpoint as it is now: a request before this one may have replaced it."""
        _, _, folder = self.checkpoints.folder(tinker_path)
        self.checkpoints.verify(folder)
        training.load(folder, optimizer=optimizer)

    async def _train(self, work: Callable[[], Output]) -> Output:
        """Run something in the thread that trains."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _check_optimizer(kind: str) -> None:
    if kind != ADAMW:
        raise RequestError(
            f"optimizer_config.type '{kind}' is not supported: this server has {ADAMW} only", "optimizer_config"
        )
