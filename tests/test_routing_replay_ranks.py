"""Several ranks replay recorded experts as one rank does, whatever is divided: experts, positions, blocks, or weights.

Tolerances are those of test_rank_experts.py.
"""

import msgspec
import numpy as np
import pytest
import torch
from support.rank_cases import assert_same_gradients, assert_same_metrics, run_cases
from support.rank_program import MICROBATCH_TOKENS, Case, gradients_of
from support.tiny_trainer import make_trainer, sequences_of
from test_rank_experts import LAYOUTS, OPTIMIZER, random_mixture

from areal_actors.core.model_config import route_shape_of
from areal_actors.training.settings import OptimizerSettings

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return random_mixture(tmp_path_factory.mktemp("mixture"))


@pytest.fixture(scope="module")
def batch(model):
    """Rows with experts drawn at random, of which the trainer's routers would choose few; one row has those of a few
    positions only."""
    trainer, shape, rng = make_trainer(model), route_shape_of(model), np.random.default_rng(0)
    rows = []
    for row in sequences_of(trainer):
        size = (len(row.token_ids) - 1, len(shape.layers))
        chosen = np.array([rng.choice(shape.experts, shape.top_k, replace=False) for _ in range(size[0] * size[1])])
        rows.append(msgspec.structs.replace(row, routes=shape.pack(chosen.reshape(*size, shape.top_k))))
    rows[0] = msgspec.structs.replace(rows[0], routes=rows[0].routes[: 2 * shape.position_bytes])
    logp = iter(trainer.logp(rows).numpy() + rng.uniform(-0.5, 0.5, sum(int(row.loss_mask.sum()) for row in rows)))
    for place, row in enumerate(rows):
        sampled = np.array([next(logp) if trained else 0 for trained in row.loss_mask], dtype=np.float32)
        rows[place] = msgspec.structs.replace(row, logprobs=sampled)
    return rows


@pytest.fixture(scope="module")
def alone(model, batch):
    trainer = make_trainer(model, microbatch_tokens=MICROBATCH_TOKENS, optimizer=OptimizerSettings(**OPTIMIZER))
    own = trainer.logp([msgspec.structs.replace(row, routes=b"") for row in batch])
    logp = trainer.logp(batch)
    assert float((own - logp).abs().max()) > 0.1
    return {"logp": logp, "metrics": trainer.step(batch), "gradients": gradients_of(trainer)}


@pytest.fixture(scope="module")
def ranks(model, batch, tmp_path_factory):
    more = {"recomputed": {"recompute_activations": True}}
    cases = [
        Case(name=str(layout), layout=layout, model=model, settings={"optimizer": OPTIMIZER}, steps=(0,))
        for layout in LAYOUTS
    ]
    cases += [
        Case(
            name=f"{name} {layout}",
            layout=layout,
            model=model,
            settings={"optimizer": OPTIMIZER} | settings,
            steps=(0,),
        )
        for name, settings in more.items()
        for layout in [(2, 1, 2), (1, 1, 2, 2)]
    ]
    return run_cases(tmp_path_factory.mktemp("ranks"), cases, {model: [batch]})


@pytest.mark.parametrize("case", [*map(str, LAYOUTS), "recomputed (2, 1, 2)", "recomputed (1, 1, 2, 2)"])
def test_every_layout_replays_what_one_rank_replays(ranks, alone, case):
    found = ranks[case]
    assert torch.allclose(found["logp"], alone["logp"], atol=3e-6, rtol=0)
    assert alone["metrics"]["routing_mismatch"] > 0.5
    assert_same_metrics(found["metrics"][0], alone["metrics"], 3e-6)
    assert_same_gradients(found["gradients"][0], alone["gradients"], 5e-6)
