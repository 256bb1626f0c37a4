"""Speedup of prefix sharing: forward and backward passes of rows with shared prefixes against separate rows.

    PYTHONPATH=benchmarks python benchmarks/archive/trainer_sharing.py [--hidden 256] [--layers 4] [--repeats 3]

Groups of 8 rows with one prompt and completions of 64 to 192 tokens; episodes of 10 turns of 64 or 128 tokens of which
every turn is a row; and 16 groups of 4 rows whose prompts of 576 tokens begin with the same 512. `packed` computes
every row separately without padding, `padded` in a padded batch, `apart` every group separately. `whole` computes all
tokens in all blocks; otherwise the last block skips positions that are not read, also for packed rows. So `sharing`
(packed, whole over shared, whole) is the speedup of sharing alone, `over whole` (packed, whole over shared) of both,
and `over packed` compares with packed rows whose last block skips as much. Ratios are of CPU seconds, the fastest of
several alternating runs; `saved` is tokens of rows over computed tokens, and `of saved` is `sharing` over it.
`gradient` is the relative distance of the two gradients.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import msgspec
import numpy as np
import torch
from history import append, parse_arguments, table
from transformers import Qwen3Config, Qwen3ForCausalLM

from areal_actors.core.values import TrainingSequence
from areal_actors.training.packing.packed_tree import PackedTree
from areal_actors.training.packing.prefix_tree import build_prefix_tree, first_fit_decreasing, join_trees
from areal_actors.training.packing.scoring import TokenScorer
from areal_actors.training.packing.tensors import MicroBatch, make_micro_batches

VOCABULARY = 1024
BUDGET = 8192
CPU = torch.device("cpu")
COMPLETION_TOKENS = (64, 193)
TURNS = 10


def make_scorer(hidden: int, layers: int) -> TokenScorer:
    """A random Qwen3 with heads of 32."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=max(1, hidden // 64),
        head_dim=32,
        max_position_embeddings=8192,
        initializer_range=0.05,
    )
    return TokenScorer(Qwen3ForCausalLM(config).eval(), 1.0)


def row(ids: np.ndarray, trained: int, group: int) -> TrainingSequence:
    """A row whose last `trained` tokens are trained."""
    mask = np.arange(len(ids)) >= len(ids) - trained
    return TrainingSequence(
        token_ids=ids.astype(np.int64),
        loss_mask=mask,
        logprobs=np.zeros(len(ids), dtype=np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        group=group,
        reward=0.0,
        truncated=False,
    )


def one_prompt(tokens: int) -> list[TrainingSequence]:
    """Return a group of 8 rows with one prompt."""
    draw = np.random.default_rng(tokens)
    prompt = draw.integers(0, VOCABULARY, tokens)
    lengths = draw.integers(*COMPLETION_TOKENS, 8)
    return [row(np.concatenate([prompt, draw.integers(0, VOCABULARY, length)]), length, 0) for length in lengths]


def branch(tokens: int) -> list[TrainingSequence]:
    """Return an episode with one row per turn, each with all earlier turns."""
    ids = np.random.default_rng(tokens).integers(0, VOCABULARY, TURNS * tokens)
    return [row(ids[: tokens * (turn + 1)], tokens // 2, 0) for turn in range(TURNS)]


def one_system_prompt(groups: int, members: int) -> list[TrainingSequence]:
    """Return groups whose prompts share 512 tokens and differ in the last 64."""
    draw = np.random.default_rng(groups)
    system = draw.integers(0, VOCABULARY, 512)
    prompts = [np.concatenate([system, draw.integers(0, VOCABULARY, 64)]) for _ in range(groups)]
    lengths = draw.integers(*COMPLETION_TOKENS, groups * members).tolist()
    return [
        row(np.concatenate([prompts[at // members], draw.integers(0, VOCABULARY, length)]), length, at // members)
        for at, length in enumerate(lengths)
    ]


def packed(rows: list[TrainingSequence]) -> list[MicroBatch]:
    """Arrange every row separately, without padding."""
    single = [
        batch for index in range(len(rows)) for batch in make_micro_batches(rows, [index], BUDGET, CPU, sharing="on")
    ]
    parts = first_fit_decreasing([batch.computed_tokens for batch in single], BUDGET)
    return [one_after_another([single[index] for index in part]) for part in parts]


def one_after_another(batches: list[MicroBatch]) -> MicroBatch:
    """Join micro-batches of one row each."""
    tree = join_trees([build_prefix_tree([batch.token_ids[0].numpy()]) for batch in batches])
    firsts = np.cumsum([0, *(batch.computed_tokens for batch in batches)]).tolist()
    positions = torch.cat([batch.positions + first for batch, first in zip(batches, firsts, strict=False)])
    columns = ("labels", "token_index")
    return MicroBatch(
        token_ids=torch.from_numpy(tree.token_ids)[None],
        positions=positions,
        sequence_tokens=firsts[-1],
        branches=PackedTree.of(tree, CPU, positions.numpy()),
        **{name: torch.cat([getattr(batch, name) for batch in batches]) for name in columns},
    )


def whole(batches: list[MicroBatch]) -> list[MicroBatch]:
    """Return the micro-batches with all tokens in all blocks."""
    return [
        (
            msgspec.structs.replace(batch, branches=msgspec.structs.replace(batch.branches, outputs=None))
            if batch.branches
            else batch
        )
        for batch in batches
    ]


def pass_over(scorer: TokenScorer, batches: list[MicroBatch]) -> None:
    """Run forward and backward passes, with a different weight for every token."""
    for parameter in scorer.parameters():
        parameter.grad = None
    for batch in batches:
        logp, _ = scorer(batch)
        (logp * torch.cos(batch.token_index)).sum().backward()


def gradient(scorer: TokenScorer) -> torch.Tensor:
    """Return the whole gradient as one vector."""
    return torch.cat([parameter.grad.flatten() for parameter in scorer.parameters()])


def measure(scorer: TokenScorer, case: str, rows: list[TrainingSequence], repeats: int) -> dict[str, float | str]:
    """Measure one line of the table."""
    shared, alone = make_micro_batches(rows, range(len(rows)), BUDGET, CPU, sharing="on"), packed(rows)
    variants = {
        "shared": shared,
        "packed": alone,
        "shared, whole": whole(shared),
        "packed, whole": whole(alone),
        "padded": make_micro_batches(rows, range(len(rows)), BUDGET, CPU),
    }
    groups = {each.group for each in rows}
    if len(groups) > 1:
        members = [[index for index, each in enumerate(rows) if each.group == group] for group in sorted(groups)]
        variants["apart"] = [
            batch for each in members for batch in make_micro_batches(rows, each, BUDGET, CPU, sharing="on")
        ]
    seconds = dict.fromkeys(variants, float("inf"))
    gradients = {}
    for _ in range(repeats):
        for variant, batches in variants.items():
            began = time.process_time()
            pass_over(scorer, batches)
            seconds[variant] = min(seconds[variant], time.process_time() - began)
            gradients[variant] = gradient(scorer)
    tokens = sum(batch.sequence_tokens for batch in shared)
    computed = sum(batch.computed_tokens for batch in shared)
    sharing = seconds["packed, whole"] / seconds["shared, whole"]
    distance = (gradients["shared"] - gradients["packed, whole"]).norm() / gradients["packed, whole"].norm()
    return {
        "case": case,
        "tokens": tokens,
        "computed": computed,
        "saved": tokens / computed,
        "sharing": sharing,
        "of_saved": sharing * computed / tokens,
        "over_whole": seconds["packed, whole"] / seconds["shared"],
        "over_packed": seconds["packed"] / seconds["shared"],
        "over_padded": seconds["padded"] / seconds["shared"],
        "over_apart": seconds.get("apart", seconds["shared"]) / seconds["shared"],
        "seconds_shared": seconds["shared"],
        "seconds_packed": seconds["packed"],
        "gradient": float(distance),
    }


def measure_all(options: argparse.Namespace, report: Callable[[str], None]) -> list[dict[str, float | str]]:
    """Measure and print the whole table."""
    torch.set_num_threads(1)
    scorer = make_scorer(options.hidden, options.layers)
    prompts, turns = ((128,), (16,)) if options.quick else ((128, 256, 512, 1024, 2048), (64, 128))
    cases = [(f"8 rows, prompt {tokens}", one_prompt(tokens)) for tokens in prompts]
    cases += [(f"{TURNS} turns of {tokens}", branch(tokens)) for tokens in turns]
    if not options.quick:
        cases += [("16 groups of 4, 512 in common", one_system_prompt(16, 4))]
    found = [measure(scorer, case, rows, options.repeats) for case, rows in cases]
    ratios = ["saved", "sharing", "of saved", "over whole", "over packed", "over padded", "over apart"]
    header = ["case", "tokens in rows", "computed", *ratios, "s shared", "s packed", "gradient"]
    lines = [
        [*list(line.values())[:-3], *(f"{line[each]:.3f}" for each in ("seconds_shared", "seconds_packed"))]
        for line in found
    ]
    report(table(header, [[*line, f"{figures['gradient']:.1e}"] for line, figures in zip(lines, found, strict=True)]))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    options = parse_arguments(parser, {"hidden": 64, "layers": 2, "repeats": 1})
    found = measure_all(options, print)
    if not options.no_history:
        append("trainer_sharing", {"hidden": options.hidden, "layers": options.layers, "cases": found})


if __name__ == "__main__":
    main()
