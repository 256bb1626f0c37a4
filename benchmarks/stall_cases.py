"""Stalls and invalid inputs of `stalls.py`: fault, settings of the run, and the expected report."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stall_run import StallRun

HERE = Path(__file__).parent
FAULTS = {True: HERE / "stall_functions.py", False: HERE / "stall_faults.py"}

Injection = Callable[[StallRun], None]


@dataclass(frozen=True)
class Case:
    """One fault and its report."""

    name: str
    words: str
    """A pattern that the report must match: an event or a line of output."""
    settings: tuple[str, ...] = ()
    ends: int = 1
    """Exit status of the run."""
    patch: str = ""
    """Patch that `stall_site/sitecustomize.py` applies in the processes of the run."""
    after: int = 0
    """Number of normal calls before the fault."""
    inject: Injection | None = None
    """Fault injected from outside; returns when it is active."""
    quick: bool = False
    """True if the case runs with `--quick`."""
    others: tuple[str, ...] = ()
    """Patterns that must not match any report."""


def fault(setting: str, name: str) -> str:
    """A setting that names a class in `stall_faults.py` or a function in `stall_functions.py`."""
    return f"{setting}={FAULTS[name.islower()]}:{name}"


def stopped(process: str) -> Injection:
    """SIGSTOP one process permanently after the first step."""

    def inject(run: StallRun) -> None:
        run.until_step(1)
        run.send(process, signal.SIGSTOP)

    return inject


def paused(process: str, seconds: float) -> Injection:
    """SIGSTOP a process, and SIGCONT it after a while."""

    def inject(run: StallRun) -> None:
        run.until_step(1)
        run.pause([process], seconds)

    return inject


def paused_together(run: StallRun) -> None:
    """SIGSTOP all processes except the launcher and nats-server for a while."""
    run.until_step(1)
    run.pause(run.workers(), 7.0)


def interrupted(run: StallRun) -> None:
    """SIGINT after a step."""
    run.until_step(1)
    run.send("launcher", signal.SIGINT)


def killed(process: str) -> Injection:
    """SIGKILL one process after the first step."""

    def inject(run: StallRun) -> None:
        run.until_step(1)
        run.send(process, signal.SIGKILL)

    return inject


def rank(number: signal.Signals) -> Injection:
    """Send a signal to the last rank of a trainer of several processes."""

    def inject(run: StallRun) -> None:
        run.until_step(1)
        run.send_to_rank(number)

    return inject


def row_removed(run: StallRun) -> None:
    """Truncate the dataset's file during the run."""
    run.until_step(1)
    run.injected = time.time()
    run.dataset.write_text(run.dataset.read_text()[:200])


KILLED_STOPPED = r"{} .*failed: no heartbeat of .* is stopped \(SIGSTOP"
STEPS = (
    "steps=12",
    "generation.scripted.token_seconds=0.05",
    "task.retries=9",
    "watchdog.max_failures_in_a_row=64",
    "watchdog.max_stall_seconds=3600",
)
"""Settings of runs that continue after the fault."""
LONG = "steps=100000"
LOADING = (LONG, "watchdog.max_stall_seconds=3600")
RANKS = ("trainer.ranks=2", "trainer.rank_timeout_seconds=60")
TRAINER = "areal_actors.training.torch_trainer:TorchTrainer"
FIRST = "batcher.max_filtered_batches=4"
EVALUATED = ("evaluation.tasks=4", "evaluation.every_steps=0")

PAUSES = (
    *(
        Case(
            f"SIGSTOP {process}",
            KILLED_STOPPED.format(actor),
            STEPS,
            0,
            inject=stopped(process),
            quick=process == "rollout_worker",
        )
        for process, actor in (
            ("control", "(staleness_gate|batcher)-0"),
            ("gateway", "session_manager-0"),
            ("rollout_worker", "rollout_worker-0"),
            ("reward_worker", "reward_worker-0"),
            ("inference_worker", "inference_worker-0"),
            ("trainer", "trainer-0"),
        )
    ),
    Case(
        "gateway paused for 2 s",
        "finished after",
        STEPS,
        0,
        inject=paused("gateway", 2.0),
        others=("failed: no heartbeat",),
    ),
    Case(
        "launcher paused for 8 s (Ctrl-Z)",
        "supervisor's own process was paused for",
        STEPS,
        0,
        inject=paused("launcher", 8.0),
        others=("failed: no heartbeat",),
        quick=True,
    ),
    Case(
        "nats-server paused for 8 s",
        r"nats-server .*(has not answered the supervisor|did not answer the supervisor)",
        STEPS,
        0,
        inject=paused("nats-server", 8.0),
        others=("failed: no heartbeat",),
        quick=True,
    ),
    Case(
        "nats-server stopped permanently",
        r"ended early: nats-server \(process \d+, stopped by SIGSTOP\) has not answered the supervisor for",
        (LONG,),
        inject=stopped("nats-server"),
    ),
    Case(
        "all workers paused together for 7 s",
        "no process has sent a heartbeat for",
        STEPS,
        0,
        inject=paused_together,
        others=("failed: no heartbeat",),
    ),
    Case(
        "SIGKILL inference_worker",
        "inference_worker-0 failed: killed by SIGKILL",
        STEPS,
        0,
        inject=killed("inference_worker"),
    ),
)

STARTS = (
    Case(
        "agent's constructor hangs",
        r"failed twice at its start .*rollout_worker-0 did not start",
        (LONG, fault("task.agent", "StartHangs")),
    ),
    Case(
        "agent's constructor works for 8 s of CPU time",
        "finished after",
        ("steps=1", fault("task.agent", "StartWorks")),
        0,
        others=("did not start",),
    ),
    Case(
        "replacement that never starts",
        r"failed twice at its start .*rollout_worker-0 did not start",
        (LONG, "watchdog.max_stall_seconds=3600", fault("task.agent", "ImportHangs")),
        inject=killed("rollout_worker"),
        quick=True,
    ),
    Case(
        "agent's constructor raises",
        "failed twice at its start.*no key in the environment",
        (LONG, fault("task.agent", "ConstructorAgent")),
    ),
    Case("agent with another signature", r"`run` takes \(task\)", (LONG, fault("task.agent", "SignatureAgent"))),
    Case("agent missing", "no class `MissingAgent`", (LONG, fault("task.agent", "MissingAgent")), 2),
    Case(
        "engine's constructor hangs",
        "has not loaded weight version 0 within watchdog.load_seconds",
        (*LOADING, fault("generation.engine", "MadeHangs")),
    ),
    Case(
        "engine's constructor raises",
        "no such device: /dev/accelerator0",
        (LONG, fault("generation.engine", "MadeRaises")),
    ),
    Case(
        "model preparation hangs",
        "no progress for .*trainer-0 handles 1 RunStarted",
        (LONG,),
        patch=f"{TRAINER}.__init__:hang",
    ),
    Case("trainer.device = cuda without one", "no CUDA device", (LONG, "trainer.device=cuda"), 1),
    Case("max_concurrent = 0", "staleness_gate.max_concurrent", (LONG, "staleness_gate.max_concurrent=0"), 2),
    Case("rollout_worker.count = 0", "a run needs its rollout_worker", (LONG, "actors.rollout_worker.count=0"), 2),
    Case("trainer.batch_size = 0", "trainer.batch_size", (LONG, "trainer.batch_size=0"), 2),
    Case("dataset of no rows", "empty.jsonl", (LONG, "task.dataset={folder}/empty.jsonl"), 1),
    Case(
        "dataset row that becomes unreadable",
        "dataset.jsonl",
        (LONG, "task.dataset={folder}/dataset.jsonl", "task.held_out=0"),
        1,
        inject=row_removed,
    ),
)

EPISODES = (
    Case("agent hangs", "did not return within|no reply|timeout", (LONG, fault("task.agent", "HangingAgent"))),
    Case("agent raises", "ValueError: no idea", (LONG, fault("task.agent", "RaisingAgent")), quick=True),
    Case(
        "agent blocks the event loop",
        "no heartbeat of rollout_worker-0|blocked the event loop",
        (LONG, fault("task.agent", "BlockingAgent")),
    ),
    Case("agent returns a list", r"returned \['not', 'a', 'reward'\]", (LONG, fault("task.agent", "NonsenseAgent"))),
    Case("agent returns nan", "returned nan", (LONG, fault("task.agent", "NanAgent"))),
    Case("agent makes no model call", "no model call", (LONG, fault("task.agent", "SilentAgent"))),
    Case("agent returns None always", "episodes in a row were rejected", (LONG, fault("task.agent", "NoneAgent"))),
    Case("reward hangs", "hung for more than", (LONG, fault("task.reward", "reward_hangs"))),
    Case("reward raises", "KeyError", (LONG, fault("task.reward", "reward_raises"))),
    Case("reward is nan", "a reward must be finite, got nan", (LONG, fault("task.reward", "reward_nan"))),
    Case(
        "reward takes no output",
        "must take the task's row and the output",
        (LONG, fault("task.reward", "reward_wrong")),
        2,
    ),
    Case(
        "filter refuses all",
        "batcher.filter has dropped",
        (LONG, fault("batcher.filter", "filter_all"), FIRST),
        quick=True,
    ),
    Case("filter raises", "no such reward", (LONG, fault("batcher.filter", "filter_raises"))),
    Case(
        "every reward is the same under dynamic_sampling",
        "batcher.dynamic_sampling has dropped",
        (LONG, fault("task.reward", "reward_constant"), "batcher.dynamic_sampling=true", FIRST),
    ),
    Case(
        "should_accept refuses all",
        "episodes in a row were rejected",
        (LONG, fault("task.should_accept", "accept_none")),
    ),
    Case(
        "should_accept raises", "LookupError: nothing to look at", (LONG, fault("task.should_accept", "accept_raises"))
    ),
    Case(
        "evaluation that never ends",
        "did not return within|waits for the evaluation before the first step",
        (LONG, *EVALUATED, fault("task.agent", "HangingEvaluationAgent")),
    ),
)

ENGINES = (
    Case(
        "engine never answers",
        "no answer|did not return within|Generate from inference_worker-0",
        (LONG, fault("generation.engine", "SilentEngine")),
    ),
    Case(
        "engine takes 5 s for a token",
        "no answer|did not return within|Generate from inference_worker-0",
        (LONG, "generation.scripted.token_seconds=5"),
    ),
    Case("engine raises always", "the device is out of memory", (LONG, fault("generation.engine", "RaisingEngine"))),
    Case(
        "engine ends its process",
        r"inference_worker.*ended with status 11|twice at its start",
        (LONG, fault("generation.engine", "CrashingEngine")),
    ),
    Case(
        "weights after the first never load",
        r"inference_worker-0 still serves weight version 0 while version \d+ was published|has not loaded weight"
        r" version 1 within",
        (LONG, fault("generation.engine", "LoadHangs")),
        quick=True,
    ),
    Case(
        "first weights never load",
        "has not loaded weight version 0 within watchdog.load_seconds",
        (*LOADING, fault("generation.engine", "FirstLoadHangs")),
    ),
    Case("loading weights raises", "checksum of the weights differs", (LONG, fault("generation.engine", "LoadRaises"))),
    Case(
        "trainer hangs in a step",
        "no progress for .*trainer-0 handles 1 BatchFormed",
        (LONG,),
        patch=f"{TRAINER}.step:hang",
        after=2,
        quick=True,
    ),
    Case(
        "SIGKILL of a rank of the trainer",
        "trainer rolled back to step",
        (*STEPS, *RANKS),
        0,
        inject=rank(signal.SIGKILL),
    ),
    Case(
        "SIGSTOP of a rank of the trainer",
        "trainer rolled back to step",
        (*STEPS, *RANKS),
        0,
        inject=rank(signal.SIGSTOP),
    ),
    Case("trainer raises in a step", "the device does not answer", (LONG,), patch=f"{TRAINER}.step:raise", after=1),
    Case(
        "trainer hangs in saving",
        "no progress for .*trainer-0 handles 1 SaveCheckpoint",
        ("steps=2",),
        patch=f"{TRAINER}.save:hang",
    ),
    Case("saving is slow", "finished after", ("steps=2",), 0, patch=f"{TRAINER}.save:slow"),
    Case(
        "saving hangs in an interrupted run",
        "did not save a checkpoint within watchdog.save_seconds",
        (LONG,),
        130,
        patch=f"{TRAINER}.save:hang",
        inject=interrupted,
    ),
    Case(
        "disk hangs in making a checkpoint final",
        "no progress for .*checkpointer-0 handles 1 CheckpointStaged",
        ("steps=2",),
        patch="areal_actors.training.checkpointer:_make_final:hang",
    ),
)

CASES = (*PAUSES, *STARTS, *EPISODES, *ENGINES)
