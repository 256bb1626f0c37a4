"""The recipe's table of generation. Kept apart from the engines so that a recipe can be read without loading torch."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

from areal_actors.core.config import Config, Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

StartCheck = Literal["refuse", "warn"]
Channel = Literal["folder", "broadcast", "tensors", "delta"]


def is_here(url: str) -> bool:
    """True if a server's address is one of this host by its name."""
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


class ScriptedSettings(Config):
    """`[generation.scripted]`: completions of the engine without a model, for load tests."""

    token_seconds: NonNegativeFloat = 0.0
    """Seconds per token."""
    shortest: PositiveInt = 4
    """Tokens of a completion, its end-of-turn token among them; drawn anew for each."""
    longest: PositiveInt = 32
    """Maximum length of a completion."""


class ServerSettings(Config):
    """`[generation.server]`: the SGLang or vLLM server of each inference worker."""

    urls: tuple[str, ...] = ()
    """Servers that were started elsewhere, such as `["http://10.0.0.7:30000"]`: one for each inference worker, and used
    by nothing else. They read published weights from the run's weights folder. Empty: each worker starts a server of
    its own."""
    python: str = ""
    """Interpreter that has SGLang or vLLM. Empty: this one if it has, else `.environments/ENGINE/bin/python` in the
    current directory, which `just environments` makes."""
    start_seconds: PositiveFloat = 900.0
    """Maximum wait, in seconds, for a server to be ready."""
    weights: Channel = "folder"
    """Way of new weights to the server: `folder`, which it reads; `broadcast` to a process group (gloo on a CPU, NCCL
    on GPUs); `tensors` as handles of shared memory, for a server on this host; `delta`, a broadcast of what changed
    against a copy that the server keeps. A version that does not arrive is loaded from its folder. Unstated:
    `broadcast` if a server of `urls` is on another host, else `folder`."""
    weights_seconds: PositiveFloat = 120.0
    """Maximum wait, in seconds, for a version to arrive in another way than as a folder; after it the server counts as
    lost."""


class GenerationSettings(Config):
    """`[generation]`: the engine that samples completions."""

    engine: str = "transformers"
    """`transformers`, `sglang`, `vllm`, `scripted` (random tokens), or `path.py:Class` of a class that is called as
    `Class(model_folder, settings)` and implements `areal_actors.generation.engine.GenerationEngine`."""
    server: ServerSettings = ServerSettings()
    options: dict[str, Any] = {}
    """Passed to the engine unread: for `sglang` and `vllm` flags of the server without their dashes, such as
    `mem-fraction-static = 0.8`; `true` is a flag without a value, `false` leaves out one that is set by default."""
    scripted: ScriptedSettings = ScriptedSettings()
    device: Literal["cpu", "cuda", "auto"] = "auto"
    """`cpu`, `cuda`, or `auto`: cuda where there is one."""
    devices: tuple[NonNegativeInt, ...] = ()
    """CUDA devices of the inference workers, `tensor_parallel` for each, as `areal-actors check` numbers them. Empty:
    chosen on the host; the trainer gets others if there are enough."""
    tensor_parallel: PositiveInt = 1
    """CUDA devices that split the model of one inference worker; for `sglang` and `vllm`."""
    memory_fraction: Fraction = 0.0
    """Share of the memory of each device for an inference worker. 0: 0.9, and less on a device that it shares."""
    sleep: Literal["auto", "on", "off"] = "auto"
    """Release the memory of KV cache and weights during each optimizer step, for the trainer on the same device; needs
    `staleness_gate.max_staleness` = 0. `auto`: on if trainer and inference workers share a CUDA device and training is
    synchronous."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the forward pass."""
    max_num_seqs: PositiveInt = 128
    """Completions decoded together; others queue. Default of an inference worker: one slot per concurrent episode, at
    least 128; with `sglang` and `vllm` at most 1,024, with other engines at most 131,072 tokens of `max_model_len`
    together, for the embedded model without a limit; for a pretrained model on a CPU as many as are measured to make
    generation faster."""
    max_model_len: PositiveInt = 1024
    """Longest prompt plus completion, in tokens. Unstated, at least twice a stated `sampling.max_tokens`."""
    threads: PositiveInt = 1
    """CPU threads of the engine's process."""
    start_check: StartCheck = "refuse"
    """The embedded engine compares its decoding with the model's plain forward when it starts. `refuse`: a difference
    that rounding does not explain is reported, and one that only wrong arithmetic explains ends the run; `warn`: any
    difference is only reported."""
    batch_invariant: Literal["auto", "on", "off"] = "auto"
    """Makes the results of a completion independent of the batch, to the last bit; `auto`: on if
    `staleness_gate.max_staleness` is 0. For `transformers` on a CPU with one thread; costs a few percent of the speed
    with many concurrent completions, and 40 % with a single one."""
