"""Runs stages one after another, each in a process of its own; a second start goes on where the first ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.export.command import export
from areal_actors.folder.run_folder import RunFolder
from areal_actors.reader.run_files import read_run_files
from areal_actors.stages.check_stages import check_stages, print_line
from areal_actors.stages.serve_users import serve_users
from areal_actors.stages.stage_file import Stage, StageFile

FINISHED = "finished"
SERVED = " served"
"""After the name of a stage in the record of stages: its users have come and gone."""


def run_stages(stages: StageFile, root: Path) -> int:
    """Check, then run all stages; returns the exit status of the first that fails, else 0.

    A stage that has finished with the same words is not run again, unless one before it was; one that was interrupted
    is resumed.

    Args:
        stages: the stages.
        root: folder of their file.

    Raises:
        RecipeError: a recipe or a setting is invalid; nothing was started.
        SetupError: a stage has no checkpoint or no episodes for a later one.
    """
    check_stages(stages, root)
    folder = Path(stages.folder)
    record = folder / f"{stages.run}.stages.json"
    words_before: dict[str, list[str]] = msgspec.json.decode(record.read_bytes()) if record.is_file() else {}
    is_fresh = False
    for number, stage in enumerate(stages.stage, start=1):
        run = RunFolder(folder / stages.run_of(stage.name))
        status = read_run_files(run).status() if (run.path / "recipe.json").is_file() else ""
        if stage.command == "serve" and status:
            status = FINISHED if f"{stage.name}{SERVED}" in words_before else ""
        words = stages.words(stage, root)
        title = f"stage {number} of {len(stages.stage)}, {stage.name}: run '{run.path.name}'"
        if is_fresh or not status or words_before.get(stage.name) != words:
            is_fresh = True
            print_line(f"{title} starts")
            words_before[stage.name] = words
            folder.mkdir(parents=True, exist_ok=True)
            record.write_bytes(msgspec.json.encode(words_before))
            code = _start_stage(stages, stage, words, root)
        elif status == FINISHED:
            print_line(f"{title} has finished already")
            continue
        else:
            is_fresh = True
            print_line(f"{title} is resumed")
            code = start_command(["resume", run.path.name, "--folder", stages.folder])
        if not code and stage.command == "serve":
            words_before[f"{stage.name}{SERVED}"] = []
            record.write_bytes(msgspec.json.encode(words_before))
        if code:
            print_line(f"{title} ended with exit status {code}; the same command goes on from here")
            return code
    return 0


def _start_stage(stages: StageFile, stage: Stage, words: list[str], root: Path) -> int:
    """Run a stage that is not resumed; returns its exit status."""
    match stage.command:
        case "run":
            return start_command(["run", *words, *_inputs(stages, stage)])
        case "learn":
            return start_command(["learn", *words])
        case "serve":
            program = [str((root / stage.users).absolute()), *stage.user_arguments]
            return serve_users(
                [*words, *_inputs(stages, stage)], Path(stages.folder) / stages.run_of(stage.name), program
            )


def start_command(words: list[str]) -> int:
    """Run a command of this program in a process of its own, which gets the signals of this one.

    Returns its exit status, as a shell would.
    """
    process = subprocess.Popen([sys.executable, "-m", "areal_actors", *words])

    def forward(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGHUP)}
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the process itself
    try:
        code = process.wait()
    finally:
        for number, handler in {**before, signal.SIGINT: ignored}.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _inputs(stages: StageFile, stage: Stage) -> list[str]:
    """Returns the settings that name what earlier stages made."""
    folder, settings = Path(stages.folder), list[str]()
    if stage.model_of:
        settings.append(f"model={newest_checkpoint(folder / stages.run_of(stage.model_of))}")
    if stage.candidate_of:
        settings.append(f"gateway.candidate.model={newest_checkpoint(folder / stages.run_of(stage.candidate_of))}")
    if stage.episodes_of:
        run = stages.run_of(stage.episodes_of)
        path = (folder / run / f"{stage.episodes_as}-for-{stage.name}.jsonl").absolute()
        export(
            run,
            path,
            kind=stage.episodes_as,
            best=stage.best,
            least_reward=stage.least_reward,
            margin=stage.margin,
            folder=folder,
        )
        settings.append(f"task.dataset={path}")
    return settings


def newest_checkpoint(run: Path) -> Path:
    """Returns the best checkpoint of a run, else its newest.

    Raises:
        SetupError: it has none.
    """
    checkpoints = run / "checkpoints"
    if (best := checkpoints / "best").is_dir():
        return best.resolve()
    kept = sorted(checkpoints.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    if not kept:
        raise SetupError(f"run '{run.name}' has no checkpoint, which the next stage begins with")
    return kept[-1].absolute()
