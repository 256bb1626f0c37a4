"""`send` hands messages to an actor and collects what it emits, without a bus or waiting; `live` starts a whole run."""

from __future__ import annotations

import compileall
import itertools
import logging
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from random import Random

import pytest
import structlog
from hypothesis import settings
from support.live_run import LiveRun

from areal_actors.core.programs import USER_FOLDER, UV_RUN

settings.register_profile("areal", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("areal")


class LoggedMessage:
    """A message that an actor received, as it stands in the log."""

    def __init__(self, message):
        self.message = message

    def open(self, kind):
        assert isinstance(self.message, kind)
        return self.message


LONGEST_FILES = (
    "test_token_fidelity.py",
    "test_simulation.py",
    "test_resume.py",
    "test_benchmarks_quick.py",
    "test_rank_layouts.py",
    "test_docs_commands.py",
    "test_docs_first_hour.py",
    "test_docs_programs.py",
    "test_docs.py",
    "test_rank_models.py",
    "test_run.py",
    "test_reproducibility.py",
    "test_supervised_run.py",
    "test_poison_run.py",
    "test_engine_mismatch.py",
    "test_rank_group.py",
    "test_rank_group_models.py",
    "test_agents_frameworks.py",
    "test_gateway_fuzz.py",
    "test_tinker_process.py",
    "test_reward_model.py",
    "test_path.py",
    "test_gateway_tools.py",
    "test_rewards_math_references.py",
    "test_program_tests.py",
    "test_wrong_inputs.py",
    "test_rehearsal.py",
    "test_published_models.py",
    "test_vision_recipe.py",
    "test_weight_channels.py",
    "test_vocabulary.py",
)
"""They start first: one of them at the end would leave the other processors idle."""

LAST_START = "AREAL_TESTS_LAST_START"
"""Environment variable: seconds since 1970 after which no test starts."""


def pytest_configure(config):
    """One thread for each process's tensors, before torch is imported: threads that wait for each other stand still on
    a busy machine."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if sys.dont_write_bytecode and not hasattr(config, "workerinput"):
        compile_product()


def compile_product():
    """Bytecode of the package and the bus, where the machine's settings let no process write it.

    Else each of the hundreds of processes that tests start compiles the same modules again.
    """
    for folder in ("areal_actors", "bus/areal_bus"):
        compileall.compile_dir(Path(__file__).parents[1] / folder, quiet=2)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """The rewritten assertions of tests are kept for the next start; tests write no bytecode of what they import."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = before


def pytest_collection_modifyitems(items):
    places = {name: place for place, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """A run of the tests with a time of its own ends with what was not run by name, and not in the middle of a test."""
    if time.time() > float(os.environ.get(LAST_START, "inf")):
        pytest.skip(f"not run: the time of this run of the tests was over ({LAST_START})")


@pytest.fixture(autouse=True)
def _user_stands_in_the_current_folder(monkeypatch):
    """`just test` and `uv run pytest` give these to the tests, which answer as if they were called from a shell."""
    for name in (USER_FOLDER, UV_RUN):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _logging_as_before():
    """A program that a test calls in this process sets the log up; a handler that stayed would write to the closed
    output of that test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


class FakeContext:
    """The handling of one message in a test; questions are answered by the functions in `answers`, by question type."""

    def __init__(self, sequence, now, answers, replayed, log):
        self.cause, self.sequence, self.answers, self.replayed = f"{sequence:08d}", sequence, answers, replayed
        self.now = self.sent = now
        self.log = log
        self.random = Random(self.cause)

    async def ask(self, request, *, timeout, to="", retry_for_seconds=0.0):
        return self.answers[type(request)](request)

    async def stream(self, request, *, timeout, to=""):
        for part in self.answers[type(request)](request):
            yield part

    async def read(self, sequences):
        return [self.log[sequence] if sequence in self.log else self.answers[int](sequence) for sequence in sequences]

    def waiting(self, name, seconds):
        return nullcontext()


@pytest.fixture
def send():
    """`await send(actor, *messages)`: everything that the actor emits, in order; each actor has a log of its own."""
    logs = {}

    async def hand_over(actor, *messages, now=0.0, answers=None, replayed=False):
        sequences, log = logs.setdefault(actor, (itertools.count(1), {}))
        turns = [(message, FakeContext(next(sequences), now, answers or {}, replayed, log)) for message in messages]
        log.update({turn.sequence: LoggedMessage(message) for message, turn in turns})
        return [emitted for message, turn in turns async for emitted in actor.receive(message, turn)]

    return hand_over


@pytest.fixture
def live(tmp_path):
    """`live(*settings)`: a real run in real processes, which does not outlive the test."""
    runs = []

    def start(*settings, **options):
        run = LiveRun(tmp_path / f"runs{len(runs)}", *settings, **options)
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.abort()
