"""Traces one sample from the dataset to the new weights through a real run, and writes docs/path.md.

`python scripts/path.py`.
"""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from areal_actors.messages import KINDS
from areal_actors.supervision.nats_server import ACTORS
from areal_bus.message import Message

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/path.md"
PACKAGE = ROOT / "areal_actors"
RECIPE = ROOT / "recipes/gsm8k_grpo.toml"
SMALL = (
    *("profile=embedded", "steps=2", "evaluation.tasks=0", "warm_start.steps=40", "warm_start.tail_steps=10"),
    *("trainer.batch_size=4", "algorithm.group_size=4", "staleness_gate.max_concurrent=16"),
)
BESIDE = (
    *("client", "core", "runtime", "embedded", "supervised", "library", "sandbox", "chaos", "audit"),
    *("folder", "processes", "supervision", "recovery", "hosts", "run"),
)
"""Folders that are no part of the path: the foundation below every station, and what is built by name from the
recipe."""
RUN_SECONDS = 300

HOPS = {
    "TaskSource CapacityGranted": "The staleness gate has granted groups: each is the next draw of the dataset.",
    "RolloutWorker RunEpisode": "A rollout worker takes an episode off the queue and runs the user's agent.",
    "SessionManager OpenSession": "The gateway opens a session: a base URL and an API key for this episode.",
    "HTTP request": "The agent calls the model with an OpenAI or Anthropic client.",
    "SessionManager ModelRequest": (
        "The conversation is found, its prompt continued token by token, and an inference worker chosen."
    ),
    "InferenceWorker Generate": "The engine samples tokens; each carries its log-probability and weight version.",
    "SessionManager EpisodeScored": "Rewards are assigned to calls, and the trajectory is exported once.",
    "Batcher TrajectoryExported": "Groups become batches, oldest first, within the staleness bound.",
    "Trainer BatchFormed": "Trajectories become sequences, advantages, micro-batches and one optimizer step.",
    "InferenceWorker WeightsPublished": "The new weights are loaded between two tokens.",
    "StalenessGate WeightsLoaded": "The next groups may start.",
}
"""Stops of a sample, in order: actor and message."""


class Function(NamedTuple):
    """A function on the path."""

    file: str
    """Path relative to the repository."""
    line: int
    name: str


class Body(NamedTuple):
    """A function's source: lines, lines without signature and docstring, and the first line of the docstring."""

    lines: int
    body_lines: int
    meaning: str


def trace() -> dict[str, list[Function]]:
    """Run the main recipe for two steps.

    Returns the functions of each hop, both in the order in which a sample met them first.

    Raises:
        RuntimeError: the run failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "trace")
        out.mkdir()
        hook = f"{ROOT / 'scripts/path_trace'}:{ROOT}"
        environment = {
            **os.environ,
            "PYTHONPATH": hook,
            "AREAL_PATH_OUT": str(out),
            "AREAL_PATH_PACKAGE": str(PACKAGE),
            "AREAL_PATH_MESSAGES": ",".join(HOPS),
        }
        command = [sys.executable, "-m", "areal_actors", "run", str(RECIPE), f"folder={folder}/runs", *SMALL]
        ended = subprocess.run(
            command,
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if ended.returncode:
            raise RuntimeError(
                f"the traced run ended with status {ended.returncode}:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
            )
        return _in_order(line for file in out.iterdir() for line in file.read_text().splitlines())


def _in_order(lines: Iterator[str]) -> dict[str, list[Function]]:
    found: dict[str, dict[Function, float]] = {hop: {} for hop in HOPS}
    for line in lines:
        time, hop, file, number, name = line.split("\t")
        function = Function(str(Path(file).relative_to(ROOT)), int(number), name)
        if hop in found and function.file.split("/")[1] not in BESIDE:
            found[hop][function] = min(float(time), found[hop].get(function, float("inf")))
    by_time = sorted((hop for hop in HOPS if found[hop]), key=lambda hop: min(found[hop].values()))
    return {hop: sorted(found[hop], key=found[hop].__getitem__) for hop in by_time}


# ---------------------------------------------------------------- the page


def page(path: dict[str, list[Function]]) -> str:
    """Returns the text of docs/path.md."""
    return "\n".join([*_head(path), *_ring(), *_hops(path)]).rstrip() + "\n"


def figures(path: dict[str, list[Function]]) -> dict[str, int]:
    """Files on the path, functions that a sample meets, their lines, and those of bodies without docstrings."""
    functions = {function for functions in path.values() for function in functions}
    bodies = [_bodies(file)[line, name.rpartition(".")[2]] for file, line, name in functions]
    return {
        "files": len({function.file for function in functions}),
        "functions": len(functions),
        "lines": sum(body.lines for body in bodies),
        "body_lines": sum(body.body_lines for body in bodies),
    }


def _head(path: dict[str, list[Function]]) -> Iterator[str]:
    found = figures(path)
    yield "# The path of one sample\n"
    yield "After this page you know the functions that one sample meets, from the dataset to the weights.\n"
    yield (
        "Generated by `just path` from a traced run of `recipes/gsm8k_grpo.toml`: the functions that one sample meets,"
        " from the"
    )
    yield (
        "dataset to the weights trained on it. The user's agent, the generation engine, the bus and the foundation"
        " below all"
    )
    yield "stations (`core/`, `runtime/`) are beside it.\n"
    yield (
        f"{found['functions']} functions in {found['files']} files: {found['lines']:,} lines, {found['body_lines']:,}"
        " of them bodies.\n"
    )


def _ring() -> Iterator[str]:
    yield "## The ring\n\nMessages between actors, from the signatures of their handlers.\n\n```"
    for source, target, kinds in _edges():
        yield f"{source:>15} ── {', '.join(kinds)} ──▶ {target}"
    yield "```\n"


def _edges() -> list[tuple[str, str, list[str]]]:
    on_path = [hop.split() for hop in HOPS if hop != "HTTP request"]
    edges: dict[tuple[str, str], list[str]] = {}
    for receiver, message in on_path:
        kind = next(kind for kind in KINDS if kind.__name__ == message)
        for sender in _senders(kind):
            edges.setdefault((sender, receiver), []).append(message)
    return [(source, target, kinds) for (source, target), kinds in edges.items()]


def _senders(kind: type[Message]) -> Sequence[str]:
    found = [
        actor.__name__
        for actor in ACTORS.values()
        if kind in actor.asks or any(kind in one.emits for one in actor.handlers.values())
    ]
    return found or ["agent"]


def _hops(path: dict[str, list[Function]]) -> Iterator[str]:
    met: set[Function] = set()
    for number, hop in enumerate(HOPS, start=1):
        actor, _, message = hop.partition(" ")
        title = hop if hop == "HTTP request" else f"`{message}` → {actor}"
        yield f"## {number}. {title}\n\n{HOPS[hop]}\n\n| file | function | |\n|---|---|---|"
        for function in path.get(hop, ()):
            if function not in met:
                met.add(function)
                file, line, name = function
                place = file.removeprefix("areal_actors/")
                meaning = _bodies(file)[line, name.rpartition(".")[2]].meaning.replace("|", "\\|")
                yield f"| [{place}](../{file}) | `{name.replace('.<locals>', '')}` | {meaning} |"
        yield ""


@functools.cache
def _bodies(file: str) -> dict[tuple[int, str], Body]:
    found: dict[tuple[int, str], Body] = {}
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            docstring, last = ast.get_docstring(node) or "", node.end_lineno or first
            statements = node.body[1:] if docstring else node.body
            body_lines = last - statements[0].lineno + 1 if statements else 0
            found[first, node.name] = Body(last - first + 1, body_lines, docstring.split("\n")[0])
    return found


if __name__ == "__main__":
    PAGE.write_text(page(trace()), encoding="utf-8")
    print(f"wrote {PAGE}")
