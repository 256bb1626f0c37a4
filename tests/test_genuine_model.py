"""A genuine pretrained model, SmolLM2-135M-Instruct of a package on PyPI, through engine, trainer and a whole run that
is killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from support.clock import until
from support.tiny_trainer import logps
from transformers import AutoModelForCausalLM

from areal_actors.core.values import SamplingParams, TrainingSequence
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.generation.settings import GenerationSettings
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.training.algorithms import Grpo
from areal_actors.training.settings import OptimizerSettings, TrainerSettings
from areal_actors.training.torch_trainer import TorchTrainer

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parent.parent
PARAMETERS = 134_515_008
QUESTIONS = (
    "What is 7 plus 5?",
    "Name the capital of France.",
    "Write a line about the sea.",
    "Count from one to nine.",
)
STEP_SECONDS = 900.0


def areal(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "areal_actors", *words]
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model as `areal-actors model get smollm2` writes it, without a hub."""
    place = tmp_path_factory.mktemp("genuine")
    areal("model", "get", "smollm2", "--from", "package", "--folder", "models", cwd=place)
    return str(place / "models" / "smollm2")


@pytest.fixture(scope="module")
def sequences(folder: str) -> list[TrainingSequence]:
    """Two groups of four answers, more than 600 trained tokens: several chunks of the output head, the last of them
    small."""
    tokenizer, rng, made = ChatTokenizer.load(folder), np.random.default_rng(0), []
    words = np.array(
        tokenizer.encode(" ".join(QUESTIONS) + " The sea is calm and the moon is bright over the old harbour tonight.")
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for group in range(2):
        prompt = tokenizer.encode(
            tokenizer.render([{"role": "user", "content": QUESTIONS[group]}], add_generation_prompt=True)
        )
        for number in range(4):
            ids = np.concatenate([prompt, rng.choice(words, 76 + number)]).astype(np.int64)
            sampled = np.arange(len(ids)) >= len(prompt)
            own = np.concatenate([[0.0], logps(model, ids)])
            made.append(
                TrainingSequence(
                    token_ids=ids,
                    loss_mask=sampled,
                    logprobs=np.where(sampled, own, 0).astype(np.float32),
                    versions=np.where(sampled, 0, -1).astype(np.int32),
                    group=group,
                    reward=float(number == 1),
                    truncated=False,
                )
            )
    assert sum(int(sequence.loss_mask.sum()) for sequence in made) > 600
    return made


async def test_the_start_check_accepts_it_and_greedy_tokens_are_those_of_generate(folder: str) -> None:
    engine = TransformersEngine(folder, GenerationSettings(device="cpu", max_num_seqs=128, max_model_len=1024))
    try:
        assert engine.warning == ""
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        prompts = [
            engine.tokenizer.encode(
                engine.tokenizer.render([{"role": "user", "content": question}], add_generation_prompt=True)
            )
            for question in QUESTIONS
        ]

        async def answer(prompt: list[int]) -> list[int]:
            sampling = SamplingParams(max_tokens=24, temperature=0.0)
            chunks = [chunk async for chunk in engine.generate("request", prompt, sampling)]
            return [token for chunk in chunks for token in np.frombuffer(chunk.columns.token_ids, dtype="<u4").tolist()]

        answers = await asyncio.gather(*map(answer, prompts))
        for prompt, own in zip(prompts, answers, strict=True):
            plain = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=24)[
                0, len(prompt) :
            ].tolist()
            assert own == plain[: len(own)]
        assert psutil.Process().memory_info().rss < 4e9, "128 slots of 1,024 tokens take memory only when they are used"
    finally:
        await engine.close()


def test_the_gradient_is_that_of_plain_autograd_and_two_steps_stay_within_memory(
    folder: str, sequences: list[TrainingSequence]
) -> None:
    before = psutil.Process().memory_info().rss
    settings = TrainerSettings(device="cpu", microbatch_tokens=1024, optimizer=OptimizerSettings(lr=1e-5))
    trainer = TorchTrainer(folder, Grpo(), settings, total_steps=4)
    prepared = trainer.prepare(sequences)
    assert prepared.metrics["train_infer_logprob_diff_max"] < 1e-3
    trainer.update(prepared)
    gradients = {name: parameter.grad.clone() for name, parameter in trainer._model.named_parameters()}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    advantages, weights = prepared.advantages.tokens, 1.0 / len(prepared.tokens.sequences)
    first = 0
    for sequence in sequences:
        ids = torch.from_numpy(sequence.token_ids)
        plain = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None]).squeeze(1)
        own = plain[torch.from_numpy(sequence.loss_mask[1:])]
        own_advantages = advantages[first : first + len(own)]
        first += len(own)
        (-(own - own.detach()).exp() * own_advantages * weights).sum().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for name, parameter in model.named_parameters():
        difference = (gradients[name] - parameter.grad).norm() / parameter.grad.norm()
        assert difference < 2e-3, f"{name}: {difference:.1e} of a norm of {norm:.2g}"
    del gradients, model
    metrics = trainer.step(sequences)
    assert metrics["grad_norm"] > 0
    assert trainer.weight_version == 2
    # weights, gradients, optimizer, activations of a micro-batch, logits of a chunk; the test's own copies of weights
    # and gradients
    assert psutil.Process().memory_info().rss - before < PARAMETERS * 4 * 6 + 2.5e9


async def test_a_run_that_is_killed_is_resumed_with_nothing_lost_or_trained_twice(folder: str, tmp_path: Path) -> None:
    settings = [f"model={folder}", "steps=3", "trainer.batch_size=2", "evaluation.tasks=4", "checkpoint.every_steps=1"]
    command = [sys.executable, "-m", "areal_actors", "run", str(ROOT / "recipes/smollm2.toml"), *settings]
    log = tmp_path / "output.txt"
    with log.open("wb") as output:
        run = subprocess.Popen(  # noqa: ASYNC220 - it is awaited below
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    await until(lambda: run.poll() is not None or "checkpoint of step 1 saved" in log.read_text(), seconds=STEP_SECONDS)
    assert run.poll() is None, log.read_text()[-3000:]
    for process in [*psutil.Process(run.pid).children(recursive=True), psutil.Process(run.pid)]:
        process.send_signal(signal.SIGKILL)
    run.wait()
    ended = areal("resume", "smollm2", cwd=tmp_path)
    assert "audit: 0 lost, 0 twice, 4 of 4 versions compared" in ended.stdout
    exported = areal("export", "smollm2", str(tmp_path / "log.bin"), cwd=tmp_path)
    assert exported.returncode == 0
    audit = areal("audit", "smollm2", "--recompute", cwd=tmp_path)
    assert re.search(r"4 of 4 versions proved", audit.stdout)
    final = AutoModelForCausalLM.from_pretrained(tmp_path / "runs/smollm2/checkpoints/step-3")
    assert final.num_parameters() == PARAMETERS
