"""Seconds of `areal-actors run` and of TRL's GRPOTrainer until the main recipe's task is learnt.

    python -m venv .environments/trl                                                           # once
    .environments/trl/bin/python -m pip install -r benchmarks/environments/trl.txt             # once
    python benchmarks/race_trl.py [--seeds 0 1 2] [--trl .environments/trl/bin/python] [--target 0.8] [--steps 40]

Both sides get the same Hugging Face folder of the embedded model, the same tasks in the same order, the same reward,
group size, batch, learning rate and limit of tokens, and may use the whole machine; they run in turn, a seed after the
other. Neither evaluates while it trains: both save their weights every `--every` steps, and afterwards one function of
this program measures greedy accuracy of the saved weights on the recipe's 200 held-out problems, outside of the time.
The target is reached at the first saved step with that accuracy.

Wall and CPU seconds, of all processes of a side together, are counted from the start of its command and from the start
of its training: the first grant of capacity of ours, `on_train_begin` of TRL's. `--threads` are torch's in TRL; ours
has the recipe's, one a process. `--quick` measures ours only, and needs no TRL.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from history import ROOT, SMALL, append, busy_seconds, others_share, parse_arguments, table
from seeds import RECIPE, load_recipe
from transformers import AutoModelForCausalLM, AutoTokenizer

from areal_actors.core.values import Task
from areal_actors.reader import open_run
from areal_actors.recipe.recipe import Recipe
from areal_actors.rewards.gsm8k import gsm8k
from areal_actors.tasks.datasets import open_dataset

Figures = dict[str, Any]
SAMPLE_SECONDS = 0.2
COLUMNS = ("start", "wall s", "CPU s", "training wall s", "training CPU s", "all wall s", "all CPU s")
"""Seconds until training begins; until the target, from the start of the command and of training; until the last
step."""


@dataclass
class Usage:
    """CPU seconds of a process and all below it over time."""

    root: psutil.Process
    times: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    by_process: dict[int, float] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Sample until it is over."""
        while not self.over.is_set():
            self.sample()
            self.over.wait(SAMPLE_SECONDS)

    def sample(self) -> None:
        """Add the present sum; a process that has ended counts with its last sample."""
        try:
            processes = [self.root, *self.root.children(recursive=True)]
        except psutil.NoSuchProcess:
            processes = []
        for process in processes:
            try:
                used = process.cpu_times()
            except psutil.Error:
                continue
            self.by_process[process.pid] = used.user + used.system
        self.times.append(time.time())
        self.seconds.append(sum(self.by_process.values()))

    def until(self, when: float) -> float:
        """CPU seconds until a time in seconds since the epoch."""
        return float(np.interp(when, self.times, self.seconds))


@dataclass
class Side:
    """One finished command: when it began, when its training began, its steps' times, its saved weights."""

    started: float
    usage: Usage
    trained: float
    times: dict[int, float]
    weights: dict[int, Path]
    others: float


def main() -> None:
    """Measure, print a table and append a line to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "settings", nargs="*", metavar="SETTING", help="of the recipe; those that TRL has too are passed on"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--trl", default=str(ROOT / ".environments/trl/bin/python"), help="the interpreter that has TRL"
    )
    parser.add_argument("--threads", type=int, default=1, help="of torch in TRL")
    parser.add_argument("--rows", type=int, default=128, help="of TRL's micro-batches")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=2, help="steps between two saved weights")
    parser.add_argument("--target", type=float, default=0.8)
    options = parse_arguments(parser, {"seeds": [0], "steps": 2, "every": 1, "target": 0.0, "settings": list(SMALL)})
    if not options.quick and not Path(options.trl).exists():
        parser.error(f"{options.trl} does not exist: see the first lines of --help, or name another")
    found: list[Figures] = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as temporary:
            found += race(seed, Path(temporary), options)
    shown = [
        (*(f"{row['side']} {row['seed']}", row["step"] or "-"), *(row[name] for name in COLUMNS), row["others' share"])
        for row in found
    ]
    print(table(("side, seed", "step", *COLUMNS, "others' share"), shown))
    if not options.no_history:
        names = ("steps", "every", "target", "threads", "rows", "settings")
        print(
            append(
                "race_trl",
                {**{name: getattr(options, name) for name in names}, "runs": found, "medians": medians(found)},
            )
        )


def race(seed: int, folder: Path, options: argparse.Namespace) -> list[Figures]:
    """Run both sides with one seed; the side that begins alternates."""
    words = ["profile=embedded", f"seed={seed}", f"folder={folder}", f"steps={options.steps}", *options.settings]
    recipe = load_recipe([RECIPE], words)
    sides = {"ours": lambda: run_ours(recipe, words, options)}
    if not options.quick:
        sides["TRL"] = lambda: run_trl(recipe, seed, folder / "trl", options)
    found = []
    for name in sorted(sides, reverse=bool(seed % 2)):
        side = sides[name]()
        found.append({"side": name, "seed": seed, **figures(side, held_out(recipe), options.target)})
        print(
            f"{name}, seed {seed}: "
            + ", ".join(f"{step}: {value:.3f}" for step, value in found[-1]["accuracy"].items()),
            flush=True,
        )
    return found


def run_ours(recipe: Recipe, words: Sequence[str], options: argparse.Namespace) -> Side:
    """Run the recipe once, without evaluation, from the model that is already made."""
    saving = [f"checkpoint.every_steps={options.every}", f"checkpoint.keep_last={options.steps}", "evaluation.tasks=0"]
    command = [sys.executable, "-m", "areal_actors", "run", str(RECIPE), *words, f"model={recipe.model}", *saving]
    started, usage, others = measured(command, {})
    run = open_run(Path(recipe.folder) / recipe.run)
    trained = run.events("capacity.granted")["time"][0]
    times = dict(zip(run.steps["step"], run.steps["time"], strict=True))
    assert run.folder is not None
    return Side(started, usage, trained, times, saved_weights(run.folder / "checkpoints"), others)


def run_trl(recipe: Recipe, seed: int, folder: Path, options: argparse.Namespace) -> Side:
    """Run TRL once, on the tasks that the recipe's groups draw, in their order."""
    folder.mkdir()
    tasks = open_dataset(recipe.task.dataset, seed=seed, held_out=recipe.task.held_out).train
    drawn = [tasks.task(number).data for number in range(options.steps * recipe.trainer.batch_size)]
    settings = {
        "model": recipe.model,
        "output": str(folder),
        "seed": seed,
        "threads": options.threads,
        "rows": options.rows,
        "steps": options.steps,
        "every": options.every,
        "group_size": recipe.algorithm.group_size,
        "groups": recipe.trainer.batch_size,
        "max_tokens": recipe.sampling.max_tokens,
        "lr": recipe.trainer.optimizer.lr,
        "beta2": recipe.trainer.optimizer.betas[1],
        "tasks": [{"prompt": [question(task)], "answer": task["answer"]} for task in drawn],
    }
    file = folder / "settings.json"
    file.write_text(json.dumps(settings), encoding="utf-8")
    script = Path(__file__).with_name("race_trl_process.py")
    environment = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(options.threads)}
    started, usage, others = measured([options.trl, str(script), str(file)], environment)
    marks = [json.loads(line) for line in (folder / "times.jsonl").read_text(encoding="utf-8").splitlines()]
    times = {mark["step"]: mark["time"] for mark in marks}
    return Side(started, usage, times.pop(0), times, saved_weights(folder), others)


def measured(command: Sequence[str], environment: dict[str, str]) -> tuple[float, Usage, float]:
    """Run a command to its end; returns when it began, its CPU seconds over time, and the share of other processes.

    Raises:
        SystemExit: it failed; the message has the end of its output.
    """
    busy, started = busy_seconds(), time.time()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stdout=output, stderr=output)
        usage = Usage(psutil.Process(process.pid))
        watching = threading.Thread(target=usage.watch)
        watching.start()
        status = process.wait()
        usage.over.set()
        watching.join()
        output.seek(0)
        if status:
            raise SystemExit(
                f"{' '.join(command[:4])} failed with status"
                f" {status}:\n{output.read().decode(errors='replace')[-3000:]}"
            )
    return started, usage, others_share(busy_seconds() - busy, usage.seconds[-1], time.time() - started)


def saved_weights(folder: Path) -> dict[int, Path]:
    """Folders of weights by step."""
    return {int(path.name.removeprefix("step-")): path for path in folder.glob("step-*")}


def figures(side: Side, tasks: Sequence[Task], target: float) -> Figures:
    """Accuracies of the saved weights up to the target, and the seconds until it."""
    accuracy: dict[int, float] = {}
    for step, folder in sorted(side.weights.items()):
        accuracy[step] = greedy_accuracy(folder, tasks)
        if accuracy[step] >= target:
            break
    reached = next((step for step, value in accuracy.items() if value >= target), None)
    before = side.usage.until(side.trained)
    found: Figures = {
        "step": reached,
        "accuracy": accuracy,
        "start": side.trained - side.started,
        "others' share": side.others,
    }
    for name, step in (("", reached), ("all ", max(side.times))):
        at = side.times[step] if step is not None else float("nan")
        found |= {f"{name}wall s": at - side.started, f"{name}CPU s": side.usage.until(at)}
        found |= {f"{name}training wall s": at - side.trained, f"{name}training CPU s": side.usage.until(at) - before}
    return found


def greedy_accuracy(folder: Path, tasks: Sequence[Task]) -> float:
    """Share of tasks that the weights solve with the most likely token each time, in at most 64 tokens."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_of(folder), padding_side="left")
    asked = [[question(task.data)] for task in tasks]
    inputs = tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        ids = model.generate(**inputs, do_sample=False, max_new_tokens=64)
    answers = tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return statistics.fmean(gsm8k(task.data, answer) for task, answer in zip(tasks, answers, strict=True))


def tokenizer_of(folder: Path) -> Path:
    """The folder of a model's tokenizer: its own, or the model's that TRL began with."""
    settings = folder.parent / "settings.json"
    return (
        folder
        if (folder / "tokenizer.json").exists()
        else Path(json.loads(settings.read_text(encoding="utf-8"))["model"])
    )


def held_out(recipe: Recipe) -> list[Task]:
    """The recipe's held-out tasks."""
    dataset = open_dataset(recipe.task.dataset, seed=recipe.seed, held_out=recipe.task.held_out)
    return [dataset.held_out.task(number) for number in range(len(dataset.held_out))]


def question(task: dict[str, Any]) -> dict[str, str]:
    """The message that the recipe's agent sends."""
    return {"role": "user", "content": task["question"]}


def medians(found: Sequence[Figures]) -> dict[str, Figures]:
    """Median of each column by side."""
    sides = dict.fromkeys(row["side"] for row in found)
    return {
        side: {
            name: statistics.median(row[name] for row in found if row["side"] == side) for name in ("step", *COLUMNS)
        }
        for side in sides
        if all(row["step"] for row in found if row["side"] == side)
    }


if __name__ == "__main__":
    main()
