"""Cards of what a run pushes to a model hub.

They name the model, the data and the result, and how to load the model and repeat the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import DatasetCardData, ModelCardData

from areal_actors import __version__
from areal_actors.core.command import COMMAND
from areal_actors.core.known_models import hub_id_of
from areal_actors.display.run_state import RunState
from areal_actors.display.sentences import MEASURED, held_out_scores
from areal_actors.display.view import MODES
from areal_actors.embedded.settings import EMBEDDED
from areal_actors.tasks.sources import is_on_hub

TAGS = ["areal-actors", "reinforcement-learning"]


def model_card(repo: str, state: RunState, *, step: int, recipe: str, curve: str) -> str:
    """Returns the README of a model's repository.

    Args:
        repo: `owner/name` of the repository.
        state: of the run.
        step: of the checkpoint.
        recipe: the resolved recipe as TOML, without keys and passwords.
        curve: file name of the plot in the repository; empty without one.
    """
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=[*TAGS, str(state.setting("algorithm", "name") or "")],
        **_on_hub(
            base_model=hub_id_of(str(state.setting("model") or "")),
            datasets=str(state.setting("task", "dataset") or ""),
        ),
    )
    picture = f"\n![course of the run]({curve})\n" if curve else ""
    return f"""---
{data.to_yaml()}
---

# {repo.rpartition("/")[2]}

{_description(state)} Checkpoint of step {step} of {state.steps_wanted()}, made with {COMMAND} {__version__}.

{_table(state)}
{picture}
## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{repo}")
tokenizer = AutoTokenizer.from_pretrained("{repo}")
```

## Recipe

`{COMMAND} run recipe.toml` repeats the run, with the files of agent and reward that it names. \
All settings, defaults included:

```toml
{recipe}
```
"""


def dataset_card(repo: str, state: RunState, counts: dict[str, int]) -> str:
    """Returns the README of a dataset's repository with tables of a run; `counts` are the rows of each."""
    files: list[dict[str, Any]] = [{"config_name": name, "data_files": f"{name}.parquet"} for name in counts]
    data = DatasetCardData(tags=TAGS, configs=files)
    rows = "\n".join(f"| `{name}.parquet` | {count:,} |" for name, count in counts.items())
    return f"""---
{data.to_yaml()}
---

# {repo.rpartition("/")[2]}

Episodes of a run. {_description(state)}

| file | rows |
|---|---|
{rows}

The columns are those of `open_run` in {COMMAND} {__version__} (docs/reading-runs.md).
"""


def _on_hub(*, base_model: str, datasets: str) -> dict[str, Any]:
    """Returns what the hub links to: names of its own only."""
    fields: dict[str, Any] = (
        {"base_model": base_model} if base_model != EMBEDDED and not Path(base_model).expanduser().exists() else {}
    )
    return fields | ({"datasets": datasets.partition(":")[0]} if datasets and is_on_hub(datasets) else {})


def _description(state: RunState) -> str:
    name, model = state.setting("algorithm", "name"), Path(str(state.setting("model"))).name
    data = state.setting("task", "environment") or state.setting("task", "dataset")
    return f"{model} trained with {name} on {Path(str(data)).name}."


def _table(state: RunState) -> str:
    lines = ["| | first | last |", "|---|---|---|"]
    for name, values in _courses(state):
        lines.append(f"| {name} | {values[0]:.3f} | {values[-1]:.3f} |")
    return "\n".join(lines)


def _courses(state: RunState) -> Iterator[tuple[str, Sequence[float]]]:
    for mode in MODES:
        if evaluations := state.accuracy(mode):
            measure, values = held_out_scores(evaluations)
            yield f"held-out {measure}, {mode}, {evaluations[-1].tasks} tasks", values
    for name in MEASURED:
        if values := state.held_out_values(name):
            yield f"held-out {name}, {state.losses[-1].examples} examples", values
    for name, metric in (("training reward", "reward_mean"), ("training loss", "loss")):
        if (values := state.history(metric)) and (metric == "reward_mean" or state.learns_from_examples()):
            yield name, values
