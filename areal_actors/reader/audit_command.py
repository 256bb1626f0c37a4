"""`areal-actors audit`.

It folds the log of a live, finished or exported run; with `--recompute` its weights are recomputed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import msgspec
from rich.console import Console

from areal_actors.audit.audit import Audit
from areal_actors.audit.fold import AuditFold
from areal_actors.audit.recomputation import RecomputeOrder, RecomputeProgress
from areal_actors.audit.report import report
from areal_actors.audit.sequences import SequencesCheck
from areal_actors.core.errors import SetupError
from areal_actors.core.extras import TRAIN, require_extra
from areal_actors.core.module_command import module_command
from areal_actors.core.snapshots import SnapshotStore
from areal_actors.display.safe_console import SafeConsole
from areal_actors.display.snapshot_start import AUDIT, restore_fold
from areal_actors.folder.connections import open_log
from areal_actors.folder.run_folder import RunFolder, find_run
from areal_actors.messages import RunResumed, RunStarted, StepCompleted
from areal_actors.messages.run import IMPORTED
from areal_actors.reader.erased_sessions import find_erased
from areal_actors.recipe.recipe import Recipe
from areal_actors.sequences.credit import Credit
from areal_bus.base import Envelope
from areal_bus.errors import BusError, RecordingDamaged
from areal_bus.nats import NatsBus
from areal_bus.recorded import export_log, read_log

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
        """Begin at the log's first event, or with a snapshot if it was trimmed.

        Returns the sequence after which to read.
        """
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
        if isinstance(message, RunStarted) and message.profile == IMPORTED:
            raise SetupError(
                "this log was imported from another program, whose episodes prove no run; audit a run of this one"
            )
        if isinstance(message, RunStarted | RunResumed):
            self._take_credit(message)
        elif isinstance(message, StepCompleted):
            self.steps.setdefault(message.step, message)
        if self.rows is not None:
            for check, sentence in self.rows.event(envelope.sequence, message):
                self.audit.fault(envelope.sequence, check, sentence)
            self.audit.sequences_checked = self.rows.checked

    def _take_credit(self, began: RunStarted | RunResumed) -> None:
        """Rebuild sequences with the credit of this recipe from now on, if the log has been read from its beginning."""
        check = _sequences_check(began) if self.whole else None
        if self.rows is not None and check is not None:
            self.rows.credit = check.credit
        self.rows = self.rows or check

    async def log(self, envelopes: AsyncIterator[Envelope]) -> None:
        """Fold a whole log; a read error is a fault.

        Raises:
            SetupError: it has the episodes of another program.
        """
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
        SetupError: there is no such run, a package for `recompute` is absent, or the log is one that was imported.
        BusError: its log cannot be opened.
    """
    if recompute:
        require_extra(TRAIN, "--recompute")
    screen = console or SafeConsole()
    audited = asyncio.run(audit_run(run, folder=folder, recompute=recompute, console=screen))
    erased = None if Path(run).is_file() else find_erased(run, folder, audited.setting)
    for name in erased.before if erased is not None else ():
        audited.fault(0, "erased", f"session {name} was erased before this run began, and has rows in its data")
    screen.print(report(audited), highlight=False, markup=False, soft_wrap=True)
    if erased is not None:
        screen.print(erased.describe(), highlight=False, markup=False, soft_wrap=True)
    return FAULTY if audited.all_faults() else SOUND


async def audit_run(run: str, *, folder: Path, console: Console, recompute: bool = False) -> Audit:
    """Returns the findings of `audit`; same arguments."""
    log = Path(run)
    return await (
        _audit_file(log, recompute, console) if log.is_file() else _audit_folder(run, folder, recompute, console)  # noqa: ASYNC240
    )


async def _audit_folder(run: str, folder: Path, recompute: bool, screen: Console) -> Audit:  # noqa: FBT001
    place = _run_folder(run, folder)
    async with open_log(place) as bus:
        if not recompute:
            auditor = Auditor()
            await auditor.log(bus.log(after=await auditor.begin(bus, place.snapshots)))
            return auditor.audit
        async with recomputation(_threads(await _first(bus.log()))) as recomputed:
            with tempfile.TemporaryDirectory(prefix="areal-audit-") as temporary:
                log = Path(temporary) / "log"
                await export_log(bus, log)
                return await _recompute_log(log, place.path, recomputed, screen)


def _run_folder(run: str, folder: Path) -> RunFolder:
    run_path, hint = find_run(run, folder)
    if run_path is None:
        raise SetupError(
            f"{folder.absolute()} has no run '{run}', and no run's folder or log file has that path; {hint}; see"
            " --folder"
        )
    return run_path


async def _audit_file(log: Path, recompute: bool, screen: Console) -> Audit:  # noqa: FBT001
    if recompute:
        async with recomputation(_threads(await _first(_read_file(log)))) as recomputed:
            return await _recompute_log(log, log, recomputed, screen)
    auditor = Auditor()
    await auditor.log(_read_file(log))
    return auditor.audit


async def _recompute_log(log: Path, place: Path, recomputed: Recomputed, screen: Console) -> Audit:
    auditor = Auditor()
    await auditor.log(_read_file(log))
    if auditor.audit.lives:
        await _compare(auditor, recomputed(log, place, auditor.audit.steps), screen)
    return auditor.audit


async def _read_file(log: Path) -> AsyncIterator[Envelope]:
    for envelope in read_log(log):
        yield envelope


async def _first(log: AsyncIterator[Envelope]) -> Envelope | None:
    """Returns the first event of a log; None if it has none, or cannot be read, which the audit will report."""
    with suppress(BusError, RecordingDamaged):
        return await anext(log, None)
    return None


def _threads(first: Envelope | None) -> int:
    """Returns the CPU threads of the trainer of a log that begins with this event."""
    if first is None or first.subject != RunStarted.subject:
        return 1
    return int(first.open(RunStarted).recipe["trainer"].get("threads") or 1)


async def _compare(auditor: Auditor, results: AsyncIterator[RecomputeProgress], screen: Console) -> None:
    """Compare the recomputed steps with the log, until they differ or the log ends."""
    audit = auditor.audit
    wanted = max(audit.versions, default=0) if not audit.learns_from_examples() else audit.steps
    with screen.status("recomputing the weights from the log") as shown:
        async for recomputed in results:
            if recomputed.error:
                audit.fault(0, "checksum", f"the weights cannot be recomputed: {recomputed.error}")
                return
            if recomputed.phase:
                shown.update(f"preparing the model: {recomputed.phase}")
            if recomputed.version >= 0 or recomputed.step:
                shown.update(
                    f"recomputing the weights from the log: {max(recomputed.version, recomputed.step)} of {wanted}"
                    " steps"
                )
            if not audit.compare_computed(recomputed, auditor.steps.get(recomputed.step)):
                return
    audit.all_computed()


class Recomputed(Protocol):
    """Has a process repeat the steps of a log, and returns their results."""

    def __call__(
        self, log: Path, place: Path, steps: int, stretches: Mapping[int, int] = ..., /
    ) -> AsyncIterator[RecomputeProgress]:
        """`log` is an exported log, `place` the run's folder if it has a model that the run made.

        `stretches` as in `RecomputeOrder`.
        """


@asynccontextmanager
async def recomputation(threads: int) -> AsyncIterator[Recomputed]:
    """A process that repeats the steps of a log.

    It loads torch at once, while its log is still read, and ends with this block.

    Args:
        threads: CPU threads of the trainer.
    """
    with tempfile.TemporaryDirectory(prefix="areal-audit-") as scratch:
        process = await asyncio.create_subprocess_exec(
            *module_command("areal_actors.replay.recompute"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 20,
            env={
                **os.environ,
                "OMP_NUM_THREADS": str(threads),
                "OMP_WAIT_POLICY": "PASSIVE",
                "TOKENIZERS_PARALLELISM": "false",
                "PYTHONWARNINGS": "ignore",
                "TMPDIR": scratch,  # a process that is killed removes nothing
            },
        )
        assert process.stdin is not None
        assert process.stdout is not None
        into, lines = process.stdin, process.stdout

        def read_progress(
            log: Path, place: Path, steps: int, stretches: Mapping[int, int] = MappingProxyType({}), /
        ) -> AsyncIterator[RecomputeProgress]:
            order = RecomputeOrder(log=str(log), place=str(place), steps=steps, stretches=dict(stretches))
            into.write(msgspec.json.encode(order) + b"\n")
            return _read_results(process, lines)

        try:
            yield read_progress
        finally:
            if process.returncode is None and not lines.at_eof():
                process.kill()
            await process.wait()


async def _read_results(
    process: asyncio.subprocess.Process, lines: asyncio.StreamReader
) -> AsyncIterator[RecomputeProgress]:
    """Yields the results of a process; an end by a signal or an exception is an error, too."""
    async for line in lines:
        yield msgspec.json.decode(line, type=RecomputeProgress)
    if code := await process.wait():
        end = (
            f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"ended with status {code}; its last lines are above"
        )
        yield RecomputeProgress(error=f"the process that repeats the steps {end}")
