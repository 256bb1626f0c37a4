"""Quality under staleness: naive PPO, decoupled PPO and corrections, on deliberately delayed data.

    python benchmarks/staleness.py [KEY=VALUE ...] [--bounds 0 2 4 8] [--losses naive decoupled] [--rates 1 3.75]
    [--seeds 0 1 2] python benchmarks/staleness.py --bounds 8 --losses naive decoupled clipped clipped-wide
    sequence-clipped --rates 3.75

On the embedded default generation keeps up with training, whatever `staleness_gate.max_staleness` allows. Here a
hand-written loop delays every batch: step n trains samples of version n - bound, and the first steps samples of version
0. All variants train batches of the same problems in the same order, and no token is masked for its age. `naive` uses
   the ratio to the sampling weights,
`decoupled` the ratio to the weights at the start of the step, times a capped importance weight; the others are settings
of `[algorithm]` (docs/algorithms.md, Corrections). KEY=VALUE overrides recipes/gsm8k_grpo.toml, and `--rates`
multiplies its learning rate.

Results are cached in FOLDER/results.jsonl, with the warm-started models, one for each seed.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from history import ROOT, SMALL, append, parse_arguments
from seeds import RECIPE, append_result, held_out_tasks, load_recipe, load_results, markdown, spread

from areal_actors.core.values import Task
from areal_actors.library.controllers import RolloutBatch, RolloutController, TrainController
from areal_actors.tasks.datasets import open_dataset

LOSSES = {
    "naive": ("correction.decoupled=false",),
    "decoupled": (),
    "uncorrected": ("correction.importance_sampling=off",),
    "capped-at-1": ("correction.highest=1.0",),
    "masked": ("correction.importance_sampling=mask", "correction.lowest=0.5", "correction.highest=2.0"),
    "masked-narrow": ("correction.importance_sampling=mask", "correction.lowest=0.8", "correction.highest=1.25"),
    "clipped": ("correction.importance_sampling=clip", "correction.lowest=0.8", "correction.highest=1.2"),
    "clipped-high": ("correction.importance_sampling=clip", "correction.lowest=0.8", "correction.highest=2.0"),
    "clipped-low": ("correction.importance_sampling=clip", "correction.lowest=0.8", "correction.highest=5.0"),
    "clipped-wide": ("correction.importance_sampling=clip", "correction.lowest=0.5", "correction.highest=3.0"),
    "sequence-masked": (
        "correction.importance_sampling=mask",
        "correction.level=sequence",
        "correction.lowest=0.9",
        "correction.highest=1.1",
    ),
    "sequence-clipped": (
        "correction.importance_sampling=clip",
        "correction.level=sequence",
        "correction.lowest=0.9",
        "correction.highest=1.1",
    ),
    "sequence-product": ("correction.level=sequence", "correction.aggregation=product", "correction.highest=2.0"),
    "veto-strict": ("correction.veto=sequence", "correction.veto_threshold=0.05"),
    "m2po": ("name=m2po",),
}
"""Settings of `[algorithm]`."""
BOUNDED_SHARES = ("weight_truncated_frac", "weight_masked_frac", "weight_clipped_frac")
"""Tokens whose weight was bounded; a variant has one of these metrics."""
MEASURES = (
    *(
        "token_staleness_mean",
        "masked_frac",
        "clip_frac",
        "vetoed_frac",
        "behaviour_weight_mean",
        "importance_weight_mean",
    ),
    *(*BOUNDED_SHARES, "effective_sample_size", "chi2_token", "approx_kl", "entropy"),
)
"""Metrics reported as the mean over all steps."""
PEAKS = (
    "token_staleness_max",
    "behaviour_weight_max",
    "importance_weight_max",
    "grad_norm",
    "train_infer_logprob_diff_max",
)
"""Metrics reported as the maximum over all steps."""


class Variant(msgspec.Struct, frozen=True):
    """Configuration of one run."""

    bound: int
    """Weight versions between sampling and training a batch."""
    loss: str
    seed: int
    settings: tuple[str, ...]
    rate: float = 1.0
    """Factor of the recipe's learning rate."""

    def words(self, folder: Path) -> list[str]:
        """The settings of its recipe."""
        return [
            f"run=staleness-{self.bound}-{self.loss}-{self.rate:g}-{self.seed}".replace(".", "-"),
            f"folder={folder}",
            f"seed={self.seed}",
            *self.settings,
            f"staleness_gate.max_staleness={self.bound}",
            *(f"algorithm.{setting}" for setting in LOSSES[self.loss]),
        ]


class Outcome(msgspec.Struct, frozen=True):
    """Result of a variant."""

    variant: Variant
    sampled: tuple[float, float]
    """Held-out accuracy before the first step and after the last."""
    greedy: dict[int, float]
    """Held-out accuracy by the number of steps taken: 0, every `evaluation.every_steps`, and all."""
    metrics: dict[str, float]
    steps: int
    seconds: float
    """Wall seconds without start and end."""

    def figures(self) -> dict[str, float]:
        """Figures of the table."""
        quarters = sorted({step for step in self.greedy if step and step * 4 % self.steps == 0})
        return {
            **{f"greedy, step {step}": self.greedy[step] for step in quarters},
            "sampled, after": self.sampled[1],
            "clipped, %": 100 * self.metrics["clip_frac"],
            "bounded, %": 100 * sum(self.metrics.get(name, 0.0) for name in BOUNDED_SHARES),
            "largest weight": self.metrics.get("behaviour_weight_max", 1.0),
            "effective sample": self.metrics["effective_sample_size"],
            "wall s": self.seconds,
        }


def run(variant: Variant, folder: Path) -> Outcome:
    """Train one variant in this process."""
    config = load_recipe([RECIPE], variant.words(folder))
    optimizer = msgspec.structs.replace(config.trainer.optimizer, lr=config.trainer.optimizer.lr * variant.rate)
    config = msgspec.structs.replace(config, trainer=msgspec.structs.replace(config.trainer, optimizer=optimizer))
    held_out = held_out_tasks(config)
    problems = open_dataset(config.task.dataset, seed=config.seed, held_out=config.evaluation.tasks).train
    began = time.monotonic()
    with RolloutController(config, root=ROOT) as rollouts, TrainController(config, rollouts) as trainer:
        rollouts.update_weights(trainer.upload_weights())
        sampled = [rollouts.evaluate(held_out).accuracy]
        greedy = {0: rollouts.evaluate(held_out, greedy=True).accuracy}
        metrics = []
        tasks = map(problems.task, range(config.steps * config.trainer.batch_size))
        for batch in delayed_batches(rollouts, tasks, config.trainer.batch_size, variant.bound):
            metrics.append(trainer.train_batch(msgspec.structs.replace(batch, step=trainer.weight_version)))
            rollouts.update_weights(trainer.upload_weights())
            if trainer.weight_version % config.evaluation.every_steps == 0 or trainer.weight_version == config.steps:
                greedy[trainer.weight_version] = rollouts.evaluate(held_out, greedy=True).accuracy
        sampled.append(rollouts.evaluate(held_out).accuracy)
        seconds = time.monotonic() - began
    return Outcome(variant, (sampled[0], sampled[1]), greedy, aggregate_metrics(metrics), len(metrics), seconds)


def delayed_batches(
    rollouts: RolloutController, tasks: Iterator[Task], size: int, versions: int
) -> Iterator[RolloutBatch]:
    """Yield batches of `size` tasks with a delay of `versions` weight versions between sampling and training."""
    waiting: deque[RolloutBatch] = deque()
    while batch := list(itertools.islice(tasks, size)):
        waiting.append(rollouts.rollout_batch(batch))
        if len(waiting) > versions:
            yield waiting.popleft()
    yield from waiting


def aggregate_metrics(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean of `MEASURES` and maximum of `PEAKS` over all steps, where present."""
    means = {name: statistics.fmean(step[name] for step in metrics) for name in MEASURES if name in metrics[0]}
    return means | {name: max(step[name] for step in metrics) for name in PEAKS if name in metrics[0]}


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The Markdown table of outcomes: a line for each bound, loss and rate, lowest / median / highest of its seeds."""
    titles = [*outcomes[0].figures()]

    def rows() -> Iterator[list[str]]:
        for (bound, loss, rate), alike in itertools.groupby(
            outcomes, key=lambda one: (one.variant.bound, one.variant.loss, one.variant.rate)
        ):
            ran = list(alike)
            spreads = [spread([one.figures()[title] for one in ran]) for title in titles]
            mean, most = (max(one.metrics[f"token_staleness_{name}"] for one in ran) for name in ("mean", "max"))
            yield [str(bound), loss, f"{rate:g}", f"{mean:.1f} / {most:.0f}", *spreads]

    return markdown(["staleness", "loss", "× lr", "mean / max", *titles], rows())


def main() -> None:
    """Run missing variants, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bounds", type=int, nargs="+", default=[0, 2, 4, 8], metavar="VERSIONS")
    parser.add_argument("--losses", nargs="+", default=["naive", "decoupled"], choices=LOSSES)
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0], metavar="TIMES")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "staleness")
    parser.add_argument("settings", nargs="*", default=[], metavar="KEY=VALUE")
    options = parse_arguments(
        parser,
        {
            "bounds": [1],
            "losses": ["decoupled"],
            "seeds": [0],
            "settings": ["steps=2", *SMALL, "evaluation.every_steps=1"],
        },
    )
    if options.quick:
        with tempfile.TemporaryDirectory() as folder:
            print(*table(measure_variants(options, Path(folder))), sep="\n")
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    outcomes = measure_variants(options, options.folder.absolute())
    print(*table(outcomes), sep="\n")
    if not options.no_history:
        append("staleness", {"outcomes": msgspec.to_builtins(outcomes, str_keys=True)})


def measure_variants(options: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Outcomes of all variants, from the cache where available."""
    file = folder / "results.jsonl"
    kept = {outcome.variant: outcome for outcome in load_results(file, Outcome)}
    outcomes = []
    for bound, loss, rate, seed in itertools.product(options.bounds, options.losses, options.rates, options.seeds):
        variant = Variant(bound, loss, seed, tuple(options.settings), rate)
        if (outcome := kept.get(variant)) is None:
            outcome = run(variant, folder)
            append_result(file, outcome)
        outcomes.append(outcome)
    return outcomes


if __name__ == "__main__":
    main()
