"""`areal-actors export --hub`: a checkpoint as a model, and episodes as a dataset, at a hub on this machine, through
huggingface_hub itself."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest
from support.audit_logs import sound_log
from support.live_run import RECIPE, ROOT, SMALL
from support.local_hub import TOKEN, local_hub
from test_reader import exported_log

from areal_actors.cli import main
from areal_actors.core.devices import CudaDevices
from areal_actors.messages import (
    BestCheckpointChosen,
    CheckpointCommitted,
    EvaluationCompleted,
    RunFinished,
    RunStarted,
    StepCompleted,
)
from areal_actors.recipe.load import load
from areal_actors.recipe.recipe import Recipe, redact_recipe
from areal_actors.weights.manifest import write_manifest


@pytest.fixture
def finished(tmp_path):
    """The folder of a run with two checkpoints, the first of them the best."""
    recipe = load([RECIPE], [*SMALL, "gateway.admin_key=secret-key", "run=small"], CudaDevices(0, "none")).recipe
    place = tmp_path / "runs" / "small"
    for step in (1, 2):
        folder = place / "checkpoints" / f"step-{step}"
        folder.mkdir(parents=True)
        for name in (
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "model.safetensors",
            "cursor",
            "trainer_state.pt",
        ):
            (folder / name).write_text(f"{name} {step}")
        write_manifest(folder)
    (place / "recipe.json").write_bytes(msgspec.json.encode(recipe))
    (place / "reward.png").write_bytes(b"png")
    events = [RunStarted(recipe=redact_recipe(recipe), profile="embedded", reason="", folder="runs/small")]
    events += [StepCompleted(step=n, metrics={"reward_mean": n / 4}, sequences_checksum="") for n in (1, 2)]
    numbers = {"tasks": 10, "failed": 0, "mean_tokens": 3.0}
    events += [
        EvaluationCompleted(weight_version=2 * n, mode="greedy", accuracy=n / 2, reward_mean=n / 2, **numbers)
        for n in (0, 1)
    ]
    events += [CheckpointCommitted(folder=f"checkpoints/step-{n}", step=n, cursor=n) for n in (1, 2)]
    events += [
        BestCheckpointChosen(folder="checkpoints/step-1", step=1, weight_version=1, metric="greedy", value=0.5),
        RunFinished(steps=2),
    ]
    rows = ({"time": 1.7e9 + n, "kind": event.subject, **msgspec.to_builtins(event)} for n, event in enumerate(events))
    (place / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return place


def run_areal(hub, home, *words, token=TOKEN):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    environment |= {"HF_TOKEN": token} if token else {}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=600, check=False, cwd=ROOT, env=environment
    )


def push(hub, place, *words, **options):
    return run_areal(
        hub, place.parent, "-m", "areal_actors", "export", "--hub", str(place), "me/small", *words, **options
    )


def test_a_checkpoint_becomes_a_model_with_its_card_and_is_loaded_from_there(finished, tmp_path):
    with local_hub() as hub:
        done = push(hub, finished, "--private")
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"7 files of the run are at {hub.url}/me/small/commit/{'c' * 40}\n"
        assert hub.created == [("model", "me/small", True)]
        files = hub.files["me/small"]
        assert set(files) == {
            *(
                "config.json",
                "tokenizer.json",
                "tokenizer_config.json",
                "model.safetensors",
                "README.md",
                "recipe.toml",
                "reward.png",
            )
        }
        assert files["model.safetensors"] == b"model.safetensors 1", "the best checkpoint"
        card = files["README.md"].decode()
        for words in (
            "library_name: transformers",
            "embedded trained with grpo on arithmetic. Checkpoint of step 1 of 40",
            "| held-out accuracy, greedy, 10 tasks | 0.000 | 0.500 |",
            "| training reward | 0.250 | 0.500 |",
            "![course of the run](reward.png)",
            'AutoModelForCausalLM.from_pretrained("me/small")',
        ):
            assert words in card
        recipe = files["recipe.toml"].decode()
        assert recipe.strip() in card
        assert msgspec.convert(tomllib.loads(recipe), Recipe).run == "small"
        assert "secret-key" not in card
        program = "import sys; from areal_actors.weights.model_hub import model_folder; print(model_folder('me/small'))"
        loaded = run_areal(hub, tmp_path / "other", "-c", program)
        assert loaded.returncode == 0, loaded.stderr
        assert (Path(loaded.stdout.strip()) / "model.safetensors").read_text() == "model.safetensors 1"


def test_another_checkpoint_is_pushed_by_its_name(finished):
    with local_hub() as hub:
        assert push(hub, finished, "--checkpoint", "step-2").returncode == 0
        assert hub.files["me/small"]["model.safetensors"] == b"model.safetensors 2"


def test_without_a_token_the_sentence_has_the_remedy(finished):
    with local_hub() as hub:
        done = push(hub, finished, token="")
    assert done.returncode == 1
    assert f"'me/small' at {hub.url} did not take the upload" in done.stderr
    assert "set HF_TOKEN to a token that may write" in done.stderr


def test_episodes_become_a_dataset(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    file = exported_log(tmp_path / "a.log", sound_log())
    with local_hub() as hub:
        done = push(hub, file, "--episodes")
        assert done.returncode == 0, done.stderr
        files = hub.files["me/small"]
    assert hub.created == [("dataset", "me/small", False)]
    assert set(files) == {"README.md", "episodes.parquet", "interactions.parquet"}
    rows = parquet.read_table(io.BytesIO(files["episodes.parquet"])).num_rows
    assert rows > 10
    assert f"| `episodes.parquet` | {rows} |" in files["README.md"].decode()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--checkpoint", "step-9"], "run 'small' has no checkpoint step-9; it has step-1, step-2"),
        (["damaged"], "model.safetensors"),
    ],
)
def test_what_cannot_be_pushed_is_refused_before_anything_is_sent(finished, capsys, words, complaint):
    if words == ["damaged"]:
        (finished / "checkpoints" / "step-1" / "model.safetensors").write_text("something else")
        words = []
    assert main(["export", "--hub", "small", "me/small", "--folder", str(finished.parent), *words]) == 1
    assert complaint in capsys.readouterr().err


def test_a_dry_run_names_the_files_and_asks_no_hub(finished, monkeypatch, capsys):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    words = ["export", "small", "me/small", "--hub", "--dry-run", "--folder", str(finished.parent)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("would upload to the model me/small, if it is new; nothing was sent:")
    assert "bytes  model.safetensors" in printed
