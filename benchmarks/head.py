"""The head of a model: log-probabilities and entropies of tokens, and their gradients, with and without torch.compile.

    python benchmarks/head.py [--tokens 1216] [--hidden 512] [--vocabulary 16384] [--repeats 5]

The defaults are those of the model of 48.5 M parameters in `trainer.py`. `ours` is `token_scores`: chunks, a backward pass of its own.
`compiled` is log_softmax in the same chunks, as inductor fuses it, forward and backward; `at once` is log_softmax of all tokens. CPU
seconds are the fastest of several alternating runs; `compilation` is what the first run took more. `gradient` is the relative distance
of the head's gradient to that of `at once`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from history import append, parse_arguments, table
from torch import Tensor, nn

from areal_actors.training.packing.token_scores import LOGITS, TOKENS, token_scores

Scores = Callable[[nn.Linear, Tensor, Tensor], Tensor]


def ours(head: nn.Linear, hidden: Tensor, labels: Tensor) -> Tensor:
    """Score as the trainer does."""
    return token_scores(head, hidden, labels, 1.0, torch.float32)[0]


def at_once(head: nn.Linear, hidden: Tensor, labels: Tensor) -> Tensor:
    """Score all tokens by the functions of torch."""
    logps = head(hidden).log_softmax(-1)
    with torch.no_grad():
        entropy = -(logps.exp() * logps).sum(-1)
    return logps.gather(1, labels.unsqueeze(1)).squeeze(1) + 0.0 * entropy


def in_chunks(scores: Scores) -> Scores:
    """Apply a function to chunks of the trainer's size."""

    def chunked(head: nn.Linear, hidden: Tensor, labels: Tensor) -> Tensor:
        size = max(TOKENS, LOGITS["cpu"] // head.out_features)
        return torch.cat([scores(head, *chunk) for chunk in zip(torch.split(hidden, size), torch.split(labels, size), strict=True)])

    return chunked


def pass_over(scores: Scores, head: nn.Linear, hidden: Tensor, labels: Tensor) -> tuple[float, Tensor]:
    """Run forward and backward pass; returns CPU seconds and the head's gradient."""
    head.weight.grad = hidden.grad = None
    began = time.process_time()
    scores(head, hidden, labels).sum().backward()
    return time.process_time() - began, head.weight.grad


def measure(options: argparse.Namespace) -> list[dict[str, float | str]]:
    """Measure all variants, in turns."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    head = nn.Linear(options.hidden, options.vocabulary, bias=False)
    hidden = torch.randn(options.tokens, options.hidden, requires_grad=True)
    labels = torch.randint(0, options.vocabulary, (options.tokens,))
    variants = {"ours": ours, "compiled": in_chunks(torch.compile(at_once, dynamic=True)), "at once": at_once}
    given = head, hidden, labels
    first = {name: pass_over(scores, *given) for name, scores in variants.items()}
    seconds = dict.fromkeys(variants, float("inf"))
    for _ in range(options.repeats):
        for name, scores in variants.items():
            seconds[name] = min(seconds[name], pass_over(scores, *given)[0])
    wanted = first["at once"][1]
    return [
        {
            "variant": name,
            "seconds": seconds[name],
            "over_ours": seconds[name] / seconds["ours"],
            "compilation": first[name][0] - seconds[name],
            "gradient": float((first[name][1] - wanted).norm() / wanted.norm()),
        }
        for name in variants
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1216)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=16384)
    parser.add_argument("--repeats", type=int, default=5)
    options = parse_arguments(parser, {"tokens": 300, "hidden": 16, "vocabulary": 64, "repeats": 1})
    found = measure(options)
    header = ["variant", "CPU s", "of ours", "compilation, CPU s", "gradient"]
    lines = [
        [
            line["variant"],
            *(f"{line[name]:.3f}" for name in ("seconds", "over_ours")),
            f"{line['compilation']:.1f}",
            f"{line['gradient']:.1e}",
        ]
        for line in found
    ]
    print(table(header, lines))
    if not options.no_history:
        sizes = {"tokens": options.tokens, "hidden": options.hidden, "vocabulary": options.vocabulary}
        append("head", {**sizes, "cases": found})


if __name__ == "__main__":
    main()
