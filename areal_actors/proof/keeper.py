"""Writes the proof of every checkpoint while a run goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import structlog

from areal_actors.core.errors import SetupError
from areal_actors.folder.run_folder import RunFolder
from areal_actors.hosts.portable_recipe import code_digest
from areal_actors.messages import CheckpointCommitted
from areal_actors.proof.chain import LogChain
from areal_actors.proof.proof import (
    FORMAT,
    Proof,
    digest_of_file,
    digest_of_recipe,
    files_of_recipe,
    read_proof,
    write_proof,
)
from areal_actors.recipe.recipe import Recipe
from areal_actors.weights.manifest import PROOF, digest_of_manifest
from areal_bus.base import Bus, Envelope
from areal_bus.errors import EventsTrimmed
from areal_bus.message import Message

MODEL_FILE = "model.safetensors"
logger = structlog.get_logger(__name__)


class ProofKeeper:
    """Extends the chain by each event of the log, and writes its head beside each checkpoint.

    A resumed run continues the chain from the newest proof.
    """

    def __init__(self, recipe: Recipe, folder: RunFolder) -> None:
        self._folder = folder
        self._chain = LogChain()
        plain = msgspec.to_builtins(recipe)
        self._recipe, self._program = digest_of_recipe(plain), code_digest()
        self._files = files_of_recipe(plain, Path.cwd())

    async def catch_up(self, bus: Bus, last: int) -> None:
        """Bring the chain to the event `last` of the log of a resumed run."""
        self._chain = self._newest_chain(last)
        try:
            await self._read(bus, last)
        except EventsTrimmed:
            self._chain = LogChain()
            await self._read(bus, last)

    def _newest_chain(self, last: int) -> LogChain:
        chain = LogChain()
        for path in self._folder.checkpoints.glob(f"*/{PROOF}"):
            try:
                proof = read_proof(path.parent)
            except SetupError as error:
                logger.warning("a proof is left out", reason=str(error))
                continue
            if chain.sequence < proof.sequence <= last:
                chain = LogChain(proof.head, proof.sequence, proof.first)
        return chain

    async def _read(self, bus: Bus, last: int) -> None:
        if self._chain.sequence >= last:
            return
        async for envelope in bus.log(after=self._chain.sequence):
            self._chain.add(envelope)
            if envelope.sequence >= last:
                return

    async def receive(self, envelope: Envelope, message: Message) -> None:
        """Add the next event; write the proof of a checkpoint that it commits."""
        self._chain.add(envelope)
        if isinstance(message, CheckpointCommitted):
            try:
                await asyncio.to_thread(self._write, message)
            except OSError as error:
                logger.warning("the proof of a checkpoint was not written", step=message.step, error=str(error))

    def _write(self, saved: CheckpointCommitted) -> None:
        folder = self._folder.checkpoints / Path(saved.folder).name
        if not folder.is_dir():  # an earlier launch wrote it, and a later checkpoint replaced it
            return
        proof = Proof(
            format=FORMAT,
            run=self._folder.path.name,
            step=saved.step,
            first=self._chain.first,
            sequence=self._chain.sequence,
            head=self._chain.head,
            manifest=saved.manifest or digest_of_manifest(folder),
            recipe=self._recipe,
            program=self._program,
            files=self._files,
            model=digest_of_file(self._folder.model / MODEL_FILE),
        )
        write_proof(folder, proof)
