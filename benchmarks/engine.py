"""Tokens per second of the embedded engine against `generate` of transformers, side by side, on a tiny random model.

    python benchmarks/engine.py [--tokens 64] [--repeats 5]

Both sample at temperature 1 and stop at the same length; ours also records log-probabilities and weight versions. Runs
of the two alternate, and the fastest of each counts, so that machine load affects both equally: compare the ratios.
`uneven` has completions of 8 to 64 tokens: `generate` waits for the longest of its batch, the engine reuses slots.
`invariant` is the engine with `batch_invariant = "on"`, as a share of its speed without.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from history import append, parse_arguments
from tokenizers import Tokenizer, decoders, models
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from areal_actors.core.values import SamplingParams
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.generation.engine import GenerationEngine
from areal_actors.generation.settings import GenerationSettings
from areal_actors.weights.transfer import write_weights

VOCABULARY = 600
CONTEXT = 256
PROMPT = 60
UNEVEN = 512
"""Number of completions of different lengths."""
QUICK = {"tokens": 8, "repeats": 1, "together": [1, 8], "uneven": 16}


@dataclass(frozen=True)
class Figures:
    """Tokens per second at one level of concurrency."""

    case: str
    engine: float
    generate: float
    invariant: float
    """The engine, batch invariant."""

    @property
    def ratio(self) -> float:
        """Speed of the engine relative to `generate`."""
        return self.engine / self.generate

    @property
    def share(self) -> float:
        """Speed of the batch invariant engine relative to the normal one."""
        return self.invariant / self.engine


def make_folder(folder: Path, head_dim: int = 16, positions: int = 512, **shape: int) -> str:
    """A Hugging Face folder of a random model that never ends by itself, of 0.14 M parameters by default."""
    torch.manual_seed(0)
    usual = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": head_dim}
    config = Qwen3Config(
        **{**usual, **heads, **shape},
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        initializer_range=0.08,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE(vocab={f"t{index}": index for index in range(VOCABULARY)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return str(folder)


async def engine_seconds(engine: GenerationEngine, prompts: list[list[int]], lengths: list[int]) -> float:
    """Seconds until the engine has answered all prompts, sent at once."""

    async def complete(prompt: list[int], length: int) -> None:
        async for _ in engine.generate("benchmark", prompt, SamplingParams(max_tokens=length)):
            pass

    began = time.perf_counter()
    await asyncio.gather(*(complete(prompt, length) for prompt, length in zip(prompts, lengths, strict=True)))
    return time.perf_counter() - began


@torch.inference_mode()
def generate_seconds(model: PreTrainedModel, prompts: list[list[int]], lengths: list[int], together: int) -> float:
    """Seconds of `generate` over batches of `together` prompts, each as long as its longest completion."""
    began = time.perf_counter()
    for start in range(0, len(prompts), together):
        ids = torch.tensor(prompts[start : start + together])
        longest = max(lengths[start : start + together])
        model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=longest, do_sample=True, temperature=1.0, top_k=0
        )
    return time.perf_counter() - began


async def compare(
    engines: tuple[TransformersEngine, TransformersEngine],
    model: PreTrainedModel,
    case: str,
    lengths: list[int],
    together: int,
    repeats: int,
) -> Figures:
    """Return the fastest of several alternating runs of each."""
    numbers = np.random.default_rng(0)
    ours, theirs, invariant = [], [], []
    for _ in range(repeats):
        # New prompts for every run, which the prefix cache does not hold.
        prompts = numbers.integers(0, VOCABULARY, (len(lengths), PROMPT)).tolist()
        ours.append(await engine_seconds(engines[0], prompts, lengths))
        theirs.append(generate_seconds(model, prompts, lengths, together))
        invariant.append(await engine_seconds(engines[1], prompts, lengths))
    return Figures(case, *(sum(lengths) / min(seconds) for seconds in (ours, theirs, invariant)))


async def swap_seconds(engine: TransformersEngine, model: PreTrainedModel, folder: Path) -> float:
    """Seconds of a weight update while 128 completions run, from verified files to recomputed KV caches."""
    location = write_weights(model.state_dict(), folder / "v1", folder)
    prompts = np.random.default_rng(1).integers(0, VOCABULARY, (128, PROMPT)).tolist()
    running = asyncio.create_task(engine_seconds(engine, prompts, [128] * 128))
    await asyncio.sleep(0.05)
    began = time.perf_counter()
    await engine.load_weights(location, 1)
    seconds = time.perf_counter() - began
    await running
    return seconds


async def measure(options: argparse.Namespace, report: Callable[[str], None]) -> dict[str, object]:
    """All cases, reported line by line and returned as one table."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = make_folder(Path(temporary))
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
        settings = GenerationSettings(device="cpu", max_num_seqs=128, max_model_len=CONTEXT)
        engine = TransformersEngine(folder, settings)
        invariant = TransformersEngine(folder, msgspec.structs.replace(settings, batch_invariant="on"))
        uneven = np.random.default_rng(2).integers(8, 65, options.uneven).tolist()
        cases = [(f"{together} together", [options.tokens] * together, together) for together in options.together]
        cases.append((f"uneven, {options.uneven} over 128", uneven, 128))
        report(f"{'case':24}{'engine tok/s':>14}{'generate tok/s':>16}{'ratio':>8}{'invariant':>11}")
        rows = []
        for case, lengths, together in cases:
            figures = await compare((engine, invariant), model, case, lengths, together, options.repeats)
            rows.append({**asdict(figures), "ratio": figures.ratio, "share": figures.share})
            report(
                f"{case:24}{figures.engine:>14,.0f}{figures.generate:>16,.0f}{figures.ratio:>8.2f}{figures.share:>11.2f}"
            )
        swap = await swap_seconds(engine, model, Path(temporary))
        report(f"weight update under 128 running completions: {swap * 1000:.0f} ms")
        await engine.close()
        await invariant.close()
    return {"cases": rows, "swap_seconds": swap}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per completion")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--together", type=int, nargs="+", default=[1, 8, 32, 128], help="completions decoded together")
    parser.add_argument("--uneven", type=int, default=UNEVEN, help="number of completions of different lengths")
    arguments = parse_arguments(parser, QUICK)
    figures = asyncio.run(measure(arguments, print))
    if not arguments.no_history:
        append("engine", figures)


if __name__ == "__main__":
    main()
