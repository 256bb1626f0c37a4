"""The head and its log-probabilities.

Forward and backward pass by vocabulary and hidden size, in CPU seconds and peak memory.
    PYTHONPATH=benchmarks python benchmarks/archive/trainer_head.py [--tokens 1024] [--repeats 5]
        [--vocabularies 600 16384 151936] [--hidden 512 896 1536]

Four ways, of a trained head and of a frozen one (LoRA), whose gradient by the hidden states alone is computed:

- `all at once`: the logits of all tokens, and torch's log-softmax.
- `recomputed`: the trainer's chunks for a trained head, which recompute the logits of most chunks in the backward pass.
- `forward`: the trainer's chunks for a frozen head, whose gradient of each log-probability is computed in the forward
  pass.
- `known`: fused as by Liger: the gradient of the loss by each log-probability is known before the forward pass, which
  computes all gradients from a chunk's logits. A policy gradient does not know it there, because it depends on the
  log-probabilities of whole sequences; here it is given, as the lowest cost that such a kernel could have.

The ways alternate, and the fastest repetition of each counts. `MB` is the peak of the process above its memory before.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import torch
from history import append, parse_arguments, table
from torch import Tensor, nn
from trainer_ours import memory

from areal_actors.training.packing import token_scores as product

MEGABYTE = 10**6
RESET_PEAK = "5"
"""Written to a process's `clear_refs`, sets its peak memory to its current memory."""
QUICK = {"tokens": 64, "repeats": 1, "vocabularies": [600], "hidden": [64]}
Way = Callable[[nn.Linear, Tensor, Tensor, Tensor], None]


def all_at_once(head: nn.Linear, hidden: Tensor, labels: Tensor, slopes: Tensor) -> None:
    """Forward and backward pass with the logits of all tokens."""
    logps = head(hidden).log_softmax(-1).gather(1, labels.unsqueeze(1)).squeeze(1)
    (logps * slopes).sum().backward()


def recomputed(head: nn.Linear, hidden: Tensor, labels: Tensor, slopes: Tensor) -> None:
    """Forward and backward pass of the trainer's head when it is trained."""
    size, room = max(product.TOKENS, product.LOGITS["cpu"] // head.out_features), product.SAVED["cpu"]
    logps, _ = product._LinearScores.apply(room, hidden, head.weight, head.bias, labels, 1.0, size, torch.float32)  # noqa: SLF001
    (logps * slopes).sum().backward()


def forward(head: nn.Linear, hidden: Tensor, labels: Tensor, slopes: Tensor) -> None:
    """Forward and backward pass of the trainer's head when it is frozen."""
    logps, _ = product.token_scores(head, hidden, labels, 1.0, torch.float32)
    (logps * slopes).sum().backward()


def known(head: nn.Linear, hidden: Tensor, labels: Tensor, slopes: Tensor) -> None:
    """Gradients in one pass over chunks, from known gradients of the log-probabilities."""
    size, trained = max(product.TOKENS, product.LOGITS["cpu"] // head.out_features), head.weight.requires_grad
    weight_grad = torch.zeros_like(head.weight) if trained else None
    hidden_grads = []
    with torch.no_grad():
        for chunk, wanted, slope in zip(*(column.split(size) for column in (hidden, labels, slopes)), strict=True):
            gradient = (chunk @ head.weight.T).softmax(-1).mul_(-slope.unsqueeze(1))
            gradient.scatter_add_(1, wanted.unsqueeze(1), slope.unsqueeze(1))
            hidden_grads.append(gradient @ head.weight)
            if weight_grad is not None:
                weight_grad.addmm_(gradient.T, chunk)
    hidden.grad, head.weight.grad = torch.cat(hidden_grads), weight_grad


WAYS: dict[bool, dict[str, Way]] = {
    True: {"all at once": all_at_once, "recomputed": recomputed, "known": known},
    False: {"all at once": all_at_once, "recomputed": recomputed, "forward": forward, "known": known},
}
"""By whether the head is trained."""


def peak(call: Callable[[], None]) -> float:
    """Return the megabytes that a call takes at its peak."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text(RESET_PEAK)
    before = memory("VmRSS")
    call()
    return (memory("VmHWM") - before) / MEGABYTE


def measure(vocabulary: int, width: int, options: argparse.Namespace, *, trained: bool) -> dict[str, object]:
    """Measure all ways at one size."""
    torch.manual_seed(0)
    head = nn.Linear(width, vocabulary, bias=False).requires_grad_(trained)
    hidden = torch.randn(options.tokens, width, requires_grad=True)
    labels, slopes = torch.randint(0, vocabulary, (options.tokens,)), torch.randn(options.tokens)
    seconds: dict[str, list[float]] = {}
    megabytes: dict[str, float] = {}
    gradients: dict[str, Tensor] = {}
    for number, (name, way) in itertools.product(range(options.repeats + 1), WAYS[trained].items()):
        hidden.grad = head.weight.grad = None
        if number == 0:
            megabytes[name] = peak(lambda way=way: way(head, hidden, labels, slopes))  # type: ignore[misc]
            assert hidden.grad is not None
            gradients[name] = hidden.grad.clone()
            continue
        began = time.process_time()
        way(head, hidden, labels, slopes)
        seconds.setdefault(name, []).append(time.process_time() - began)
    reference = gradients["all at once"]
    return {
        "vocabulary": vocabulary,
        "hidden": width,
        "head": "trained" if trained else "frozen",
        "seconds": {name: min(taken) for name, taken in seconds.items()},
        "megabytes": megabytes,
        "difference": max(float((ours - reference).norm() / reference.norm()) for ours in gradients.values()),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024, help="scored tokens")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--vocabularies", nargs="+", type=int, default=[600, 16384, 151936])
    parser.add_argument("--hidden", nargs="+", type=int, default=[512, 896, 1536])
    options = parse_arguments(parser, QUICK)
    torch.set_num_threads(1)
    cases = []
    for trained, vocabulary, width in itertools.product((True, False), options.vocabularies, options.hidden):
        cases.append(case := measure(vocabulary, width, options, trained=trained))
        names, parts = list(WAYS[trained]), (case["seconds"], case["megabytes"])
        print(
            f"\n{case['head']} head, vocabulary {vocabulary:,}, hidden {width}: gradients within"
            f" {case['difference']:.1e}"
        )
        print(table(["", "CPU s", "MB"], [[name, *(part[name] for part in parts)] for name in names]))  # type: ignore[index]
    if not options.no_history:
        append("trainer_head", {"tokens": options.tokens, "cases": cases})


if __name__ == "__main__":
    main()
