"""Forgeries of a finished run: copies of its log and checkpoint in which something did not happen as it did.

A careless forger edits one place. A careful one writes everything anew that depends on it and costs no training:
checksums of events, manifest, hash chain, digests and proof.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import load_file, save_file

from areal_actors.audit.audit import KINDS_BY_SUBJECT
from areal_actors.core.values import Trajectory
from areal_actors.messages import (
    BatchFormed,
    CheckpointCommitted,
    EpisodeAbandoned,
    EpisodeScored,
    RunStarted,
    StepCompleted,
    TrajectoryExported,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.proof.chain import LogChain
from areal_actors.proof.proof import digest_of_recipe, read_proof, write_proof
from areal_actors.recipe.recipe import Recipe
from areal_actors.sequences.build import apply_rewards, last_trained
from areal_actors.sequences.credit import Credit
from areal_actors.sequences.sequence_check import SequenceLimits, batch_sequences
from areal_actors.sequences.step_metrics import sequences_checksum
from areal_actors.weights.manifest import digest_of_manifest, write_manifest
from areal_actors.weights.weight_files import checksum_of, stored_tensors
from areal_bus.base import Envelope, Stamp
from areal_bus.message import Event
from areal_bus.recorded import LogWriter, read_log

SETTINGS: tuple[tuple[str, Any], ...] = (
    ("trainer.optimizer.lr", 3e-4),
    ("trainer.optimizer.lr", 1.6e-3),
    ("trainer.optimizer.betas", [0.5, 0.95]),
    ("algorithm.loss_aggregation", "seq_mean"),
    ("task.reward", "math"),
)


class ForgedRun:
    """A copy of a run's log and of one of its checkpoints; the other checkpoints are links."""

    def __init__(self, run: Path, log: Path, step: int, place: Path) -> None:
        """Copy to the folder `place`, which must not exist."""
        self.place, self.step = place, step
        self.checkpoint = place / "checkpoints" / f"step-{step}"
        self.checkpoint.parent.mkdir(parents=True)
        for folder in (run / "checkpoints").iterdir():
            if folder.name == self.checkpoint.name:
                shutil.copytree(folder, self.checkpoint)
            else:
                (self.checkpoint.parent / folder.name).symlink_to(folder)
        shutil.copy2(run / "recipe.json", place / "recipe.json")
        if (run / "model").is_dir():
            shutil.copytree(run / "model", place / "model")
        self.events = list(read_log(log))
        self.log = place / "log"

    def message(self, index: int) -> Any:
        """The event at an index of the log."""
        envelope = self.events[index]
        return envelope.open(KINDS_BY_SUBJECT[envelope.subject])

    def indices(self, kind: type[Event]) -> list[int]:
        """Indices of the events of a kind."""
        return [index for index, envelope in enumerate(self.events) if envelope.subject == kind.subject]

    def put(self, index: int, message: Event) -> None:
        """Put another event in the place of one, with its id, sender and time."""
        old = self.events[index]
        stamp = Stamp(id=old.id, sender=old.sender, time=old.time, cause=old.cause)
        self.events[index] = msgspec.structs.replace(Envelope.seal(message, stamp, old.run), sequence=old.sequence)

    def write(self, *, careful: bool) -> None:
        """Write the log; a careful forger also writes the proof anew."""
        chain, proof = LogChain(), read_proof(self.checkpoint)
        if careful:
            self._rewrite_manifest()
        recipe = proof.recipe
        with LogWriter(self.log, self.events[0].run) as writer:
            for envelope in self.events:
                writer.write(envelope)
                if envelope.sequence <= proof.sequence:
                    chain.add(envelope)
                if envelope.subject == RunStarted.subject:
                    recipe = digest_of_recipe(envelope.open(RunStarted).recipe)
        if careful:
            manifest = digest_of_manifest(self.checkpoint)
            write_proof(
                self.checkpoint, msgspec.structs.replace(proof, head=chain.head, manifest=manifest, recipe=recipe)
            )

    def _rewrite_manifest(self) -> None:
        proof = read_proof(self.checkpoint)
        (self.checkpoint / "proof.json").unlink()
        saved = {index: self.message(index) for index in self.indices(CheckpointCommitted)}
        own = {index: event for index, event in saved.items() if event.step == self.step}
        cursor = next(iter(own.values())).cursor
        digest = write_manifest(self.checkpoint, step=self.step, cursor=cursor)
        write_proof(self.checkpoint, proof)
        for index, event in own.items():
            self.put(index, msgspec.structs.replace(event, manifest=digest))


def swap_rewards(run: ForgedRun, random: Random, *, careful: bool) -> None:
    """Exchange the rewards of two episodes of a group, in three of ten of the groups whose rewards differ."""
    scored = {run.message(index).work.episode: index for index in run.indices(EpisodeScored)}
    exported = {run.message(index).trajectory.episode: index for index in run.indices(TrajectoryExported)}
    groups: dict[str, dict[str, float]] = {}
    for episode, index in exported.items():
        groups.setdefault(episode.partition(".")[0], {})[episode] = run.message(index).trajectory.reward
    mixed = [members for members in groups.values() if len(set(members.values())) > 1] or list(groups.values())
    for members in random.sample(mixed, max(1, len(mixed) * 3 // 10)):
        low, high = min(members, key=members.__getitem__), max(members, key=members.__getitem__)
        changed_rewards = {low: members[high], high: members[low]} if low != high else {low: members[low] + 1.0}
        for episode, reward in changed_rewards.items():
            trajectory = run.message(exported[episode]).trajectory
            calls = apply_rewards(trajectory.interactions, reward, {})
            changed = msgspec.structs.replace(trajectory, reward=last_trained(calls).reward, interactions=calls)
            run.put(exported[episode], TrajectoryExported(trajectory=changed))
            if careful:
                event = run.message(scored[episode])
                run.put(scored[episode], msgspec.structs.replace(event, reward=reward))


def drop_episodes(run: ForgedRun, random: Random, *, careful: bool) -> None:
    """Drop the worst episode of a group in three of ten steps; a careful forger has it fail, with all counts."""
    exported = {run.message(index).trajectory.episode: index for index in run.indices(TrajectoryExported)}
    works = {run.message(index).work.episode: run.message(index).work for index in run.indices(EpisodeScored)}
    batches = run.indices(BatchFormed)
    chosen = set(random.sample(batches, max(1, len(batches) * 3 // 10)))
    gone: set[str] = set()
    lost_tokens = 0
    steps = {run.message(index).step: index for index in run.indices(StepCompleted)}
    credit = Credit.of(msgspec.convert(run.message(0).recipe, Recipe).task)
    by_place: dict[int, Trajectory] = {
        run.events[index].sequence: run.message(index).trajectory for index in exported.values()
    }
    for index in batches:
        batch: BatchFormed = run.message(index)
        groups = list(batch.groups)
        if index in chosen:
            place = random.randrange(len(groups))
            worst = min(groups[place], key=lambda member: by_place[member.sequence].reward)
            gone.add(worst.episode)
            lost_tokens += by_place[worst.sequence].sampled_tokens()
            groups[place] = tuple(member for member in groups[place] if member != worst)
        if careful:
            counts = {"trained_trajectories": batch.trained_trajectories - len(gone)}
            counts["trained_tokens"] = batch.trained_tokens - lost_tokens
            run.put(index, changed := msgspec.structs.replace(batch, groups=tuple(groups), **counts))
            members = [(number, by_place[one.sequence]) for number, group in enumerate(groups) for one in group]
            sequences = batch_sequences(changed, members, credit, SequenceLimits()).sequences
            done = run.message(steps[batch.step + 1])
            run.put(
                steps[batch.step + 1], msgspec.structs.replace(done, sequences_checksum=sequences_checksum(sequences))
            )
    if careful:
        for episode in gone:
            work = msgspec.structs.replace(works[episode], attempts_left=0)
            run.put(exported[episode], EpisodeAbandoned(work=work, reason="agent", detail="it failed"))
    else:
        removed = {exported[episode] for episode in gone}
        run.events = [envelope for index, envelope in enumerate(run.events) if index not in removed]


def replace_weights(run: ForgedRun, random: Random, *, careful: bool) -> None:
    """Put other weights into the checkpoint; a careful forger has them published, too."""
    file = run.checkpoint / "model.safetensors"
    tensors = load_file(str(file))
    name = random.choice(sorted(tensors))
    noise = np.random.default_rng(random.randrange(2**32)).normal(0, 1e-3, tensors[name].shape)
    tensors[name] = (tensors[name] + noise).astype(tensors[name].dtype)
    save_file(tensors, str(file), metadata={"format": "pt"})
    if not careful:
        return
    checksum = checksum_of(stored_tensors(run.checkpoint))
    for index in run.indices(WeightsPublished):
        event = run.message(index)
        if event.weight_version == run.step:
            location = msgspec.structs.replace(event.location, checksum=checksum)
            run.put(index, msgspec.structs.replace(event, location=location))
    for index in run.indices(WeightsLoaded):
        loaded = run.message(index)
        if loaded.weight_version == run.step:
            run.put(index, msgspec.structs.replace(loaded, checksum=checksum))


def edit_recipe(run: ForgedRun, random: Random, *, careful: bool) -> None:
    """State another setting that decides about the weights; a careful forger also in the log."""
    key, value = random.choice(SETTINGS)
    recipe = json.loads((run.place / "recipe.json").read_bytes())
    table = recipe
    *path, last = key.split(".")
    for part in path:
        table = table[part]
    table[last] = value
    (run.place / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
    if careful:
        run.put(0, msgspec.structs.replace(run.message(0), recipe=recipe))


FORGERIES: dict[str, Callable[..., None]] = {
    "swapped rewards": swap_rewards,
    "dropped episodes": drop_episodes,
    "foreign weights": replace_weights,
    "edited recipe": edit_recipe,
}
