"""`areal audit`: folds the log of a live, finished or exported run; with `--recompute` its weights are recomputed."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from rich.console import Console

from areal_actors.audit.audit import Audit, RecomputeProgress
from areal_actors.audit.fold import AuditFold
from areal_actors.audit.report import report
from areal_actors.audit.sequences import SequencesCheck
from areal_actors.core.errors import SetupError
from areal_actors.core.snapshots import SnapshotStore
from areal_actors.display.recall import AUDIT, restore_fold
from areal_actors.messages import RunResumed, RunStarted, StepCompleted
from areal_actors.recipe.recipe import Recipe
from areal_actors.run.monitor import open_log
from areal_actors.run.run_folder import RunFolder, find_run
from areal_actors.sequences.credit import Credit
from bus.base import Envelope
from bus.errors import BusError, RecordingDamaged
from bus.nats import NatsBus
from bus.recorded import export_log, read_log

SOUND, FAULTY = 0, 1


class Auditor:
    """All folds of an audit over one log."""

    def __init__(self) -> None:
        self.fold = AuditFold()
        self.rows: SequencesCheck | None = None
        self.steps: dict[int, StepCompleted] = {}
        self.whole = True
        """True if the log is read from its first event: rows are rebuilt only from a whole log."""

    async def begin(self, bus: NatsBus, snapshots: Path) -> int:
        """Begin at the log's first event, or with a snapshot if it was trimmed; returns the sequence after which to read."""
        after = await restore_fold(bus, SnapshotStore(snapshots), self.fold, AUDIT)
        self.whole = after == 0
        return after

    @property
    def audit(self) -> Audit:
        """Findings so far."""
        return self.fold.audit

    def envelope(self, envelope: Envelope) -> None:
        """Fold the next envelope of the log."""
        message = self.fold.receive(envelope)
        if isinstance(message, RunStarted | RunResumed):
            self.rows = self.rows or (_sequences_check(message) if self.whole else None)
        elif isinstance(message, StepCompleted):
            self.steps.setdefault(message.step, message)
        if self.rows is not None:
            for check, sentence in self.rows.event(envelope.sequence, message):
                self.audit.fault(envelope.sequence, check, sentence)
            self.audit.sequences_checked = self.rows.checked

    async def log(self, envelopes: AsyncIterator[Envelope]) -> None:
        """Fold a whole log; a read error is a fault."""
        try:
            async for envelope in envelopes:
                self.envelope(envelope)
        except (BusError, RecordingDamaged) as error:
            self.audit.unreadable(self.audit.sequence + 1, f"the log cannot be read further: {error}")


def _sequences_check(began: RunStarted | RunResumed) -> SequencesCheck | None:
    """Returns None if the run has no episodes, or if another version wrote the recipe."""
    try:
        recipe = msgspec.convert(began.recipe, Recipe)
    except msgspec.ValidationError:
        return None
    return None if recipe.learns_from_examples() else SequencesCheck(Credit.of(recipe.task))


def audit(run: str, *, folder: Path, recompute: bool = False, console: Console | None = None) -> int:
    """Audit a run by its name (empty: the one started last), or an exported log by its path; returns the exit status.

    Args:
        run: name or path.
        folder: where runs are written.
        recompute: also recompute every weight version.
        console: prints the report.

    Raises:
        SetupError: there is no such run.
        BusError: its log cannot be opened.
    """
    screen = console or Console()
    found = asyncio.run(audit_run(run, folder=folder, recompute=recompute, console=screen))
    screen.print(report(found), highlight=False, markup=False, soft_wrap=True)
    return FAULTY if found.all_faults() else SOUND


async def audit_run(run: str, *, folder: Path, console: Console, recompute: bool = False) -> Audit:
    """Returns the findings of `audit`; same arguments."""
    log = Path(run)
    return await (_audit_file(log, None, recompute, console) if log.is_file() else _audit_folder(run, folder, recompute, console))  # noqa: ASYNC240


async def _audit_folder(run: str, folder: Path, recompute: bool, screen: Console) -> Audit:  # noqa: FBT001
    place = _run_folder(run, folder)
    async with open_log(place) as bus:
        if not recompute:
            auditor = Auditor()
            await auditor.log(bus.log(after=await auditor.begin(bus, place.snapshots)))
            return auditor.audit
        with tempfile.TemporaryDirectory(prefix="areal-audit-") as temporary:
            log = Path(temporary) / "log"
            await export_log(bus, log)
            return await _audit_file(log, place.path, recompute, screen)


def _run_folder(run: str, folder: Path) -> RunFolder:
    found, there = find_run(run, folder)
    if found is None:
        raise SetupError(f"{folder.absolute()} has no run '{run}', and no run's folder or log file has that path; {there}; see --folder")
    return found


async def _audit_file(log: Path, place: Path | None, recompute: bool, screen: Console) -> Audit:  # noqa: FBT001
    auditor = Auditor()
    await auditor.log(_read_file(log))
    if recompute and auditor.audit.lives:
        await _recompute(auditor, log, place, screen)
    return auditor.audit


async def _read_file(log: Path) -> AsyncIterator[Envelope]:
    for envelope in read_log(log):
        yield envelope


async def _recompute(auditor: Auditor, log: Path, place: Path | None, screen: Console) -> None:
    """Compare the recomputed steps with the log, until they differ or the log ends."""
    audit = auditor.audit
    wanted = max(audit.versions, default=0) if not audit.learns_from_examples() else audit.steps
    with screen.status("recomputing the weights from the log") as shown:
        threads = str(audit.setting("trainer", "threads") or 1)
        async with recomputation(log, place or log, steps=audit.steps, threads=threads) as results:
            async for found in results:
                if found.error:
                    audit.fault(0, "checksum", f"the weights cannot be recomputed: {found.error}")
                    return
                if found.phase:
                    shown.update(f"preparing the model: {found.phase}")
                if found.version >= 0 or found.step:
                    shown.update(f"recomputing the weights from the log: {max(found.version, found.step)} of {wanted} steps")
                if not audit.computed(found, auditor.steps.get(found.step)):
                    return
    audit.all_computed()


@asynccontextmanager
async def recomputation(log: Path, place: Path, *, steps: int, threads: str) -> AsyncIterator[AsyncIterator[RecomputeProgress]]:
    """Results of a process that repeats the steps of a log, since that loads torch; it ends with this block.

    Args:
        log: exported log.
        place: folder of the run, with a model that the run made; anything else if there is none.
        steps: number of steps.
        threads: CPU threads of the trainer.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "areal_actors.run.recompute", str(log), str(place), str(steps)),
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
        env={**os.environ, "OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"},
    )
    assert process.stdout is not None
    try:
        yield _decoded(process.stdout)
    finally:
        if process.returncode is None and not process.stdout.at_eof():
            process.kill()
        await process.wait()


async def _decoded(lines: asyncio.StreamReader) -> AsyncIterator[RecomputeProgress]:
    async for line in lines:
        yield msgspec.json.decode(line, type=RecomputeProgress)
