"""A trainer of a tiny model for tests, and rows as its own weights would have sampled them."""

import numpy as np
import torch

from areal_actors.core.values import TrainingSequence
from areal_actors.embedded.embedded_model import initial_model, train_tokenizer, write_tokenizer
from areal_actors.training.algorithms import Grpo
from areal_actors.training.settings import OptimizerSettings, TrainerSettings
from areal_actors.training.torch_trainer import TorchTrainer


def write_model(folder):
    """The embedded model before its warm start."""
    tokenizer = train_tokenizer()
    write_tokenizer(tokenizer, folder)
    initial_model(tokenizer, seed=0).save_pretrained(folder)
    return str(folder)


def make_trainer(
    folder, algorithm=None, *, seed=0, temperature=1.0, max_staleness=2, lr=1e-3, optimizer=None, **settings
):
    """A trainer on the CPU; `settings` are those of `[trainer]`, `lr` or `optimizer` those of its optimizer."""
    return TorchTrainer(
        folder,
        algorithm or Grpo(),
        TrainerSettings(device="cpu", optimizer=optimizer or OptimizerSettings(lr=lr), **settings),
        total_steps=10,
        temperature=temperature,
        max_staleness=max_staleness,
        seed=seed,
    )


@torch.no_grad()
def logps(model, token_ids, temperature=1.0):
    """Log-probability of every token but the first, by the model's own forward pass."""
    ids = torch.as_tensor(np.asarray(token_ids))
    scores = (model(input_ids=ids[None]).logits[0, :-1].double() / temperature).log_softmax(-1)
    return scores.gather(1, ids[1:, None]).squeeze(1).numpy()


def sequences_of(trainer, *, groups=4, members=3, seed=0, off=0.0, temperature=1.0):
    """Ragged rows as the trainer's own weights would have sampled them, their log-probabilities wrong by up to
    `off`."""
    rng = np.random.default_rng(seed)
    rows = []
    for group in range(groups):
        prompt = rng.integers(3, 500, rng.integers(2, 9))
        for _ in range(members):
            ids = np.concatenate([prompt, rng.integers(3, 500, rng.integers(1, 12))]).astype(np.int64)
            sampled = np.arange(len(ids)) >= len(prompt)
            noise = rng.uniform(-off, off, len(ids))
            own = np.concatenate([[0.0], logps(trainer._model, ids, temperature)])
            rows.append(
                TrainingSequence(
                    token_ids=ids,
                    loss_mask=sampled,
                    logprobs=np.where(sampled, own + noise, 0).astype(np.float32),
                    versions=np.where(sampled, trainer.weight_version, -1).astype(np.int32),
                    group=group,
                    reward=float(rng.integers(0, 3)),
                    truncated=False,
                )
            )
    return rows


def weights(trainer):
    return {name: tensor.clone() for name, tensor in trainer._model.state_dict().items()}


def same(left, right):
    return all(torch.equal(left[name], right[name]) for name in left)
