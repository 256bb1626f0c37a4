"""Options of the first hour that each section's process receives, and the sizes of both forms."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Device = Literal["cpu", "cuda", "auto"]
Dtype = Literal["float32", "bfloat16"]
Sharing = Literal["on", "off"]

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Sizes:
    """Model and amounts of work; lengths are in tokens."""

    model: dict[str, Any]
    """Dimensions of a `Qwen2Config`."""
    dtypes: tuple[Dtype, ...]
    """Precisions of the parity section."""
    dtype: Dtype
    """Precision of the other sections."""
    parity_groups: int
    parity_prompt: int
    parity_completion: int
    concurrency: tuple[int, ...]
    """Completions decoded together."""
    decode_prompt: int
    decode_completion: int
    repeats: int
    """Timed runs of each decode case; the fastest counts."""
    step_groups: int
    step_prompt: int
    step_completion: int
    microbatches: tuple[int, ...]
    """Computed tokens of a micro-batch: the next is tried where one fails, as it does for lack of memory."""
    steps: int
    """Trainer steps; the first warms up."""
    updates: int
    """Weight updates."""
    matmul: int
    """Rows and columns of the matrices of the matrix product."""
    loop_steps: int
    loop: tuple[str, ...]
    """Settings of the run."""


FULL = Sizes(
    model={
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
    },
    dtypes=("float32", "bfloat16"),
    dtype="bfloat16",
    parity_groups=4,
    parity_prompt=64,
    parity_completion=128,
    concurrency=(1, 32, 128, 512),
    decode_prompt=64,
    decode_completion=128,
    repeats=2,
    step_groups=8,
    step_prompt=512,
    step_completion=512,
    microbatches=(4096, 2048),
    steps=3,
    updates=2,
    matmul=8192,
    loop_steps=5,
    loop=(
        "trainer.batch_size=4",
        "trainer.microbatch_tokens=1024",
        "algorithm.group_size=8",
        "staleness_gate.max_concurrent=8",
        "sampling.max_tokens=128",
        "generation.max_model_len=512",
        "evaluation.tasks=8",
    ),
)
TINY = Sizes(
    model={
        "vocab_size": 1024,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
    },
    dtypes=("float32", "bfloat16"),
    dtype="float32",
    parity_groups=1,
    parity_prompt=8,
    parity_completion=8,
    concurrency=(1, 4),
    decode_prompt=8,
    decode_completion=8,
    repeats=1,
    step_groups=2,
    step_prompt=32,
    step_completion=16,
    microbatches=(512,),
    steps=2,
    updates=1,
    matmul=128,
    loop_steps=5,
    loop=(
        "trainer.batch_size=1",
        "algorithm.group_size=4",
        "staleness_gate.max_concurrent=2",
        "sampling.max_tokens=8",
        "generation.max_model_len=256",
        "evaluation.tasks=2",
    ),
)
GROUP = 8
"""Sequences of a group in the sections of parity and trainer."""


@dataclass(frozen=True)
class Options:
    """Arguments of a section."""

    device: Device
    tiny: bool
    folder: str
    """Temporary folder of all sections."""
    shared: str
    """Temporary folder in shared memory, or another one where that has no room."""
    deadline: float
    """Unix time in seconds at which the section is stopped."""

    @property
    def sizes(self) -> Sizes:
        """Sizes of this form."""
        return TINY if self.tiny else FULL

    @property
    def model(self) -> str:
        """Hugging Face folder of the random model."""
        return str(Path(self.folder) / "model")

    def encode(self) -> str:
        """Encode as JSON, for the command line of a section's process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def decode(cls, text: str) -> Options:
        """Decode from JSON."""
        values: dict[str, Any] = json.loads(text)
        return cls(**values)
