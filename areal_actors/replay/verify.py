"""`areal-actors audit CHECKPOINT --verify`: whether a checkpoint came about as its log states, for a third party.

Cheap checks come first; steps are computed again only if these find nothing.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
from contextlib import aclosing
from pathlib import Path
from random import Random

import msgspec

from areal_actors.core.errors import ArealError, CheckpointError, EngineError, SetupError
from areal_actors.core.extras import TRAIN, require_extra
from areal_actors.display.safe_console import SafeConsole
from areal_actors.folder.run_folder import RunFolder
from areal_actors.hosts.portable_recipe import code_digest
from areal_actors.proof.proof import Proof, digest_of_file, digest_of_recipe, read_proof
from areal_actors.reader.audit_command import recomputation
from areal_actors.recipe.recipe import Recipe
from areal_actors.replay.command import log_of
from areal_actors.replay.rescore import rescore
from areal_actors.replay.verification import Drawn, Verification
from areal_actors.replay.verified_log import VerifiedLog, draw_steps
from areal_actors.rewards import MODEL, Reward, resolve_reward
from areal_actors.rewards.judge.settings import has_judge
from areal_actors.training.checkpoint_store import CHECKPOINTS
from areal_actors.weights.manifest import PROOF
from areal_actors.weights.manifest import verify as verify_manifest
from areal_actors.weights.weight_files import checksum_of, stored_tensors
from areal_bus.errors import BusError, RecordingDamaged
from areal_bus.recorded import LogWriter

SOUND, FORGED = 0, 1
SEEDS = 2**32
MOST_FAULTS = 5
"""Differences of one kind that are printed."""
PARITY = 1e-3
"""Largest difference of log-probabilities of a sampled token, in nats, between trainer and engine in float32."""


def verify(
    checkpoint: str,
    *,
    log: Path | None = None,
    steps: int = 3,
    completions: int = 1000,
    seed: int | None = None,
    proof: str = "",
    as_json: bool = False,
) -> int:
    """Verify a checkpoint of a run, and print what was found; returns the exit status.

    Args:
        checkpoint: its folder, within that of its run.
        log: an exported log, in place of the one in the run's folder.
        steps: number of optimizer steps to draw and compute again; 0 computes none.
        completions: number of scored episodes to draw and score again.
        seed: of the draws; None for a new one.
        proof: digest of the proof, as it was printed when the checkpoint was handed over; empty if you were given none.
        as_json: print the result as JSON.

    Raises:
        SetupError: it is no checkpoint with a proof, or its log was trimmed.
        BusError: the log cannot be opened.
    """
    if steps:
        require_extra(TRAIN, "verify")
    folder = Path(checkpoint).absolute()
    checking = CheckpointCheck(folder, log, secrets.randbelow(SEEDS) if seed is None else seed)
    found = asyncio.run(checking.check(steps, completions, proof))
    sys.stdout.write(f"{msgspec.json.encode(found).decode() if as_json else found.to_text()}\n")
    return FORGED if found.forged else SOUND


class CheckpointCheck:
    """The checks of one checkpoint."""

    def __init__(self, folder: Path, log: Path | None, seed: int) -> None:
        """Raises SetupError if there is no proof."""
        self.folder, self.run = folder, RunFolder(folder.parent.parent)
        self.proof: Proof = read_proof(folder)
        self.random = Random(seed)
        self.log_file = log
        self.recipe: Recipe | None = None
        """Recipe of the log; None if it is not valid."""
        self.found = Verification(checkpoint=str(folder), proof=self.proof.digest(), seed=seed)

    async def check(self, steps: int, completions: int, proof: str) -> Verification:
        """Returns what was found."""
        with tempfile.TemporaryDirectory(prefix="areal-verify-") as scratch:
            copy = Path(scratch) / "log"
            log = await self._read_log(copy, completions)
            self._compare_proof(proof)
            self._compare_chain(log)
            self._compare_prefixes(log)
            self._compare_audit(log)
            self._compare_recipe(log)
            self._compare_files()
            self._compare_weights(log)
            await self._score_again(log)
            if not self.found.forged and steps:
                await self._compute_again(log, copy, steps)
        return self.found

    async def _read_log(self, copy: Path, completions: int) -> VerifiedLog:
        log = VerifiedLog(completions, self.random)
        place = None if self.log_file else self.run
        try:
            with LogWriter(copy, self.proof.run) as writer:
                async with aclosing(log_of(place, self.log_file or Path())) as envelopes:
                    async for envelope in envelopes:
                        if not log.chain.sequence and envelope.sequence > 1:
                            raise SetupError(
                                f"the log begins at event {envelope.sequence:,}: only a whole log proves how a"
                                ' checkpoint came about (log.keep = "all")'
                            )
                        if envelope.sequence > self.proof.sequence:
                            break
                        writer.write(envelope)
                        log.receive(envelope)
        except (BusError, RecordingDamaged) as error:
            self.found.forged.append(f"log: it cannot be read after event {log.chain.sequence:,}: {error}")
        return log

    def _compare_proof(self, stated: str) -> None:
        if not stated:
            self.found.left_out.append(
                f"the proof itself: --proof compares it with the digest {self.proof.digest()}, if you were given that"
                " beforehand; without it, log and proof may both be written anew"
            )
        self._note("proof", "it has the digest that you were given", stated, stated and self.proof.digest())

    def _note(self, name: str, equal: str, expected: str, actual: str) -> None:
        if expected != actual:
            self.found.forged.append(f"{name}: expected {expected}, but it is {actual or 'missing'}")
        elif expected:
            self.found.checked.append(f"{name}: {equal}")

    def _compare_chain(self, log: VerifiedLog) -> None:
        if log.chain.head == self.proof.head and log.chain.sequence == self.proof.sequence:
            self.found.checked.append(f"log: its {log.chain.sequence:,} events have the head of the hash chain")
            return
        sound, until = 0, self.proof.sequence
        for path in self.folder.parent.glob(f"*/{PROOF}"):
            other = read_proof(path.parent)
            if log.heads.get(other.sequence) == other.head:
                sound = max(sound, other.sequence)
            else:
                until = min(until, other.sequence)
        self.found.forged.append(
            f"log: the hash chain of its {log.chain.sequence:,} events has the head {log.chain.head}, the proof"
            f" {self.proof.head} after {self.proof.sequence:,}: an event from {sound + 1:,} to {until:,} was changed"
        )

    def _compare_prefixes(self, log: VerifiedLog) -> None:
        """Compare the beginning of a fork with its head at the fork, and with the proofs of the run that was forked."""
        for forked in log.forks:
            prefix = f"its {forked.prefix:,} events are those that the fork of {forked.parent} began with"
            self._note("log", prefix, forked.head, log.head_after(forked.prefix))
            for path in (self.run.path.parent / forked.parent / CHECKPOINTS).glob(f"*/{PROOF}"):
                other = read_proof(path.parent)
                if other.sequence <= forked.prefix:
                    name = f"{forked.parent}/{path.parent.name}"
                    self._note(name, "its log is the beginning of this", other.head, log.head_after(other.sequence))

    def _compare_audit(self, log: VerifiedLog) -> None:
        audit = log.auditor.audit
        faults = [*(str(fault) for fault in audit.all_faults()), *log.faults]
        self.found.forged += [f"log: {fault}" for fault in faults[:MOST_FAULTS]]
        if len(faults) > MOST_FAULTS:
            self.found.forged.append(f"log: {len(faults) - MOST_FAULTS} more; `areal-actors audit` has all")
        if not faults:
            self.found.checked.append(f"log: {audit.verdict()}")

    def _compare_recipe(self, log: VerifiedLog) -> None:
        self._note("recipe", "that of the log is that of the proof", self.proof.recipe, digest_of_recipe(log.recipe))
        try:
            self.recipe = msgspec.convert(log.recipe, Recipe)
        except msgspec.ValidationError as error:
            self.found.forged.append(f"recipe: that of the log is none of this version of areal-actors: {error}")
        path = self.run.path / "recipe.json"
        try:
            kept = digest_of_recipe(msgspec.json.decode(path.read_bytes()))
        except (OSError, msgspec.MsgspecError) as error:
            self.found.left_out.append(f"recipe: {path} cannot be read ({error})")
            return
        self._note("recipe", f"{path.name} is that of the log", digest_of_recipe(log.recipe), kept)

    def _compare_files(self) -> None:
        here = Path.cwd()
        for name, digest in self.proof.files.items():
            if not (here / name).exists():
                self.found.left_out.append(
                    f"{name}: not here; start the command in the folder in which the run was started"
                )
                continue
            self._note(name, "as when the run was started", digest, digest_of_file(here / name))
        if self.proof.program != (program := code_digest()):
            self.found.left_out.append(
                f"areal-actors: this is another version ({program}) than the run's ({self.proof.program}); steps may"
                " differ in rounding"
            )

    def _compare_weights(self, log: VerifiedLog) -> None:
        saved = log.saved.get(self.proof.step)
        if saved is None:
            self.found.forged.append(f"checkpoint: the log has none of step {self.proof.step}")
            return
        try:
            verify_manifest(self.folder, saved.manifest)
            self.found.checked.append("checkpoint: every file has the digest of the manifest, and that is in the log")
            checksum = checksum_of(stored_tensors(self.folder))
        except (CheckpointError, EngineError) as error:
            self.found.forged.append(f"checkpoint: {error}")
            return
        published = log.published.get(saved.step, "")
        self._note("weights", f"those that version {saved.step} was published with", published, checksum)

    async def _score_again(self, log: VerifiedLog) -> None:
        reward = self._reward()
        if reward is None:
            return
        differ = []
        for envelope in log.drawn:
            score = await rescore(envelope, reward)
            if score is not None and score.differs():
                differ.append(
                    f"reward: event {score.sequence:,}: episode {score.episode} was given {score.recorded:g}, but its"
                    f" output gets {score.error or f'{score.now:g}'}"
                )
            elif score is not None and (names := score.differing_metrics()):
                differ.append(
                    f"reward: event {score.sequence:,}: episode {score.episode} was given other numbers beside its"
                    f" reward than its output gets: {', '.join(names)}"
                )
        self.found.forged += differ[:MOST_FAULTS]
        if len(differ) > MOST_FAULTS:
            self.found.forged.append(f"reward: {len(differ) - MOST_FAULTS} more")
        self.found.drawn.append(Drawn("rewards", log.scored, len(log.drawn)))

    def _reward(self) -> Reward | None:
        """Returns the rule that scored the episodes; None if it is none that can be called here."""
        why, task = "", self.recipe.task if self.recipe else None
        is_rule = task and task.reward and not task.reward.startswith(MODEL)
        try:
            if task and is_rule and not has_judge(task.reward, task.reward_options):
                return resolve_reward(task.reward, Path.cwd(), task.reward_options)
        except ArealError as error:
            why = f": {error}"
        self.found.left_out.append(f"rewards: they are not of a rule that can be called here{why}")
        return None

    async def _compute_again(self, log: VerifiedLog, copy: Path, steps: int) -> None:
        kept = {0} | {saved for saved in log.saved if (self.folder.parent / f"step-{saved}").is_dir()}
        drawn = draw_steps(self.proof.step, kept, steps, self.random)
        before = len(self.found.forged)
        threads = self.recipe.trainer.threads or 1 if self.recipe else 1
        async with recomputation(threads) as recomputed:
            with SafeConsole(stderr=True).status("computing steps again"):
                versions = 0
                async for result in recomputed(copy, self.run.path, 0, drawn.by_start):
                    if result.error:
                        self.found.forged.append(f"steps: they cannot be computed again: {result.error}")
                        return
                    if result.version >= 0:
                        versions += 1
                        if result.checksum != (published := log.published.get(result.version)):
                            self.found.forged.append(
                                f"step {result.version}: the log has weights {published}, computed again they are"
                                f" {result.checksum}"
                            )
                            return
                    if result.step:
                        self._compare_step(result.step, result.sequences_checksum, result.metrics, log)
        if len(self.found.forged) == before:
            self.found.checked.append(f"steps: {versions} were computed again, to the last bit of their weights")
        self.found.drawn.append(Drawn("steps", self.proof.step, len(drawn.drawn)))

    def _compare_step(self, step: int, sequences: str, metrics: dict[str, float], log: VerifiedLog) -> None:
        logged = log.steps[step]
        self._differ(f"step {step}: sequences", logged.sequences_checksum, sequences)
        difference = metrics.get("train_infer_logprob_diff_max", 0.0)
        if difference > max(PARITY, 2 * logged.metrics.get("train_infer_logprob_diff_max", 0.0)):
            self.found.forged.append(
                f"step {step}: the log-probability of a sampled token differs by {difference:.2g} from that under its"
                f" weights, at most {PARITY:g} is rounding"
            )

    def _differ(self, name: str, expected: str, actual: str) -> None:
        if expected != actual:
            self.found.forged.append(f"{name}: the log has {expected}, computed again {actual}")
