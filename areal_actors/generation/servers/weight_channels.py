"""Brings published weights to one inference server, over the channel that the recipe names.

A version is a folder, whatever the channel. The others send what the folder holds from a process beside the worker
(`weights/sender.py`): `broadcast` to a process group with the server, `tensors` as handles of shared memory, `delta`
what changed against the copy that the server keeps, to the process group. The server reports the checksum of what
arrived. A version that does not arrive that way is loaded from its folder; the trainer has no part in any of it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import structlog

from areal_actors.core.errors import EngineError, EngineUnavailable, WeightTransferFailed
from areal_actors.core.free_ports import find_free_ports
from areal_actors.core.values import WeightsLocation
from areal_actors.generation.engine import Arrival, EnginePlace
from areal_actors.generation.servers.dialect import Group, ServerDialect, on_cpu, own_address
from areal_actors.generation.servers.sender_process import SenderProcess
from areal_actors.generation.servers.server_process import ServerClient
from areal_actors.generation.servers.shared_server import adapters_at
from areal_actors.generation.settings import GenerationSettings, is_here
from areal_actors.weights.folders import holds_adapter
from areal_actors.weights.sending import Bucket, Held, Join, Prepare, PreparedVersion, Send, Share, Shared
from areal_actors.weights.weight_files import stored_tensors, verify_adapter, verify_weights

LOAD_SECONDS = 600.0
"""Time limit of a server for loading a folder."""
LEAVE_SECONDS = 5.0
CAUSE_SECONDS = 1.0
"""Time for the end of a sender to be noticed after its server has reported a failure."""
PART_BYTES = 256 * 2**20
"""Bytes of a bucket: a server has room for one besides its weights."""
MAX_FAILURES = 3
"""Versions in a row that did not arrive over the channel; from then on the server is given folders."""

logger = structlog.get_logger(__name__)


class WeightChannel:
    """The way of weights to one server."""

    def __init__(
        self,
        dialect: ServerDialect,
        server: ServerClient,
        model_folder: str,
        settings: GenerationSettings,
        place: EnginePlace,
    ) -> None:
        self.arrival: Arrival | None = None
        self._dialect, self._server, self._model_folder, self._place = dialect, server, model_folder, place
        self._settings = settings.server
        self._ranks = settings.tensor_parallel
        # NCCL has one rank on a GPU, and those of this host are the server's.
        far = not on_cpu(settings) and not is_here(server.url)
        self._backend = "nccl" if far and self._settings.weights != "tensors" else "gloo"
        self._sender = SenderProcess(
            "cuda" if self._backend == "nccl" else "cpu", place.logs / f"sender-{place.number}.log"
        )
        self._life = secrets.token_hex(4)
        self._numbers = count(1)
        self._group = ""
        """Name of the process group; empty if there is none."""
        self._held = ""
        """Checksum of the copy that the server keeps for deltas; empty if it keeps none."""
        self._failures = 0

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the model's tensors."""
        return {name: tensor.shape for name, tensor in stored_tensors(self._model_folder).items()}

    async def prepare(self, location: WeightsLocation) -> PreparedVersion | WeightTransferFailed | None:
        """Verify a version, and map and compare it, while the server samples; returns None if its folder is loaded.

        Raises:
            EngineError: the folder is incomplete, the checksum differs, or the tensors do not fit the model.
        """
        if holds_adapter(location.folder):
            base = location.base or location.model
            folder = base if self._server.has_copy(base) else self._model_folder
            await asyncio.to_thread(verify_adapter, location, self._shapes, folder, self._place.adapter_rank)
            return None
        if self._place.shared is not None:
            self._refuse_other_model(location)
            return None
        await asyncio.to_thread(verify_weights, location, self._shapes)
        if self._settings.weights == "folder":
            return None
        if self._failures >= MAX_FAILURES:
            return WeightTransferFailed(f"{MAX_FAILURES} versions in a row did not arrive as {self._settings.weights}")
        deltas = self._settings.weights == "delta"
        try:
            async with asyncio.timeout(self._settings.weights_seconds):
                return await self._sender.ask(
                    Prepare(location, deltas, self._held if deltas else "", PART_BYTES), PreparedVersion
                )
        except (TimeoutError, WeightTransferFailed) as error:
            self._drop_group()
            late = f"the sender of weights did not map {location.folder} within {self._limit()}"
            return WeightTransferFailed(late) if isinstance(error, TimeoutError) else error

    async def load(
        self,
        location: WeightsLocation,
        weight_version: int,
        prepared: PreparedVersion | WeightTransferFailed | None,
        replaced: str,
    ) -> str:
        """Have the server load a version that `prepare` accepted; nothing is being sampled.

        Returns the name of its adapter, if it is one.

        Args:
            location: the version.
            weight_version: its number.
            prepared: result of `prepare`.
            replaced: name of the adapter that it replaces.

        Raises:
            EngineUnavailable: the server is gone, did not take the version in time, or refused its folder: its weights
                are unknown.
        """
        if holds_adapter(location.folder):
            # A name that this server has never had: one engine may load a version again, and another one at the same
            # server.
            shared, names = self._place.shared, [replaced] if replaced else []
            adapter = f"v{weight_version}.{self._life}.{next(self._numbers)}"
            if shared is not None and shared.policy:  # a killed worker of the policy leaves its adapter at the server
                adapter, names = f"{shared.prefix}{adapter}", await adapters_at(self._server, shared.prefix)
            await self._dialect.load_adapter(self._server, str(Path(location.folder)), adapter, names, LOAD_SECONDS)
            self.arrival = Arrival("adapter", location.checksum)
            return adapter
        if self._place.shared is not None:
            self.arrival = Arrival("folder", location.checksum)
            return ""
        failure = prepared
        if isinstance(prepared, PreparedVersion):
            try:
                self.arrival = await self._send(location, weight_version, prepared)
            except WeightTransferFailed as error:
                failure = error
            else:
                self._failures = 0
                return ""
        await self._load_folder(location, weight_version, failure)
        return ""

    def _refuse_other_model(self, location: WeightsLocation) -> None:
        """Raises EngineError for a whole model that is not the one with which a server of several policies started."""
        if Path(location.folder).resolve() != Path(self._model_folder).resolve():
            kept = f"policies share the server, which keeps {self._model_folder}"
            raise EngineError(f"the weights in {location.folder} are a whole model, but {kept}: publish adapters")

    async def close(self) -> None:
        """End the sender."""
        await self._sender.close()

    async def _load_folder(self, location: WeightsLocation, weight_version: int, failure: object) -> None:
        if failure:
            self._failures += 1
            logger.warning(
                "weights did not arrive over their channel; the folder is loaded",
                version=weight_version,
                cause=str(failure),
            )
        self._held = ""
        await self._dialect.load(self._server, str(Path(location.folder)), weight_version, LOAD_SECONDS)
        self.arrival = Arrival("folder", location.checksum, failure=str(failure or ""))

    async def _send(self, location: WeightsLocation, weight_version: int, prepared: PreparedVersion) -> Arrival:
        """Send a version.

        Raises:
            WeightTransferFailed: it did not arrive.
            EngineUnavailable: the server is gone or did not take it in time.
        """
        what = (
            f"{self._settings.weights} of weight version {weight_version} to {self._dialect.title} at"
            f" {self._server.url}"
        )
        self._held = ""
        try:
            async with asyncio.timeout(self._settings.weights_seconds):
                await self._transfer(location, weight_version, prepared)
        except BaseException as error:
            group = self._drop_group()
            if isinstance(error, TimeoutError):
                raise EngineUnavailable(f"{what} did not end within {self._limit()}") from error
            if isinstance(error, WeightTransferFailed):
                await self._leave(group)
                raise WeightTransferFailed(f"{what} failed: {error}") from error
            raise
        channel = (
            "broadcast" if self._settings.weights == "delta" and prepared.kind == "whole" else self._settings.weights
        )
        return Arrival(channel, location.checksum, prepared.sent_bytes, prepared.whole_bytes)

    async def _transfer(self, location: WeightsLocation, weight_version: int, prepared: PreparedVersion) -> None:
        """Send the buckets of a version and compare the checksum that the server reports."""
        if self._settings.weights != "tensors" and not self._group:
            await self._join()
        await self._dialect.begin_update(self._server, self._settings.weights_seconds)
        report: Mapping[str, Any] = {}
        for number, bucket in enumerate(prepared.buckets):
            report = await self._send_bucket(number, bucket, weight_version)
        if (checksum := report.get("checksum")) != location.checksum:
            raise WeightTransferFailed(f"the server reports checksum {checksum}, expected {location.checksum}")
        await self._dialect.end_update(self._server, weight_version, self._settings.weights_seconds)
        if self._settings.weights == "delta":
            await self._sender.ask(Held())
            self._held = location.checksum

    async def _send_bucket(self, number: int, bucket: Bucket, weight_version: int) -> Mapping[str, Any]:
        """Send a bucket; returns the report of the server."""
        seconds = self._settings.weights_seconds
        if self._settings.weights == "tensors":
            shared = await self._sender.ask(Share(number, self._ranks), Shared)
            return await self._dialect.receive_handles(self._server, shared.handles, weight_version, seconds)
        receiving = self._dialect.receive(self._server, self._group, bucket, weight_version, seconds)
        return await _both(receiving, self._sender.ask(Send(number, seconds)))

    async def _join(self) -> None:
        """Open a process group with the server."""
        group = Group(
            f"areal-{self._life}-{next(self._numbers)}",
            own_address(self._server.url),
            find_free_ports(),
            1 + self._ranks,
            self._backend,
        )
        seconds = self._settings.weights_seconds
        joining = self._dialect.join_group(self._server, group, seconds)
        await _both(
            joining, self._sender.ask(Join(group.address, group.port, group.name, group.ranks, group.backend, seconds))
        )
        self._group = group.name

    def _drop_group(self) -> str:
        """Forget the process group and return its name.

        The server sees that the sender is gone, and the next version opens another one.
        """
        self._sender.kill()
        group, self._group = self._group, ""
        return group

    async def _leave(self, group: str) -> None:
        if group:
            with suppress(EngineError):
                await self._dialect.leave_group(self._server, group, LEAVE_SECONDS)

    def _limit(self) -> str:
        return f"generation.server.weights_seconds = {self._settings.weights_seconds:g}"


async def _both(
    receiving: Coroutine[Any, Any, Mapping[str, Any]], sending: Coroutine[Any, Any, object]
) -> Mapping[str, Any]:
    """Returns the report of the receiver; if one of them fails, the other is cancelled.

    A server that is gone is the cause of both failures, and a sender that is gone that of what the server answers.
    """
    received, sent = asyncio.create_task(receiving), asyncio.create_task(sending)
    try:
        await asyncio.wait((received, sent), return_when=asyncio.FIRST_EXCEPTION)
        if not sent.done():
            await asyncio.wait((sent,), timeout=CAUSE_SECONDS)
    finally:
        for task in (received, sent):
            task.cancel()
        await asyncio.gather(received, sent, return_exceptions=True)
    errors = [error for task in (sent, received) if not task.cancelled() and (error := task.exception())]
    if errors:
        raise next((error for error in errors if isinstance(error, EngineUnavailable)), errors[0])
    return received.result()
