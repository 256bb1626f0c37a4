"""The table of published models in docs/model-families.md: `python tests/support/published_table.py` writes it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from support.published_models import PUBLISHED, config_of, mtp_tensors, write_published
from support.published_outcomes import lost_tensors, make_trainer, served, step_beside_plain

from areal_actors.core.errors import ArealError
from areal_actors.training.distributed.stages import FAMILIES
from areal_actors.training.torch_trainer import TorchTrainer
from areal_actors.weights.source_tensors import source_of

PAGE = Path(__file__).parents[2] / "docs" / "model-families.md"
START, END = "<!-- table of published models -->\n", "<!-- end of the table -->\n"
HEAD = (
    "model",
    "structure",
    "trained, as by plain transformers",
    "checkpoint",
    "packed",
    "several ranks",
    "embedded engine",
)


def row(name: str, trained: TorchTrainer | str, engine: str) -> tuple[str, ...]:
    """The cells of a model; `trained`: its trainer after a step, or the sentence with which it is refused."""
    published = PUBLISHED[name]
    if isinstance(trained, str):
        return published.repository, published.features, f"no: {_short(trained)}", "–", "–", "–", _engine(engine)
    source = source_of(trained._model)
    assert source is not None
    problem = trained._scorer.hidden_states.sharing_problem
    carried = (
        f"all; {len(source.carried)} carried over unchanged: {_carried(name)}" if source.carried else "all tensors"
    )
    return (
        published.repository,
        published.features,
        "yes",
        carried,
        f"no: {problem}" if problem else "yes",
        _ranks(trained._model),
        _engine(engine),
    )


def _carried(name: str) -> str:
    parts = ["vision tower"] if "vision_config" in config_of(name) else []
    return " and ".join([*parts, *(["MTP"] if mtp_tensors(name) else [])])


def _ranks(model: object) -> str:
    base = model.base_model  # type: ignore[attr-defined]
    if not hasattr(base, "layers"):
        return "no: blocks below a vision tower"
    return "sharded, in tensor parts, in stages" if base.config.model_type in FAMILIES else "sharded"


def _engine(outcome: str) -> str:
    if outcome == "yes":
        return "yes"
    return f"no: {_short(outcome)}"


def _short(sentence: str) -> str:
    for known, short in SHORT.items():
        if known in sentence:
            return short
    raise ValueError(sentence)


SHORT = {
    "changes its logits after the head": "it changes its logits after the head",
    "attends to a window of": "contexts above its window",
    "layers of kind linear_attention": "linear attention",
    "layers of kind conv": "convolutions",
    "no model with a vision tower": "loaded with its vision tower",
}


def line(cells: tuple[str, ...]) -> str:
    """A line of the table."""
    return f"| {' | '.join(cells)} |"


def table() -> str:
    """The whole table."""
    lines = [line(HEAD), line(("---",) * len(HEAD))]
    with tempfile.TemporaryDirectory() as place:
        for name in PUBLISHED:
            folder, results = write_published(name, Path(place) / name), Path(place) / f"{name} results"
            results.mkdir()
            try:
                make_trainer(folder)
            except ArealError as error:
                lines.append(line(row(name, str(error), served(name, folder, None, results))))
                continue
            step = step_beside_plain(name, folder)
            step.trainer.save(str(results / "saved"))
            problems = lost_tensors(name, folder, str(results / "saved"))
            if step.gradient > 1e-5 or problems:
                raise SystemExit(f"{name}: gradient {step.gradient:.1e}, {problems}")
            lines.append(line(row(name, step.trainer, served(name, folder, step.trainer, results))))
            sys.stderr.write(f"{name}: gradient within {step.gradient:.1e}\n")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    PAGE.write_text(before + START + table() + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
