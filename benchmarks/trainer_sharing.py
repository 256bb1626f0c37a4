"""What computing shared beginnings once saves: forward and backward passes of rows, shared against one by one.

    python benchmarks/trainer_sharing.py [--hidden 256] [--layers 4] [--repeats 3] [--quick] [--no-history]

Groups of 8 rows with one prompt and completions of 64 to 192 tokens, and episodes of 10 turns of 64 or 128 tokens of which
every turn is a row. `packed` computes every row by itself without padding (chains that share nothing), `padded` side by
side. The ratios are of CPU seconds (the fastest of several, taking turns); `saved` is tokens of rows over tokens computed,
and `of saved` the ratio against packed over it. `gradient` is the distance of the two gradients over their length.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import msgspec
import numpy as np
import torch
from history import append, table
from transformers import Qwen3Config, Qwen3ForCausalLM

from areal_actors.engines.scoring import Scorer
from areal_actors.tensors import MicroBatch, arrange
from areal_actors.values import Row

VOCABULARY = 1024
BUDGET = 8192
CPU = torch.device("cpu")
COMPLETION_TOKENS = (64, 193)
TURNS = 10


def make_scorer(hidden: int, layers: int) -> Scorer:
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
    return Scorer(Qwen3ForCausalLM(config).eval(), 1.0)


def row(ids: np.ndarray, trained: int, group: int) -> Row:
    """A row whose last `trained` tokens are trained."""
    mask = np.arange(len(ids)) >= len(ids) - trained
    return Row(
        token_ids=ids.astype(np.int64),
        loss_mask=mask,
        logprobs=np.zeros(len(ids), dtype=np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        group=group,
        reward=0.0,
        truncated=False,
    )


def one_prompt(tokens: int) -> list[Row]:
    """A group of 8 rows."""
    draw = np.random.default_rng(tokens)
    prompt = draw.integers(0, VOCABULARY, tokens)
    lengths = draw.integers(*COMPLETION_TOKENS, 8)
    return [row(np.concatenate([prompt, draw.integers(0, VOCABULARY, length)]), length, 0) for length in lengths]


def chain(tokens: int) -> list[Row]:
    """An episode of which every turn is a row with all turns before it."""
    ids = np.random.default_rng(tokens).integers(0, VOCABULARY, TURNS * tokens)
    return [row(ids[: tokens * (turn + 1)], tokens // 2, 0) for turn in range(TURNS)]


def pass_over(scorer: Scorer, batches: list[MicroBatch]) -> None:
    """Forward and backward, with a weight of its own for every token."""
    for parameter in scorer.parameters():
        parameter.grad = None
    for batch in batches:
        logp, _ = scorer(batch)
        (logp * torch.cos(batch.place)).sum().backward()


def gradient(scorer: Scorer) -> torch.Tensor:
    """All of it in one vector."""
    return torch.cat([parameter.grad.flatten() for parameter in scorer.parameters()])


def measure(scorer: Scorer, case: str, rows: list[Row], repeats: int) -> dict[str, float | str]:
    """One line of the table."""
    alone = [msgspec.structs.replace(each, group=number) for number, each in enumerate(rows)]
    ways = {
        "shared": arrange(rows, range(len(rows)), BUDGET, CPU, sharing="on"),
        "packed": arrange(alone, range(len(rows)), BUDGET, CPU, sharing="on"),
        "padded": arrange(rows, range(len(rows)), BUDGET, CPU),
    }
    seconds = dict.fromkeys(ways, float("inf"))
    gradients = {}
    for _ in range(repeats):
        for way, batches in ways.items():
            began = time.process_time()
            pass_over(scorer, batches)
            seconds[way] = min(seconds[way], time.process_time() - began)
            gradients[way] = gradient(scorer)
    tokens = sum(batch.row_tokens for batch in ways["shared"])
    computed = sum(batch.computed_tokens for batch in ways["shared"])
    speedup = seconds["packed"] / seconds["shared"]
    distance = (gradients["shared"] - gradients["packed"]).norm() / gradients["packed"].norm()
    return {
        "case": case,
        "tokens": tokens,
        "computed": computed,
        "saved": tokens / computed,
        "over_packed": speedup,
        "over_padded": seconds["padded"] / seconds["shared"],
        "of_saved": speedup * computed / tokens,
        "gradient": float(distance),
    }


def measure_all(options: argparse.Namespace, report: Callable[[str], None]) -> list[dict[str, float | str]]:
    """The whole table."""
    torch.set_num_threads(1)
    scorer = make_scorer(options.hidden, options.layers)
    prompts, turns = ((128, 512), (64,)) if options.quick else ((128, 256, 512, 1024, 2048), (64, 128))
    cases = [(f"8 rows, prompt {tokens}", one_prompt(tokens)) for tokens in prompts]
    cases += [(f"{TURNS} turns of {tokens}", chain(tokens)) for tokens in turns]
    found = [measure(scorer, case, rows, options.repeats) for case, rows in cases]
    header = ["case", "tokens in rows", "computed", "saved ×", "over packed ×", "over padded ×", "of saved", "gradient"]
    report(table(header, [[*list(line.values())[:-1], f"{line['gradient']:.1e}"] for line in found]))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="fewer cases")
    parser.add_argument("--no-history", action="store_true")
    options = parser.parse_args()
    found = measure_all(options, print)
    if not options.no_history:
        append("trainer_sharing", {"hidden": options.hidden, "layers": options.layers, "cases": found})


if __name__ == "__main__":
    main()
