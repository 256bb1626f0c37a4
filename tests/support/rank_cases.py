"""Shared by tests of several ranks: two small models, one start of four ranks for many cases, and tolerances."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from areal_actors.training.distributed.commands import encode

TESTS = Path(__file__).parent.parent
SHAPE = {
    "vocab_size": 503,  # of no layout a multiple
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,  # of two stages not a multiple
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
}
PACKING = frozenset({"computed_tokens"})
"""Metrics of the packing into micro-batches, which depend on the layout: sequence parts share no prefixes."""
COMPARISON = PACKING | {
    *(
        "parity_tokens",
        "train_infer_logprob_diff_max",
        "mismatch_kl_k1",
        "mismatch_kl_k2",
        "mismatch_kl_k3",
        "mismatch_vetoed_frac",
    ),
    *("mismatch_worst_sequence", "mismatch_worst_position", "mismatch_worst_logprob"),
    *("staleness_kl_k1", "staleness_kl_k2", "staleness_kl_k3"),
}
"""Also metrics of copies of older weights, which checkpoints of several ranks do not hold."""
QWEN3 = SHAPE | {"head_dim": 16}


def write_models(folder):
    """A Qwen3 with tied embeddings and a Qwen2 without; their folders by name."""
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**QWEN3, tie_word_embeddings=True)).save_pretrained(folder / "qwen3")
    Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=False)).save_pretrained(folder / "qwen2")
    return {name: str(folder / name) for name in ("qwen2", "qwen3")}


def run_cases(folder, cases, batches):
    """Results of `rank_program.py`, by case: one start of four ranks for all of them.

    `batches`: lists of rows by the name that cases have for them.
    """
    (folder / "cases.json").write_bytes(msgspec.json.encode(cases))
    (folder / "rows").write_bytes(encode(batches))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=4",
        "--standalone",
        str(TESTS / "support/rank_program.py"),
        str(folder),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{TESTS.parent}:{TESTS}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-20000:]
    return {case.name: torch.load(folder / f"{case.name}.pt") for case in cases}


def assert_same_gradients(ours, theirs, tolerance):
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        difference = float((ours[name] - gradient).abs().max())
        assert difference <= tolerance * float(gradient.abs().max()), name


def assert_same_metrics(ours, theirs, tolerance, but=PACKING):
    assert ours.keys() - but == theirs.keys() - but
    for name, value in theirs.items():
        if name in but:
            continue
        assert ours[name] == pytest.approx(value, rel=tolerance, abs=tolerance), name
