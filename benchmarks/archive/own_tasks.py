"""Held-out mean reward of the embedded model on tasks that it was not made for, before and after learning them.

    PYTHONPATH=benchmarks python benchmarks/archive/own_tasks.py [--seeds 0 1 2]
        [--tasks nim reading look_up notes] [SETTING ...]

Each task is learnt with its recipe in recipes/, from the reward alone: the game `nim`, the text `reading`, the tool
`look_up`, the number `notes` that is kept over three compactions of the history. Where the
task has demonstrations, it is also learnt in two runs, recipes/demonstrations.toml and then the recipe from its
checkpoint. Mean rewards are those of the first and the last evaluation of a run, sampled and greedy; they do not depend
on other work of the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from history import SMALL, append, areal, parse_arguments, table

Figures = dict[str, Any]
TASKS: dict[str, str] = {"nim": "", "reading": "", "look_up": "tools", "notes": "answer"}
"""Tasks, and the skill of the warm start of those that have demonstrations."""
COLUMNS = ("before", "demonstrated", "after", "greedy before", "greedy demonstrated", "greedy after")
"""Mean reward of the warm-started model, after the demonstrations, and after the last step."""
ALONE, AFTER = "reward alone", "demonstrations, then reward"


def main() -> None:
    """Measure, print a table and append a line to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="SETTING", help="of the recipes")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--demonstrated", type=int, default=200, help="steps on demonstrations")
    quick = {"seeds": [0], "tasks": ["look_up"], "demonstrated": 2, "settings": ["steps=1", *SMALL]}
    options = parse_arguments(parser, quick)
    found: list[Figures] = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            for task in options.tasks:
                for figures in learn(task, seed, Path(folder), options):
                    found.append(figures)
                    shown = [f"{name} {figures[name]:.3f}" for name in COLUMNS if name in figures]
                    print(f"{task}, {figures['way']}, seed {seed}: {', '.join(shown)}", flush=True)
    rows = list(spreads(found))
    print(table(("task", "way", "steps", *COLUMNS), rows))
    if not options.no_history:
        names = ("seeds", "demonstrated", "settings")
        print(append("own_tasks", {**{name: getattr(options, name) for name in names}, "runs": found, "spreads": rows}))


def learn(task: str, seed: int, folder: Path, options: argparse.Namespace) -> Iterator[Figures]:
    """Learn a task from the reward alone, and after demonstrations if it has them."""
    recipe = f"recipes/{task}.toml"
    words = ["profile=embedded", f"seed={seed}", f"folder={folder}", *options.settings]
    alone = run([recipe, *words], folder)
    yield {"task": task, "seed": seed, "way": ALONE, **alone}
    if skill := TASKS[task]:
        name = f"{task.replace('_', '-')}-demonstrations"
        shown = [f"run={name}", f"steps={options.demonstrated}", f"task.dataset=agents/{task}.py:demonstrations"]
        supervised = [word for word in words if not word.startswith(("steps=", "algorithm.", "staleness_gate."))]
        areal("run", "recipes/demonstrations.toml", *supervised, *shown, f'warm_start.skills=["{skill}"]')
        model = folder / name / "checkpoints" / f"step-{options.demonstrated}"
        after = run([recipe, *words, f"run={name}-reward", f"model={model}"], folder)
        before = {column: alone[column] for column in ("before", "greedy before")}
        demonstrated = {"demonstrated": after["before"], "greedy demonstrated": after["greedy before"]}
        yield {"task": task, "seed": seed, "way": AFTER, **after, **before, **demonstrated}


def run(words: Sequence[str], folder: Path) -> Figures:
    """Run a recipe; returns its mean reward before and after."""
    known = set(folder.glob("*/metrics.jsonl"))
    areal("run", *words)
    (file,) = set(folder.glob("*/metrics.jsonl")) - known
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    steps = sum(line["kind"] == "step.completed" for line in lines)
    found: Figures = {"steps": steps}
    for line in lines:
        if line["kind"] == "evaluation.completed" and line["weight_version"] in (0, steps):
            mode = "greedy " if line["mode"] == "greedy" else ""
            found[f"{mode}{'before' if line['weight_version'] == 0 else 'after'}"] = line["reward_mean"]
    return found


def spreads(found: Sequence[Figures]) -> Iterator[tuple[str, ...]]:
    """Yields lowest, median and highest mean reward of the seeds, for each task and way."""
    for task, way in dict.fromkeys((row["task"], row["way"]) for row in found):
        rows = [row for row in found if (row["task"], row["way"]) == (task, way)]
        yield (
            task,
            way,
            str(rows[0]["steps"]),
            *(spread([row[name] for row in rows if name in row]) for name in COLUMNS),
        )


def spread(values: Sequence[float]) -> str:
    """Lowest / median / highest, or one value."""
    if len(values) < 2:
        return "".join(f"{value:.2f}" for value in values)
    return " / ".join(f"{value:.2f}" for value in (min(values), statistics.median(values), max(values)))


if __name__ == "__main__":
    main()
