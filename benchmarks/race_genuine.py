"""A genuine pretrained model of 135 million parameters learns on two CPU cores.

`areal-actors run`, asynchronous and synchronous, and TRL.
    just model get smollm2                                                                     # once
    python -m venv .environments/trl                                                           # once
    .environments/trl/bin/python -m pip install -r benchmarks/environments/trl.txt             # once
    python benchmarks/race_genuine.py [--model smollm2] [--tasks sums extraction] [--sides asynchronous synchronous TRL]
                                      [--seeds 0 1 2 3 4] [--steps 12]

All sides get the same Hugging Face folder, the messages, rewards, tasks and their order of `recipes/smollm2.toml`, its
group size, batch, learning rate and limit of tokens; they run in turn, and may use the whole machine: ours one thread
of torch in the engine's and one in the trainer's process, TRL two. None evaluates while it trains. Afterwards one
function measures the initial and the final weights of each on the recipe's held-out tasks, sampled and greedy, outside
of the time.

Wall and CPU seconds are those of the whole command, all processes together; memory is the peak of all processes'
private memory and of shared memory, sampled. Intervals are 95 % of Student's t over the seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from history import ROOT, append, parse_arguments, table
from matplotlib.figure import Figure
from race_trl import Usage, measured
from seeds import held_out_tasks, load_recipe

from areal_actors.core.devices import detect_cuda
from areal_actors.library.controllers import RolloutController
from areal_actors.recipe.load import load
from areal_actors.recipe.recipe import Recipe
from areal_actors.tasks.datasets import open_dataset

if TYPE_CHECKING:
    from collections.abc import Iterator

Figures = dict[str, Any]
RECIPE = ROOT / "recipes" / "smollm2.toml"
PROFILES = {"sums": [], "extraction": ["profile=extraction"]}
SIDES = {"asynchronous": [], "synchronous": ["staleness_gate.max_staleness=0"], "TRL": []}
HELD_OUT = 100
SAMPLE_SECONDS = 0.5
COLORS = {"asynchronous": "#00798c", "synchronous": "#edae49", "TRL": "#d1495b"}
T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
"""Student's t of 95 % by degrees of freedom."""


def main() -> None:
    """Measure, print a table and append a line to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "settings", nargs="*", metavar="SETTING", help="of the recipe; those that TRL has too are passed on"
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tasks", nargs="+", choices=PROFILES, default=list(PROFILES))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--held-out", type=int, default=HELD_OUT)
    parser.add_argument(
        "--trl", default=str(ROOT / ".environments/trl/bin/python"), help="the interpreter that has TRL"
    )
    parser.add_argument("--plot", type=Path, help="PNG of the rewards of all steps")
    parser.add_argument(
        "--beside",
        type=Path,
        nargs="*",
        default=[],
        help="folders of runs of the embedded model, for a panel of the plot",
    )
    parser.add_argument("--results", type=Path, help="file of finished runs, one a line: those in it are not repeated")
    quick = {"model": "embedded", "seeds": [0], "steps": 1, "tasks": ["sums"], "sides": ["asynchronous"], "held_out": 4}
    options = parse_arguments(
        parser, {**quick, "settings": ["trainer.batch_size=2", "warm_start.steps=20", "warm_start.tail_steps=5"]}
    )
    if "TRL" in options.sides and not Path(options.trl).exists():
        parser.error(f"{options.trl} does not exist: see the first lines of --help, or name another")
    runs = (
        [json.loads(line) for line in options.results.read_text().splitlines()]
        if options.results and options.results.exists()
        else []
    )
    done = {(run["task"], run["side"], run["seed"]) for run in runs}
    for seed in options.seeds:
        for task in options.tasks:
            for side in options.sides:
                if (task, side, seed) in done:
                    continue
                with tempfile.TemporaryDirectory() as temporary:
                    runs.append(
                        {"task": task, "side": side, "seed": seed, **race(task, side, seed, Path(temporary), options)}
                    )
                print(json.dumps(runs[-1]), flush=True)
                if options.results:
                    with options.results.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(runs[-1]) + "\n")
    print(summary(runs))
    if options.plot:
        plot(runs, [curve_of(folder / "metrics.jsonl") for folder in options.beside], options.plot)
    if not options.no_history:
        figures = {"model": Path(options.model).name, "steps": options.steps, "settings": options.settings}
        print(append("race_genuine", {**figures, "means": means(runs), "runs": runs}))


def race(task: str, side: str, seed: int, folder: Path, options: argparse.Namespace) -> Figures:
    """Run one side once, and measure its weights before and after."""
    words = [
        *PROFILES[task],
        *SIDES[side],
        f"model={options.model}",
        f"seed={seed}",
        f"steps={options.steps}",
        f"folder={folder}",
    ]
    words += ["evaluation.tasks=0", f"checkpoint.every_steps={options.steps}", *options.settings]
    recipe = load_recipe([RECIPE], words)
    words.append(f"model={recipe.model}")
    with peak_memory() as memory:
        if side == "TRL":
            usage, seconds, final = run_trl(recipe, seed, folder / "trl", options)
        else:
            started, usage, _ = measured([sys.executable, "-m", "areal_actors", "run", str(RECIPE), *words], {})
            seconds = usage.times[-1] - started
            final = folder / recipe.run / "checkpoints" / f"step-{options.steps}"
    before, after = (scores(recipe, str(model), options.held_out) for model in (recipe.model, final))
    curve = (
        curve_of(folder / recipe.run / "metrics.jsonl") if side != "TRL" else curve_of(folder / "trl" / "rewards.jsonl")
    )
    return {
        "wall": round(seconds, 1),
        "cpu": round(usage.seconds[-1], 1),
        "memory": max(memory, default=0),
        "before": before,
        "after": after,
        "curve": curve,
    }


def run_trl(recipe: Recipe, seed: int, folder: Path, options: argparse.Namespace) -> tuple[Usage, float, Path]:
    """Run TRL once, on the tasks that the recipe's groups draw, in their order.

    Returns its use, its seconds and its last weights.
    """
    folder.mkdir(parents=True)
    tasks = open_dataset(recipe.task.dataset, seed=seed, held_out=recipe.task.held_out).train
    drawn = [tasks.task(number).data for number in range(options.steps * recipe.trainer.batch_size)]
    settings = {
        "model": recipe.model,
        "output": str(folder),
        "seed": seed,
        "threads": len(psutil.Process().cpu_affinity()),
        "rows": recipe.algorithm.group_size,
        "steps": options.steps,
        "every": options.steps,
        "group_size": recipe.algorithm.group_size,
        "groups": recipe.trainer.batch_size,
        "max_tokens": recipe.sampling.max_tokens,
        "lr": recipe.trainer.optimizer.lr,
        "beta2": recipe.trainer.optimizer.betas[1],
        "reward": recipe.task.reward,
        "tasks": [{"prompt": messages(task), "answer": task["answer"]} for task in drawn],
    }
    file = folder / "settings.json"
    file.write_text(json.dumps(settings), encoding="utf-8")
    script = Path(__file__).with_name("race_trl_process.py")
    started, usage, _ = measured(
        [options.trl, str(script), str(file)], {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    )
    final = folder / f"step-{options.steps}"
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        if (source := Path(recipe.model) / name).exists():
            shutil.copy(source, final / name)
    return usage, usage.times[-1] - started, final


def messages(task: dict[str, Any]) -> list[dict[str, str]]:
    """The messages that the recipe's agent sends."""
    return [
        {"role": "user", "content": task["example_question"]},
        {"role": "assistant", "content": task["example_answer"]},
        {"role": "user", "content": task["question"]},
    ]


def scores(recipe: Recipe, model: str, count: int) -> dict[str, float]:
    """Mean reward on held-out tasks, sampled and greedy."""
    words = [f"model={model}", f"task.dataset={recipe.task.dataset}", f"task.reward={recipe.task.reward}"]
    judged = load(
        [RECIPE],
        [*words, f"sampling.max_tokens={recipe.sampling.max_tokens}", f"evaluation.tasks={count}"],
        detect_cuda(),
    ).recipe
    tasks = held_out_tasks(judged)
    with RolloutController(judged, root=ROOT) as rollouts:
        rollouts.update_weights(model)
        return {
            "sampled": rollouts.evaluate(tasks).mean_reward,
            "greedy": rollouts.evaluate(tasks, greedy=True).mean_reward,
        }


def curve_of(file: Path) -> list[float]:
    """Mean reward of each step's batch."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [line["metrics"]["reward_mean"] for line in lines if line["kind"] == "step.completed"]


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Sample, while the block runs, the bytes of private memory of all descendants, and of shared memory."""
    samples = list[int]()
    over = threading.Event()

    def sample() -> None:
        shared_before = shared_bytes()
        while not over.wait(SAMPLE_SECONDS):
            private = 0
            for process in psutil.Process().children(recursive=True):
                try:
                    private += process.memory_full_info().uss
                except psutil.Error:
                    continue
            samples.append(private + shared_bytes() - shared_before)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def shared_bytes() -> int:
    """Bytes of files in shared memory."""
    # Where weights are published
    return sum(path.stat().st_size for path in Path("/dev/shm").rglob("*") if path.is_file())  # noqa: S108


def plot(runs: Sequence[Figures], embedded: Sequence[Sequence[float]], file: Path) -> None:
    """Write the mean rewards of the steps as a PNG.

    A panel for each task, a thin line for each seed and a thick one for the mean.
    """
    panels: dict[str, dict[str, list[Sequence[float]]]] = {}
    if embedded:
        panels["embedded model, 0.14 M parameters: word problems"] = {"asynchronous": list(embedded)}
    for run in runs:
        panels.setdefault(f"SmolLM2, 135 M parameters: {run['task']}", {}).setdefault(run["side"], []).append(
            run["curve"]
        )
    figure = Figure(figsize=(4.2 * len(panels), 3.2), dpi=110, layout="constrained")
    for axes, (title, sides) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for side, curves in sides.items():
            steps = range(1, len(curves[0]) + 1)
            for curve in curves:
                axes.plot(steps, curve, color=COLORS[side], linewidth=0.7, alpha=0.4)
            means = [statistics.fmean(values) for values in zip(*curves, strict=True)]
            axes.plot(steps, means, color=COLORS[side], linewidth=2, label=f"{side}, {len(curves)} seeds")
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("step")
        axes.set_ylim(0, 1.02)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8, loc="lower right")
    figure.axes[0].set_ylabel("mean reward of the step's answers")
    figure.savefig(file)


def means(runs: Sequence[Figures]) -> dict[str, Figures]:
    """Means over the seeds by task and side; of scores also half of the interval of 95 %."""
    sides = dict.fromkeys((run["task"], run["side"]) for run in runs)
    made: dict[str, Figures] = {}
    for task, side in sides:
        chosen = [run for run in runs if (run["task"], run["side"]) == (task, side)]
        columns = {
            f"{mode} {when}": [run[when][mode] for run in chosen]
            for mode in ("sampled", "greedy")
            for when in ("before", "after")
        }
        made[f"{task}, {side}"] = {
            "seeds": len(chosen),
            **{name: [statistics.fmean(values), half_interval(values)] for name, values in columns.items()},
            **{name: statistics.fmean(run[name] for run in chosen) for name in ("wall", "cpu")},
            "memory GB": statistics.fmean(run["memory"] for run in chosen) / 1e9,
        }
    return made


def summary(runs: Sequence[Figures]) -> str:
    """A row for each task and side."""
    header = (
        "task, side",
        "seeds",
        "sampled before",
        "after",
        "greedy before",
        "after",
        "wall s",
        "CPU s",
        "memory GB",
    )
    rows = []
    for label, row in means(runs).items():
        scores = [row[f"{mode} {when}"] for mode in ("sampled", "greedy") for when in ("before", "after")]
        cells = [f"{mean:.2f} ± {half:.2f}" if half else f"{mean:.2f}" for mean, half in scores]
        rows.append((label, row["seeds"], *cells, f"{row['wall']:.0f}", f"{row['cpu']:.0f}", f"{row['memory GB']:.1f}"))
    return table(header, rows)


def half_interval(values: Sequence[float]) -> float:
    """Half of the interval of 95 % of a mean; 0 of a single value."""
    if len(values) < 2:
        return 0.0
    return T95[min(len(values) - 1, 9)] * statistics.stdev(values) / math.sqrt(len(values))


if __name__ == "__main__":
    main()
